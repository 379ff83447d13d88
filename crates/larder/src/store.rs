//! Where a manager keeps its objects: one store per change detection strategy.
//!
//! All stores share the [`Entries`]: what is referenced, by whom, and since when.

pub(crate) mod caching;
pub(crate) mod entries;
pub(crate) mod fake;
pub(crate) mod simple;
pub(crate) mod watching;

pub(crate) use self::entries::{Entries, Entry};

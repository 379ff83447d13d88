//! The scenarios of strategy `Watch` with one watch per namespace.

use larder::WatchScope;

const SCOPE: WatchScope = WatchScope::Namespace;

#[path = "watching.rs"]
mod watching;

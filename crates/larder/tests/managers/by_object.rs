//! The scenarios of strategy `Watch` with one watch per object.

use larder::WatchScope;

const SCOPE: WatchScope = WatchScope::Object;

#[path = "watching.rs"]
mod watching;

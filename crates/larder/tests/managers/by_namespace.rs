//! Strategy `Watch`: its scenarios and the API server's faults, with one watch per namespace.

use larder::WatchScope;

const SCOPE: WatchScope = WatchScope::Namespace;

#[path = "faults.rs"]
mod faults;
#[path = "watching.rs"]
mod watching;

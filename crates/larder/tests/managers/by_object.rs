//! Strategy `Watch`: its scenarios and the API server's faults, with one watch per object.

use larder::WatchScope;

const SCOPE: WatchScope = WatchScope::Object;

#[path = "faults.rs"]
mod faults;
#[path = "watching.rs"]
mod watching;

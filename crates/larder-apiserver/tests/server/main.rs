//! The server as its clients see it: in process with time paused, over sockets, and through `kubectl`.

#![expect(
    clippy::unwrap_used,
    reason = "the lint does not see that helpers of tests are tests"
)]

mod certificates;
mod client;
mod cluster;
mod connections;
mod faults;
mod hostile;
mod kubectl;
mod served;

// The examples, as a part of this executable.
#[path = "../../examples/in_memory.rs"]
mod in_memory;

//! Starts while the API server is unreachable: the checkpoint restores the pods, and the API server returns later.

mod denied;
mod harness;
mod keys;
mod reboot;
mod writes;

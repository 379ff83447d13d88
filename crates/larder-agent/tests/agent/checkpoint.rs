//! Starts while the API server is away: what the checkpoint brings back, and what happens when the API server returns.

mod denied;
mod harness;
mod keys;
mod reboot;
mod writes;

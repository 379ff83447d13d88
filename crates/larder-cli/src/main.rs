//! The command `larder`.
fn main() {}

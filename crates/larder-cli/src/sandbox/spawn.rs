//! Starts this program again.

use tokio::process::Command;

pub(super) fn this_program(subcommand: &str) -> Command {
    let mut command = Command::new("/proc/self/exe");
    command.arg(subcommand).env_clear();
    command
}

//! The executable `larder-sidecar`.

use std::process::ExitCode;

fn main() -> ExitCode {
    larder_cli::larder_sidecar()
}

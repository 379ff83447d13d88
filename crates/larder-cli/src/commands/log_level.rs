//! `larder log-level`: the log filter of a running agent.

use std::process::ExitCode;

use anyhow::anyhow;

use crate::{
    agent::{AgentClient, client_config},
    args::LogLevelArgs,
    outcome::Failure,
    output,
};

/// Where the agent has it.
const PATH: &str = "/log-level";

pub(super) fn run(args: &LogLevelArgs) -> Result<ExitCode, Failure> {
    let agent = AgentClient::new(&client_config(&args.place)?.root_dir)?;
    if let Some(level) = &args.level {
        agent.put(PATH, level)?;
    } else {
        let (has_one, filter) = agent.text(PATH)?;
        if !has_one {
            return Err(anyhow!("the agent has no log level").into());
        }
        output::lines([filter])?;
    }
    Ok(ExitCode::SUCCESS)
}

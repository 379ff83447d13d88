//! Child processes: those that run beside a test and write a log, and those that are run to their end.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use anyhow::{Context as _, bail};
use rustix::process::{Pid, Signal, kill_process};

/// A running process; dropped, it is killed.
#[derive(Debug)]
pub struct Process {
    name: String,
    child: Child,
    log: PathBuf,
}

impl Process {
    /// Starts `command` with its output appended to `log`.
    ///
    /// # Errors
    ///
    /// The log cannot be opened, or the program does not start.
    pub fn start(name: &str, command: &mut Command, log: &Path) -> anyhow::Result<Self> {
        let output = File::options().append(true).create(true).open(log)?;
        let child = command
            .stdin(Stdio::null())
            .stdout(output.try_clone()?)
            .stderr(output)
            .spawn()
            .with_context(|| format!("failed to start {name}"))?;
        Ok(Self {
            name: name.to_owned(),
            child,
            log: log.to_owned(),
        })
    }

    /// Returns an error with the end of the log if the process has ended.
    ///
    /// # Errors
    ///
    /// It has ended.
    pub fn check_alive(&mut self) -> anyhow::Result<()> {
        if let Some(status) = self.child.try_wait()? {
            bail!("{} ended with {status}: {}", self.name, self.last_lines());
        }
        Ok(())
    }

    /// The end of its log.
    pub fn last_lines(&self) -> String {
        let log = fs::read_to_string(&self.log).unwrap_or_default();
        let mut lines: Vec<_> = log.lines().rev().take(15).collect();
        lines.reverse();
        lines.join("\n")
    }

    /// Its number.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Sends it a signal.
    ///
    /// # Errors
    ///
    /// It has ended.
    pub fn signal(&self, signal: Signal) -> anyhow::Result<()> {
        Ok(kill_process(Pid::from_child(&self.child), signal)?)
    }

    /// Asks it to end and waits for that.
    ///
    /// # Errors
    ///
    /// It has ended already.
    pub fn terminate(mut self) -> anyhow::Result<()> {
        self.signal(Signal::TERM)?;
        self.child.wait()?;
        Ok(())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Both fail only if the process has ended, as intended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs `command` to its end. Returns what it has printed.
///
/// # Errors
///
/// It does not start, or fails.
pub fn run(command: &mut Command) -> anyhow::Result<String> {
    let output = command
        .output()
        .with_context(|| format!("failed to start {command:?}"))?;
    if !output.status.success() {
        let why = String::from_utf8_lossy(&output.stderr);
        bail!("{command:?} failed: {why}");
    }
    Ok(String::from_utf8(output.stdout)?)
}

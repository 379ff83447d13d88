//! The built binary, in a clean environment and a directory of its own.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

/// A pod `web` with one container of that name, which these lines complete.
macro_rules! web_pod {
    ($rest:literal) => {
        concat!(
            "\napiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec:\n  containers:\n",
            "  - name: web\n    image: i\n",
            $rest
        )
    };
}

mod accepted;
mod agent_recipes;
mod api;
mod apiserver;
mod bad_input;
mod canaries;
mod charts;
mod checkpoint;
mod checkpoint_canaries;
mod clean;
mod cluster;
mod cluster_facts;
mod containers;
mod descriptors;
mod diff;
mod ending;
mod env_file;
mod examples;
mod exec;
mod exec_agent;
mod fake_agent;
mod first_hour;
mod full_pipe;
mod hook_rules;
mod hostile;
mod kills;
mod left_out;
mod limits;
mod listen;
mod log_page;
mod machines;
mod metrics;
mod misspellings;
mod mounts;
mod namesakes;
mod nginx;
mod numbers;
mod on_change;
mod ordinary_services;
mod ready;
mod reboot;
mod recipes;
mod refs;
mod render;
mod run;
mod run_check;
mod service;
mod shell;
mod sidecar;
mod static_url;
mod status;
mod subpath;
mod systemd_recipe;
mod ui;
mod upgrade;
mod vectors;
mod warnings;

use std::{
    fs,
    io::Write as _,
    path::Path,
    process::{Command, Output, Stdio},
};

use larder_e2e::ScratchDir;

/// A fresh directory in which `larder` runs.
struct Desk {
    /// As root an agent mounts.
    dir: ScratchDir,
}

/// The leftovers of a run.
#[derive(Debug)]
struct Run {
    code: i32,
    stdout: String,
    stderr: String,
}

impl Desk {
    /// A directory with these files.
    fn with<const N: usize>(files: [(&str, &str); N]) -> Self {
        let dir = ScratchDir::with_prefix("larder-cli-").unwrap();
        for (name, content) in files {
            fs::write(dir.path().join(name), content).unwrap();
        }
        Self { dir }
    }

    fn path(&self) -> &Path {
        self.dir.path()
    }

    /// Puts another file in the place of `name`, in one step.
    fn replace(&self, name: &str, content: &str) {
        let next = self.path().join(format!("{name}.next"));
        fs::write(&next, content).unwrap();
        fs::rename(next, self.path().join(name)).unwrap();
    }

    /// Runs `larder` with arguments that are separated by blanks.
    #[track_caller]
    fn run(&self, args: &str) -> Run {
        self.run_with_input(args, "")
    }

    #[track_caller]
    fn run_with_input(&self, args: &str, input: &str) -> Run {
        let mut child = Command::new(env!("CARGO_BIN_EXE_larder"))
            .args(args.split_whitespace())
            .current_dir(self.path())
            .env_clear()
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stdin = child.stdin.take().unwrap();
        // A run that does not read its input may end first.
        let _ = stdin.write_all(input.as_bytes());
        drop(stdin);
        let output = child.wait_with_output().unwrap();
        output.into()
    }
}

impl From<Output> for Run {
    fn from(output: Output) -> Self {
        Self {
            code: output.status.code().unwrap(),
            stdout: String::from_utf8(output.stdout).unwrap(),
            stderr: String::from_utf8(output.stderr).unwrap(),
        }
    }
}

//! Manual pages, for packages: what `--help` says, in the sections that readers of manual pages look for.

use std::{
    io::{self, Write},
    process::ExitCode,
};

use clap::{CommandFactory as _, builder::StyledStr};
use clap_mangen::{
    Man,
    roff::{Roff, bold, italic, roman},
};

use crate::{
    args::{Args, ManArgs},
    outcome::Failure,
    output,
};

/// Text for a word: a code, a file or a variable.
type ManEntry = (&'static str, &'static str);

/// What a page says besides its command's help.
struct Facts {
    /// The subcommands that it holds for; the empty one is the command itself.
    commands: &'static [&'static str],
    exit_status: &'static [ManEntry],
    files: &'static [ManEntry],
}

const EXIT_STATUS: &[ManEntry] = &[
    ("0", "Everything succeeded."),
    ("1", "Something requested failed, and the rest was done."),
    ("2", "Bad usage, or unreadable input: nothing was done."),
];

const AGENT_FILES: &[ManEntry] = &[
    (
        "/etc/larder/agent.yaml",
        "The configuration that the package installs.",
    ),
    (
        "/etc/larder/manifests/",
        "The manifests that the packaged service serves.",
    ),
    (
        "/run/larder/",
        "Root directory of the packaged service: volumes, variables, and the socket agent.sock.",
    ),
    (
        "/var/lib/larder/",
        "Root directory of an agent that root starts without a configuration.",
    ),
];

/// The first row that names a command holds for it.
const FACTS: &[Facts] = &[
    Facts {
        commands: &["diff"],
        exit_status: &[
            ("0", "No difference, or with --fail-on none of those."),
            ("1", "Differences, or with --fail-on one of those."),
            ("2", "An error, or something that was not read."),
        ],
        files: &[],
    },
    Facts {
        commands: &["exec"],
        exit_status: &[
            ("125", "larder itself failed."),
            ("126", "The command cannot be executed."),
            ("127", "The command is not found."),
            ("128+N", "Signal N ended the command."),
            ("other", "The command's own."),
        ],
        files: AGENT_FILES,
    },
    Facts {
        commands: &[
            "run",
            "status",
            "ui",
            "clean",
            "checkpoint",
            "log-level",
            "",
        ],
        exit_status: EXIT_STATUS,
        files: AGENT_FILES,
    },
];

const ENVIRONMENT: &[ManEntry] = &[
    (
        "LARDER_LOG",
        "Filter of the log, such as debug or larder=trace.",
    ),
    ("NO_COLOR", "If it is not empty, there are no colors."),
    (
        "CLICOLOR_FORCE",
        "If it is not empty and not 0, there are colors although the output is no terminal.",
    ),
];

pub(super) fn run(args: &ManArgs) -> Result<ExitCode, Failure> {
    let mut command = Args::command();
    // Gives the subcommands their full names.
    command.build();
    let all: Vec<_> = command
        .get_subcommands()
        // `larder help` shows what the page of a command has.
        .filter(|one| !one.is_hide_set() && one.get_name() != "help")
        .map(|one| one.get_name().to_owned())
        .collect();
    let name = args.subcommand.as_deref().unwrap_or_default();
    if !name.is_empty() {
        let found = command.find_subcommand(name).cloned();
        command =
            found.ok_or_else(|| Failure::unreadable(format!("unknown subcommand {name:?}")))?;
    }
    output::results(|out| write(&mut &mut *out, command, name, &all))?;
    Ok(ExitCode::SUCCESS)
}

fn write(
    out: &mut dyn Write,
    mut command: clap::Command,
    name: &str,
    all: &[String],
) -> io::Result<()> {
    let title = command
        .get_display_name()
        .unwrap_or(command.get_name())
        .to_owned();
    let source = format!("larder {}", command.get_version().unwrap_or_default());
    let text = |text: Option<&StyledStr>| text.map(ToString::to_string).unwrap_or_default();
    let help = text(command.get_after_long_help().or(command.get_after_help()));
    let (_, examples) = help.split_once("Examples:\n").unwrap_or_default();
    // Both are sections here.
    command = command
        .after_help("")
        .after_long_help("")
        .display_name(title);
    let has_subcommands = command.get_subcommands().any(|one| !one.is_hide_set());
    let page = Man::new(command).source(source).manual("larder");
    page.render_title(out)?;
    page.render_name_section(out)?;
    page.render_synopsis_section(out)?;
    page.render_description_section(out)?;
    page.render_options_section(out)?;
    if has_subcommands {
        page.render_subcommands_section(out)?;
    }
    let facts = FACTS.iter().find(|facts| facts.commands.contains(&name));
    let mut roff = Roff::new();
    list(
        &mut roff,
        "EXIT STATUS",
        facts.map_or(EXIT_STATUS, |facts| facts.exit_status),
    );
    list(&mut roff, "ENVIRONMENT", ENVIRONMENT);
    list(&mut roff, "FILES", facts.map_or(&[], |facts| facts.files));
    if !examples.is_empty() {
        list_examples(&mut roff, examples);
    }
    see_also(&mut roff, name, all);
    roff.to_writer(out)
}

fn list_examples(roff: &mut Roff, examples: &str) {
    roff.control("SH", ["EXAMPLES"]);
    for line in examples.lines() {
        // The command, and what it is for.
        let line = line.trim();
        let (example, purpose) = line.split_once("   ").unwrap_or((line, ""));
        roff.control("TP", []);
        roff.text([bold(example)]);
        roff.text([roman(purpose.trim())]);
    }
}

/// Names the pages of the other subcommands, and the documents.
fn see_also(roff: &mut Roff, name: &str, all: &[String]) {
    roff.control("SH", ["SEE ALSO"]);
    let others = all.iter().filter(|one| *one != name);
    let mut pages: Vec<_> = others.map(|one| format!("larder-{one}")).collect();
    if !name.is_empty() {
        pages.insert(0, "larder".to_owned());
    }
    let last = pages.len() - 1;
    for (index, page) in pages.into_iter().enumerate() {
        let comma = if index == last { "" } else { ", " };
        roff.text([bold(page), roman(format!("(1){comma}"))]);
    }
    roff.control("PP", []);
    roff.text([
        roman("The pages in "),
        italic("/usr/share/doc/larder/docs"),
        roman("."),
    ]);
}

fn list(roff: &mut Roff, heading: &str, entries: &[ManEntry]) {
    if entries.is_empty() {
        return;
    }
    roff.control("SH", [heading]);
    for (word, text) in entries {
        roff.control("TP", []);
        roff.text([bold(*word)]);
        roff.text([roman(*text)]);
    }
}

//! The variables of one container as an env file, in the reading of `docker run --env-file` (docker 28, `pkg/kvfile`):
//! a line is `NAME=VALUE`, and the value is everything up to the end of the line, without quotes or escapes. A line that
//! begins with `#` is a comment.
//!
//! Invariants:
//! 1. docker reads the file as exactly the variables of the container that have a line.
//! 2. Each other variable is a comment with the reason, and a message, which have no byte of a value.

use std::io::{self, Write};

use larder_console::first_names;
use larder_projection::{
    ContainerKind, ContainerView, Environment, Unknown, containers, partial_environment,
};

use crate::{
    offline::find_container,
    outcome::Failure,
    output::{self, escaped},
    rendered::{RenderedPod, StartError},
};

/// Longest line, its end included (Go's `bufio.MaxScanTokenSize`).
const MAX_LINE: usize = 64 << 10;
/// Longest comment: names may be long, too.
const MAX_COMMENT: usize = 1 << 10;
/// Most names in a message.
const MAX_NAMED: usize = 10;

/// The container `wanted`, or the only regular one.
pub(super) fn chosen<'p>(
    pod: &RenderedPod<'p>,
    wanted: Option<&str>,
) -> Result<ContainerView<'p>, Failure> {
    if let Some(wanted) = wanted {
        return Ok(find_container(pod.pod, wanted)?);
    }
    let all = containers(pod.pod);
    let regular = all.filter(|container| container.kind == ContainerKind::Regular);
    if let [only] = &*regular.collect::<Vec<_>>() {
        return Ok(*only);
    }
    let names: Vec<_> = containers(pod.pod).map(|one| one.name).collect();
    Err(Failure::unreadable(format!(
        "pod {}/{} has several containers: choose one with -c: {}",
        pod.namespace(),
        pod.label,
        first_names(&names, MAX_NAMED)
    )))
}

/// The variables of one container.
pub(super) struct EnvFile<'r> {
    environment: Environment<'r>,
    /// Why the container does not start.
    errors: Vec<String>,
}

impl<'r> EnvFile<'r> {
    pub(super) fn new(pod: &RenderedPod<'r>, container: ContainerView<'r>) -> Self {
        let found = partial_environment(pod.pod, container, pod.inputs);
        let (environment, errors) = match found {
            Ok(found) => found,
            Err(error) => (Environment::default(), vec![error]),
        };
        let errors = errors
            .into_iter()
            .map(StartError::Environment)
            .map(|error| pod.start_error(&error));
        Self {
            errors: errors.collect(),
            environment,
        }
    }

    /// Whether each variable is known or its absence is not this file's fault.
    pub(super) fn is_whole(&self) -> bool {
        let mut variables = self.environment.iter();
        self.errors.is_empty() && variables.all(|(name, one)| unheld(name, &one.value).is_none())
    }

    /// Writes the file to `out`, and messages about what is not in it.
    pub(super) fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        for error in &self.errors {
            comment(out, error)?;
        }
        let mut read_otherwise = Vec::new();
        for (name, variable) in self.environment.iter() {
            if let Some(unknown) = variable.value.unknown() {
                comment(out, &not_known(name, unknown))?;
            } else if let Some(why) = unheld(name, &variable.value) {
                comment(out, &format!("{name} is left out: {why}"))?;
            } else {
                out.write_all(&[name.as_bytes(), b"=", &variable.value, b"\n"].concat())?;
                if !systemd_agrees(name, &variable.value) {
                    read_otherwise.push(name);
                }
            }
        }
        for (name, unknown) in self.environment.opaque() {
            comment(out, &not_known(&name, &unknown))?;
        }
        if !read_otherwise.is_empty() {
            let names = first_names(&read_otherwise, MAX_NAMED);
            output::note(format_args!(
                "systemd reads these otherwise than docker: {names}"
            ));
        }
        Ok(())
    }
}

fn not_known(name: &str, unknown: &Unknown) -> String {
    let sources: Vec<_> = unknown.sources().map(ToString::to_string).collect();
    format!("{name} is not known: {}", sources.join(", "))
}

/// Writes a line that docker skips, and the same message.
fn comment(out: &mut dyn Write, text: &str) -> io::Result<()> {
    output::note(text);
    let text = escaped(text);
    writeln!(out, "# {}", &text[..text.floor_char_boundary(MAX_COMMENT)])
}

/// Why no line can hold a variable, if none can.
fn unheld(name: &str, value: &[u8]) -> Option<&'static str> {
    let Ok(text) = str::from_utf8(value) else {
        return Some("its value is not UTF-8");
    };
    if name.starts_with('#') {
        Some("a line that begins with # is a comment")
    } else if name.contains(char::is_whitespace) {
        Some("its name has a space")
    } else if text.contains('\n') {
        Some("its value has several lines, and an env file has no escapes")
    } else if text.ends_with('\r') {
        Some("its value ends in a carriage return, which is taken for a part of the line's end")
    } else if name.len() + value.len() + "=\n".len() > MAX_LINE {
        Some("its line has more than 64 KiB")
    } else {
        None
    }
}

/// Whether `EnvironmentFile=` of systemd (257, `src/basic/env-file.c`) reads a line as docker does.
fn systemd_agrees(name: &str, value: &[u8]) -> bool {
    let is_part = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'_';
    let begins_with_digit = name.starts_with(|first: char| first.is_ascii_digit());
    let is_name = name.bytes().all(|byte| is_part(&byte)) && !begins_with_digit;
    let is_quoted = value.first().is_some_and(|first| b"\"'".contains(first));
    let is_escaped = value.iter().any(|byte| b"\\\r".contains(byte));
    let mut ends = value.first().into_iter().chain(value.last());
    is_name && !is_quoted && !is_escaped && !ends.any(|end| b" \t".contains(end))
}

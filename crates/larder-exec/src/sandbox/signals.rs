//! Signals that the supervisor passes on, and the exit code of the command.

use std::{
    io::IsTerminal as _,
    ops::RangeInclusive,
    os::unix::process::ExitStatusExt as _,
    process::{Command, ExitStatus, Stdio},
};

use anyhow::Context as _;
use futures::{
    Stream, StreamExt as _,
    stream::{poll_fn, select_all},
};
use rustix::process::{Pid, Signal};
use tokio::signal::unix::{SignalKind, signal};

/// The numbers of real-time signals, with those that a C library keeps for itself.
const REAL_TIME: RangeInclusive<i32> = 34..=64;

/// A signal that a command can get.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CommandSignal {
    /// One with a name.
    Named(Signal),
    /// The real-time signal of this number.
    RealTime(i32),
}

impl From<Signal> for CommandSignal {
    fn from(signal: Signal) -> Self {
        Self::Named(signal)
    }
}

/// Sends a real-time signal to a child of this process that was not waited for, so its number is not another one's.
pub(super) fn send_real_time(number: i32, child: Pid) {
    let (number, child) = (format!("-{number}"), child.as_raw_nonzero().to_string());
    // No safe function takes the number, and every shell can send it.
    let mut shell = Command::new("/bin/sh");
    shell.args(["-c", r#"kill "$1" "$2""#, "sh", &number, &child]);
    let _ = shell.stdin(Stdio::null()).stderr(Stdio::null()).status();
}

/// The signals that arrive, and whether each has to be passed on. Not those that report an error of this process, or the
/// end of a child.
///
/// # Errors
///
/// Signals cannot be received.
pub(crate) fn forwarded() -> anyhow::Result<impl Stream<Item = (CommandSignal, bool)> + Unpin> {
    // The terminal sends these to the command as well, which is in the same process group. Those that stop a job stop
    // this process, too, so that the shell of the terminal notices.
    let keyboard = std::io::stdin().is_terminal();
    let mut kinds = vec![
        (SignalKind::hangup(), Signal::HUP, true),
        (SignalKind::interrupt(), Signal::INT, !keyboard),
        (SignalKind::quit(), Signal::QUIT, !keyboard),
        (SignalKind::terminate(), Signal::TERM, true),
        (SignalKind::user_defined1(), Signal::USR1, true),
        (SignalKind::user_defined2(), Signal::USR2, true),
        (SignalKind::window_change(), Signal::WINCH, !keyboard),
        (SignalKind::alarm(), Signal::ALARM, true),
        (SignalKind::io(), Signal::IO, true),
    ];
    let further = [
        Signal::CONT,
        Signal::URG,
        Signal::VTALARM,
        Signal::PROF,
        Signal::POWER,
        Signal::XCPU,
        Signal::ABORT,
        Signal::TRAP,
        Signal::SYS,
        Signal::STKFLT,
    ];
    let stops = [Signal::TSTP, Signal::TTIN, Signal::TTOU];
    let stops = stops.into_iter().filter(|_| !keyboard);
    let further = further.into_iter().chain(stops);
    kinds.extend(further.map(|number| (SignalKind::from_raw(number.as_raw()), number, true)));
    let named = kinds.into_iter().map(|(kind, number, forward)| {
        let arrivals = signal(kind).context("cannot receive signals")?;
        Ok((arrivals, number.into(), forward))
    });
    let mut all: Vec<_> = named.collect::<anyhow::Result<_>>()?;
    all.extend(REAL_TIME.filter_map(|number| {
        let arrivals = signal(SignalKind::from_raw(number)).ok()?;
        Some((arrivals, CommandSignal::RealTime(number), true))
    }));
    let streams = all.into_iter().map(|(mut arrivals, number, forward)| {
        let arrived = poll_fn(move |context| arrivals.poll_recv(context));
        arrived.map(move |()| (number, forward))
    });
    Ok(select_all(streams))
}

/// The exit code for a status: its own, or 128 plus the signal.
pub fn exit_code(status: ExitStatus) -> u8 {
    let code = status.code().or(status.signal().map(|signal| 128 + signal));
    code.and_then(|code| u8::try_from(code).ok())
        .unwrap_or(u8::MAX)
}

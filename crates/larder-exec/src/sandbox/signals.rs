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
use tokio::signal::unix::{Signal as Arrivals, SignalKind, signal};

/// The numbers of real-time signals, with those that a C library keeps for itself.
const REAL_TIME: RangeInclusive<i32> = 34..=64;
/// Those of the keyboard and the window.
const KEYBOARD: [Signal; 3] = [Signal::INT, Signal::QUIT, Signal::WINCH];
/// Those that stop a job.
const STOPS: [Signal; 3] = [Signal::TSTP, Signal::TTIN, Signal::TTOU];
const OTHERS: [Signal; 16] = [
    Signal::HUP,
    Signal::TERM,
    Signal::USR1,
    Signal::USR2,
    Signal::ALARM,
    Signal::IO,
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

/// A signal that has arrived.
#[derive(Clone, Copy)]
pub(crate) struct ArrivedSignal {
    pub(crate) signal: CommandSignal,
    pub(crate) sent_to: SentTo,
}

/// Whom a signal was sent to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SentTo {
    /// larder alone, which passes it on.
    Larder,
    /// The whole process group of the terminal, so the command has it.
    Group,
}

/// The signals that arrive. Not those that report an error of this process, or the end of a child.
///
/// # Errors
///
/// Signals cannot be received.
pub(crate) fn forwarded() -> anyhow::Result<impl Stream<Item = ArrivedSignal> + Unpin> {
    // The terminal sends its signals to the command as well, which is in the same process group. Those that stop a job
    // stop this process, too, so that the shell of the terminal notices.
    let (by_keyboard, stops) = if std::io::stdin().is_terminal() {
        (SentTo::Group, &[][..])
    } else {
        (SentTo::Larder, &STOPS[..])
    };
    let keyboard = KEYBOARD.iter().map(|signal| (*signal, by_keyboard));
    let others = OTHERS
        .iter()
        .chain(stops)
        .map(|signal| (*signal, SentTo::Larder));
    let mut streams = Vec::new();
    for (number, sent_to) in keyboard.chain(others) {
        let kind = SignalKind::from_raw(number.as_raw());
        let arrivals = signal(kind).context("cannot receive signals")?;
        let signal = number.into();
        streams.push(each(arrivals, ArrivedSignal { signal, sent_to }));
    }
    for number in REAL_TIME {
        if let Ok(arrivals) = signal(SignalKind::from_raw(number)) {
            let (signal, sent_to) = (CommandSignal::RealTime(number), SentTo::Larder);
            streams.push(each(arrivals, ArrivedSignal { signal, sent_to }));
        }
    }
    Ok(select_all(streams))
}

/// `arrived`, whenever it arrives.
fn each(
    mut arrivals: Arrivals,
    arrived: ArrivedSignal,
) -> impl Stream<Item = ArrivedSignal> + Unpin {
    poll_fn(move |context| arrivals.poll_recv(context)).map(move |()| arrived)
}

/// The exit code for a status: its own, or 128 plus the signal.
pub fn exit_code(status: ExitStatus) -> u8 {
    status
        .code()
        .or(status.signal().map(|signal| 128 + signal))
        .and_then(|code| u8::try_from(code).ok())
        .unwrap_or(u8::MAX)
}

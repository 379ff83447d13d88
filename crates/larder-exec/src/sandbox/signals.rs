//! Signals that the supervisor passes on, and the exit code of the command.

use std::{io::IsTerminal as _, os::unix::process::ExitStatusExt as _, process::ExitStatus};

use anyhow::Context as _;
use futures::{
    Stream, StreamExt as _,
    stream::{poll_fn, select_all},
};
use rustix::process::Signal;
use tokio::signal::unix::{SignalKind, signal};

/// The signals that arrive, and whether each has to be passed on.
///
/// # Errors
///
/// Signals cannot be received.
pub(crate) fn forwarded() -> anyhow::Result<impl Stream<Item = (Signal, bool)> + Unpin> {
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
    ];
    let stops = [Signal::TSTP, Signal::TTIN, Signal::TTOU];
    let stops = stops.into_iter().filter(|_| !keyboard);
    let further = further.into_iter().chain(stops);
    kinds.extend(further.map(|number| (SignalKind::from_raw(number.as_raw()), number, true)));
    let streams = kinds.into_iter().map(|(kind, number, forward)| {
        let mut arrived = signal(kind).context("cannot receive signals")?;
        let arrived = poll_fn(move |context| arrived.poll_recv(context));
        anyhow::Ok(arrived.map(move |()| (number, forward)))
    });
    let streams: Vec<_> = streams.collect::<Result<_, _>>()?;
    Ok(select_all(streams))
}

/// The exit code for a status: its own, or 128 plus the signal.
pub fn exit_code(status: ExitStatus) -> u8 {
    let code = status.code().or(status.signal().map(|signal| 128 + signal));
    code.and_then(|code| u8::try_from(code).ok())
        .unwrap_or(u8::MAX)
}

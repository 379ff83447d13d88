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
    // The terminal sends these to the command as well, which is in the same process group.
    let keyboard = std::io::stdin().is_terminal();
    let kinds = [
        (SignalKind::hangup(), Signal::HUP, true),
        (SignalKind::interrupt(), Signal::INT, !keyboard),
        (SignalKind::quit(), Signal::QUIT, !keyboard),
        (SignalKind::terminate(), Signal::TERM, true),
        (SignalKind::user_defined1(), Signal::USR1, true),
        (SignalKind::user_defined2(), Signal::USR2, true),
    ];
    let streams = kinds.map(|(kind, number, forward)| {
        let mut arrived = signal(kind).context("cannot receive signals")?;
        let arrived = poll_fn(move |context| arrived.poll_recv(context));
        anyhow::Ok(arrived.map(move |()| (number, forward)))
    });
    let streams: Vec<_> = streams.into_iter().collect::<Result<_, _>>()?;
    Ok(select_all(streams))
}

/// The exit code for a status: its own, or 128 plus the signal.
pub fn exit_code(status: ExitStatus) -> u8 {
    let code = status.code().or(status.signal().map(|signal| 128 + signal));
    code.and_then(|code| u8::try_from(code).ok())
        .unwrap_or(u8::MAX)
}

//! Signals that the supervisor passes on, and the exit code of the command.

use std::{io::IsTerminal as _, os::unix::process::ExitStatusExt as _, process::ExitStatus};

use anyhow::Context as _;
use rustix::process::Signal;
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::mpsc::{UnboundedReceiver, unbounded_channel},
    task::JoinSet,
};

/// The signals that arrive, and whether each has to be passed on.
///
/// # Errors
///
/// Signals cannot be received.
pub(crate) fn forwarded(
    tasks: &mut JoinSet<()>,
) -> anyhow::Result<UnboundedReceiver<(Signal, bool)>> {
    let (sender, receiver) = unbounded_channel();
    // The terminal sends these to the command as well, which is in the same process group.
    let keyboard = std::io::stdin().is_terminal();
    for (kind, forwarded) in [
        (SignalKind::hangup(), true),
        (SignalKind::interrupt(), !keyboard),
        (SignalKind::quit(), !keyboard),
        (SignalKind::terminate(), true),
        (SignalKind::user_defined1(), true),
        (SignalKind::user_defined2(), true),
    ] {
        let mut stream = signal(kind).context("cannot receive signals")?;
        let Some(number) = Signal::from_named_raw(kind.as_raw_value()) else {
            continue;
        };
        let sender = sender.clone();
        tasks.spawn(async move {
            while stream.recv().await.is_some() {
                // The receiver is gone when the command has ended.
                let _ = sender.send((number, forwarded));
            }
        });
    }
    Ok(receiver)
}

/// The exit code for a status: its own, or 128 plus the signal.
pub(crate) fn exit_code(status: ExitStatus) -> u8 {
    let code = status.code().or(status.signal().map(|signal| 128 + signal));
    code.and_then(|code| u8::try_from(code).ok())
        .unwrap_or(u8::MAX)
}

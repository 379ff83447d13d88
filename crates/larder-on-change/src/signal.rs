//! The signals that a hook may send, by name.

use std::{fmt, str::FromStr};

/// A signal that asks a process to do something. Numbers are not accepted: they differ between platforms.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Signal {
    /// `SIGHUP`
    Hup,
    /// `SIGINT`
    Int,
    /// `SIGQUIT`
    Quit,
    /// `SIGTERM`
    Term,
    /// `SIGUSR1`
    Usr1,
    /// `SIGUSR2`
    Usr2,
    /// `SIGWINCH`
    Winch,
    /// `SIGCONT`
    Cont,
}

impl Signal {
    /// All of them, in the order in which messages list them.
    pub const ALL: [Self; 8] = [
        Self::Hup,
        Self::Int,
        Self::Quit,
        Self::Term,
        Self::Usr1,
        Self::Usr2,
        Self::Winch,
        Self::Cont,
    ];

    /// The name with its prefix, as in `SIGHUP`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Hup => "SIGHUP",
            Self::Int => "SIGINT",
            Self::Quit => "SIGQUIT",
            Self::Term => "SIGTERM",
            Self::Usr1 => "SIGUSR1",
            Self::Usr2 => "SIGUSR2",
            Self::Winch => "SIGWINCH",
            Self::Cont => "SIGCONT",
        }
    }

    /// Whether the default action of the signal ends a process that neither catches nor blocks it, although the sender
    /// wants a reload (rule G5).
    pub const fn kills_by_default(self) -> bool {
        matches!(self, Self::Hup | Self::Usr1 | Self::Usr2)
    }
}

impl fmt::Display for Signal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Why a number does not name a signal.
pub(crate) const NUMBER: &str = "name the signal, as in SIGHUP";
/// Why another text does not.
const UNKNOWN: &str =
    "expected one of SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGWINCH, SIGCONT";

impl FromStr for Signal {
    /// What is expected instead.
    type Err = &'static str;

    /// Reads a name with or without `SIG`.
    fn from_str(text: &str) -> Result<Self, &'static str> {
        if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(NUMBER);
        }
        let name = text.strip_prefix("SIG").unwrap_or(text);
        let mut known = Self::ALL.into_iter();
        known
            .find(|signal| &signal.name()["SIG".len()..] == name)
            .ok_or(UNKNOWN)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // on-change 1
    #[test]
    fn signals_are_named_with_and_without_prefix() {
        for signal in Signal::ALL {
            assert_eq!(signal.name().parse(), Ok(signal));
            assert_eq!(signal.name()[3..].parse(), Ok(signal));
        }
        assert_eq!("1".parse::<Signal>(), Err(NUMBER));
        for unknown in ["SIGFOO", "", "SIGKILL", "hup", "SIG"] {
            assert_eq!(unknown.parse::<Signal>(), Err(UNKNOWN), "{unknown}");
        }
    }

    #[test]
    fn message_lists_every_signal() {
        let names = Signal::ALL.map(Signal::name).join(", ");
        assert_eq!(UNKNOWN, format!("expected one of {names}"));
    }
}

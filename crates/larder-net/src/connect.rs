//! The first of several addresses that accepts a connection (RFC 8305, "Happy Eyeballs").
//!
//! Invariants:
//! 1. IPv6 and IPv4 take turns, beginning with the family of the first address. So a dead family delays nothing for
//!    longer than [`STAGGER`].
//! 2. An attempt begins [`STAGGER`] after the one before it, or at once when all before it have failed. None is given up
//!    while it may still succeed; the first that succeeds ends the others.
//!
//! How long it may take in all is the caller's to say.

use std::{io, net::SocketAddr, time::Duration};

use futures::{StreamExt as _, stream::FuturesUnordered};
use tokio::{net::TcpStream, time::sleep};

/// Time between the beginnings of two attempts (RFC 8305, section 8: Connection Attempt Delay).
pub const STAGGER: Duration = Duration::from_millis(250);

/// No address accepted the connection.
#[derive(Debug)]
pub struct ConnectFailure {
    /// The first address that failed.
    pub address: SocketAddr,
    /// Why.
    pub source: io::Error,
}

/// Connects to the first of the addresses that answers; `None` without an address.
///
/// # Errors
///
/// Each of them has failed.
///
/// # Cancel safety
///
/// Dropping the future ends all attempts.
pub async fn connect(addresses: &[SocketAddr]) -> Option<Result<TcpStream, ConnectFailure>> {
    race(addresses, TcpStream::connect).await
}

async fn race<T, F>(
    addresses: &[SocketAddr],
    attempt: impl Fn(SocketAddr) -> F,
) -> Option<Result<T, ConnectFailure>>
where
    F: Future<Output = io::Result<T>>,
{
    let mut waiting = alternating(addresses).into_iter();
    let mut attempts = FuturesUnordered::new();
    let mut first_failure = None;
    loop {
        if let Some(address) = waiting.next() {
            let attempt = attempt(address);
            attempts.push(async move { (address, attempt.await) });
        }
        let next_begins = async {
            if waiting.len() > 0 {
                sleep(STAGGER).await;
            } else {
                std::future::pending::<()>().await;
            }
        };
        tokio::pin!(next_begins);
        loop {
            let ended = tokio::select! {
                biased;
                ended = attempts.next() => ended,
                () = &mut next_begins => break,
            };
            match ended {
                Some((_, Ok(connected))) => return Some(Ok(connected)),
                Some((address, Err(source))) => {
                    first_failure.get_or_insert(ConnectFailure { address, source });
                }
                None => break,
            }
            if attempts.is_empty() {
                break;
            }
        }
        if attempts.is_empty() && waiting.len() == 0 {
            return first_failure.map(Err);
        }
    }
}

/// The addresses with their families in turn, each family in its order.
fn alternating(addresses: &[SocketAddr]) -> Vec<SocketAddr> {
    let is_first_family = |address: &SocketAddr| address.is_ipv6() == addresses[0].is_ipv6();
    let (first, second): (Vec<_>, Vec<_>) = addresses.iter().copied().partition(is_first_family);
    let (mut first, mut second) = (first.into_iter(), second.into_iter());
    let mut ordered = Vec::with_capacity(addresses.len());
    while ordered.len() < addresses.len() {
        ordered.extend(first.next());
        ordered.extend(second.next());
    }
    ordered
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use parking_lot::Mutex;
    use tokio::time::Instant;

    use super::*;

    /// An address; what an attempt to connect to it does depends on its port.
    fn addresses(texts: &[&str]) -> Vec<SocketAddr> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    /// Port 1 never answers, 2 refuses after 10 ms, and others accept after as many milliseconds. Returns the outcome,
    /// how long it took, and when each attempt began.
    async fn raced(texts: &[&str]) -> (Option<Result<u16, u16>>, u128, Vec<(u16, u128)>) {
        let start = Instant::now();
        let began = Mutex::new(Vec::new());
        let attempt = |address: SocketAddr| {
            began
                .lock()
                .push((address.port(), start.elapsed().as_millis()));
            async move {
                match address.port() {
                    1 => pending().await,
                    2 => {
                        sleep(Duration::from_millis(10)).await;
                        Err(io::ErrorKind::ConnectionRefused.into())
                    }
                    port => {
                        sleep(Duration::from_millis(port.into())).await;
                        Ok(port)
                    }
                }
            }
        };
        let outcome = race(&addresses(texts), attempt).await;
        let outcome = outcome.map(|ended| ended.map_err(|failure| failure.address.port()));
        (outcome, start.elapsed().as_millis(), began.into_inner())
    }

    #[tokio::test(start_paused = true)]
    async fn a_dead_family_delays_by_a_quarter_of_a_second() {
        let dead_first = ["[2001:db8::1]:1", "[2001:db8::2]:1", "192.0.2.1:20"];
        let (outcome, took, began) = raced(&dead_first).await;
        assert_eq!((outcome, took), (Some(Ok(20)), 270));
        assert_eq!(began, [(1, 0), (20, 250)]);
        let dead_second = ["192.0.2.1:20", "[2001:db8::1]:1"];
        assert_eq!(raced(&dead_second).await.1, 20);
    }

    #[tokio::test(start_paused = true)]
    async fn a_refusal_is_followed_by_the_next_address_at_once() {
        let (outcome, took, _) = raced(&["[2001:db8::1]:2", "192.0.2.1:2", "192.0.2.2:30"]).await;
        assert_eq!((outcome, took), (Some(Ok(30)), 50));
        let (outcome, took, _) = raced(&["192.0.2.1:2", "192.0.2.2:2"]).await;
        assert_eq!((outcome, took), (Some(Err(2)), 20));
        assert_eq!(raced(&[]).await.0, None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_address_is_not_given_up_for_a_dead_one() {
        let (outcome, took, began) = raced(&["192.0.2.1:900", "192.0.2.2:1", "192.0.2.3:1"]).await;
        assert_eq!((outcome, took), (Some(Ok(900)), 900));
        assert_eq!(began, [(900, 0), (1, 250), (1, 500)]);
    }

    #[test]
    fn families_take_turns() {
        let given = addresses(&["1.1.1.1:1", "2.2.2.2:2", "3.3.3.3:3", "[::1]:4"]);
        let ports: Vec<_> = alternating(&given).iter().map(SocketAddr::port).collect();
        assert_eq!(ports, [1, 4, 2, 3]);
        assert!(alternating(&[]).is_empty());
    }
}

//! Looks up the addresses of hosts.
//!
//! The system's resolver (`getaddrinfo`) answers, because it follows `/etc/nsswitch.conf`: hosts files, search domains,
//! multicast DNS. It blocks, for tens of seconds if a name server is silent, and cannot be canceled.
//!
//! Invariants:
//! 1. `localhost` and the names below it are the loopback addresses (RFC 6761, section 6.3). Nothing is asked.
//! 2. Each name has a thread of its own, so no lookup waits for another, and none takes a thread of the runtime. The
//!    process does not wait for these threads at its end.
//! 3. A name that is already being looked up is not asked for again, also if the first caller has given up. So the
//!    threads do not grow with repeated requests, and `MAX_NAMES` bounds them whatever the names.

use std::{
    collections::HashMap,
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs as _},
    thread,
};

use parking_lot::Mutex;
use tokio::sync::watch;

/// Most names that are looked up at the same time.
const MAX_NAMES: usize = 256;

/// Addresses of the loopback, in the order in which they are tried.
const LOOPBACK: [IpAddr; 2] = [
    IpAddr::V4(Ipv4Addr::LOCALHOST),
    IpAddr::V6(Ipv6Addr::LOCALHOST),
];

type Resolve = dyn Fn(&str) -> io::Result<Vec<IpAddr>> + Send + Sync;

/// The outcome of a lookup for each of its callers.
type Answer = Result<Vec<IpAddr>, (io::ErrorKind, String)>;

/// The lookups under way.
struct Lookups {
    resolve: &'static Resolve,
    /// Closed when the thread of the name has ended.
    names: Mutex<Option<HashMap<String, watch::Receiver<Option<Answer>>>>>,
}

/// Those of the process.
static LOOKUPS: Lookups = Lookups::new(&|name| {
    let found = (name, 0).to_socket_addrs()?;
    Ok(found.map(|address| address.ip()).collect())
});

/// The addresses of `host`, a name or an IP address, for connections to `port`.
///
/// # Errors
///
/// The name cannot be resolved, or too many others are being resolved.
///
/// # Cancel safety
///
/// The lookup goes on if the future is dropped. The next call for the name shares its outcome.
pub async fn lookup(host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
    LOOKUPS.lookup(host, port).await
}

impl Lookups {
    const fn new(resolve: &'static Resolve) -> Self {
        Self {
            resolve,
            names: Mutex::new(None),
        }
    }

    async fn lookup(&self, host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
        let found = if let Ok(address) = host.parse() {
            vec![address]
        } else if is_loopback(host) {
            LOOPBACK.to_vec()
        } else {
            let mut answer = self.begin(host)?;
            let answer = answer.wait_for(Option::is_some).await;
            // The thread has panicked.
            let answer = answer.map_err(|_| io::ErrorKind::Other)?;
            let answer = answer.clone().expect("it was waited for");
            answer.map_err(|(kind, text)| io::Error::new(kind, text))?
        };
        let with_port = found.into_iter().map(|address| (address, port).into());
        Ok(with_port.collect())
    }

    /// Begins to look up `name`, unless that is under way.
    fn begin(&self, name: &str) -> io::Result<watch::Receiver<Option<Answer>>> {
        let mut names = self.names.lock();
        let names = names.get_or_insert_default();
        names.retain(|_, answer| answer.has_changed().is_ok());
        if let Some(answer) = names.get(name) {
            return Ok(answer.clone());
        }
        if names.len() == MAX_NAMES {
            return Err(io::Error::other("too many other names are being resolved"));
        }
        let (sender, receiver) = watch::channel(None);
        let (resolve, owned) = (self.resolve, name.to_owned());
        thread::Builder::new()
            .name("lookup".to_owned())
            .spawn(move || {
                let answer = resolve(&owned).map_err(|error| (error.kind(), error.to_string()));
                sender.send_replace(Some(answer));
            })?;
        names.insert(name.to_owned(), receiver.clone());
        Ok(receiver)
    }
}

/// Whether the name is `localhost` or ends with `.localhost`.
fn is_loopback(name: &str) -> bool {
    let name = name.strip_suffix('.').unwrap_or(name);
    let last = name.rsplit('.').next().unwrap_or_default();
    last.eq_ignore_ascii_case("localhost")
}

#[cfg(test)]
mod tests {
    use std::{
        sync::{
            atomic::{AtomicUsize, Ordering},
            mpsc,
        },
        time::Duration,
    };

    use futures::future::join_all;
    use tokio::time::timeout;

    use super::*;

    /// Lookups that count what they ask, and never get an answer about names that begin with `silent`. They end with
    /// the returned sender.
    fn with_silent_server() -> (Lookups, &'static AtomicUsize, mpsc::Sender<()>) {
        let (end, ended) = mpsc::channel::<()>();
        let (ended, asked) = (
            Mutex::new(ended),
            &*Box::leak(Box::new(AtomicUsize::new(0))),
        );
        let waiting = Box::leak(Box::new(ended));
        let resolve = move |name: &str| {
            asked.fetch_add(1, Ordering::Relaxed);
            match name {
                "known" => Ok(vec![IpAddr::from([192, 0, 2, 1])]),
                name if name.starts_with("silent") => {
                    let _ = waiting.lock().recv();
                    Err(io::ErrorKind::TimedOut.into())
                }
                "broken" => panic!("the resolver is broken"),
                _ => Err(io::Error::new(io::ErrorKind::NotFound, "no such name")),
            }
        };
        (Lookups::new(Box::leak(Box::new(resolve))), asked, end)
    }

    fn addresses(texts: &[&str]) -> Vec<SocketAddr> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    #[tokio::test]
    async fn addresses_and_localhost_are_known_without_asking() {
        let (lookups, asked, _end) = with_silent_server();
        let loopback = &["127.0.0.1:80", "[::1]:80"][..];
        for (host, expected) in [
            ("127.0.0.2", &["127.0.0.2:80"][..]),
            ("fd00::1", &["[fd00::1]:80"]),
            ("localhost", loopback),
            ("LocalHost.", loopback),
            ("app.localhost", loopback),
        ] {
            let found = lookups.lookup(host, 80).await.unwrap();
            assert_eq!(found, addresses(expected), "{host}");
        }
        assert_eq!(asked.load(Ordering::Relaxed), 0);
        lookups.lookup("notlocalhost", 80).await.unwrap_err();
        lookups.lookup("localhost.example", 80).await.unwrap_err();
        assert_eq!(asked.load(Ordering::Relaxed), 2);
    }

    #[tokio::test]
    async fn silent_name_server_delays_no_other_lookup() {
        let (lookups, _, _end) = with_silent_server();
        for name in ["silent-1", "silent-2", "silent-3"] {
            let lookup = lookups.lookup(name, 80);
            assert!(timeout(Duration::ZERO, lookup).await.is_err());
        }
        let found = lookups.lookup("known", 443).await.unwrap();
        assert_eq!(found, addresses(&["192.0.2.1:443"]));
        let error = lookups.lookup("unknown", 443).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
        assert_eq!(error.to_string(), "no such name");
    }

    #[tokio::test]
    async fn abandoned_lookup_is_shared_with_later_callers() {
        let (lookups, asked, end) = with_silent_server();
        let abandoned = lookups.lookup("silent", 1);
        assert!(timeout(Duration::ZERO, abandoned).await.is_err());
        let both = join_all([lookups.lookup("silent", 1), lookups.lookup("silent", 2)]);
        let ended = async { drop(end) };
        let (both, ()) = tokio::join!(both, ended);
        for answer in both {
            assert_eq!(answer.unwrap_err().kind(), io::ErrorKind::TimedOut);
        }
        assert_eq!(asked.load(Ordering::Relaxed), 1);
    }

    #[tokio::test]
    async fn panic_of_the_resolver_is_an_error() {
        let (lookups, ..) = with_silent_server();
        let error = lookups.lookup("broken", 1).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::Other);
    }

    #[tokio::test]
    async fn number_of_names_is_bounded() {
        let (lookups, _, _end) = with_silent_server();
        for number in 0..MAX_NAMES {
            lookups.begin(&format!("silent-{number}")).unwrap();
        }
        assert!(lookups.begin("silent-0").is_ok());
        let error = lookups.lookup("known", 1).await.unwrap_err();
        assert_eq!(error.to_string(), "too many other names are being resolved");
        assert_eq!(lookups.lookup("localhost", 1).await.unwrap().len(), 2);
    }
}

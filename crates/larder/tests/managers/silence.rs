//! An API server that falls silent without closing anything: what is known of an object counts as proven until its last
//! byte, and the next watch uses another connection. Over the transport, with time paused.

use std::{
    io,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use larder::{ConfigMapManager, Proof, WatchScope};
use larder_apiserver::{ApiServer, User};
use larder_transport::{Config, Connector, Metrics};
use parking_lot::Mutex;
use tempfile::TempDir;
use tokio::{
    io::{AsyncRead, AsyncWrite, DuplexStream, ReadBuf, duplex},
    task::JoinSet,
    time::{Instant, sleep},
};
use tokio_util::sync::CancellationToken;

use crate::{
    cluster::Cluster,
    scripted::{kubeconfig, pod_with, value, watching},
};

/// A connection that can go dead: then nothing arrives on it, and what is sent is lost.
struct Line {
    stream: DuplexStream,
    is_dead: Arc<AtomicBool>,
}

impl AsyncRead for Line {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.is_dead.load(Ordering::Relaxed) {
            return Poll::Pending;
        }
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for Line {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        if self.is_dead.load(Ordering::Relaxed) {
            return Poll::Ready(Ok(bytes.len()));
        }
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

/// A manager that knows object `a`.
struct Node {
    cluster: Cluster,
    manager: ConfigMapManager,
    /// Those that exist are dead.
    dead: Arc<AtomicBool>,
    /// There are no new ones either.
    cut_off: Arc<AtomicBool>,
    _directory: TempDir,
}

impl Node {
    async fn new(config: Config) -> Self {
        let cluster = Cluster::new();
        cluster.set("a", "one", false);
        let (dead, cut_off) = <(Arc<AtomicBool>, Arc<AtomicBool>)>::default();
        let lines = lines(
            cluster.server.clone(),
            Arc::clone(&dead),
            Arc::clone(&cut_off),
        );
        let (directory, source) = kubeconfig("http://localhost:6443", None);
        let config = config.connector(lines);
        let connected = larder_transport::connect(source, config, Metrics::default());
        let manager = watching(WatchScope::Object, connected.await.unwrap().0);
        manager.register_pod(&pod_with("p1", &["a"]));
        assert_eq!(value(&manager, "a").await, "one");
        sleep(Duration::from_secs(35)).await;
        Self {
            cluster,
            manager,
            dead,
            cut_off,
            _directory: directory,
        }
    }

    fn proof(&self) -> Proof {
        self.manager.objects()[0].proof.clone()
    }

    fn age(&self) -> Duration {
        self.manager.objects()[0].age
    }
}

/// New lines are alive, whatever became of those before them, unless the server is cut off.
fn lines(server: ApiServer, dead: Arc<AtomicBool>, cut_off: Arc<AtomicBool>) -> Connector {
    let connections = Arc::new(Mutex::new(JoinSet::new()));
    Connector::new(move |_, _| {
        let (ours, theirs) = duplex(1 << 16);
        let (server, never) = (server.clone(), CancellationToken::new());
        let serve = server.serve_connection(theirs, Some(User::admin()), never);
        connections.lock().spawn(serve);
        let is_later = dead.load(Ordering::Relaxed);
        let is_dead = if is_later {
            Arc::default()
        } else {
            Arc::clone(&dead)
        };
        let is_refused = cut_off.load(Ordering::Relaxed);
        async move {
            let line = Line {
                stream: ours,
                is_dead,
            };
            (!is_refused)
                .then_some(line)
                .ok_or_else(|| io::ErrorKind::ConnectionRefused.into())
        }
    })
}

#[tokio::test(start_paused = true)]
async fn freshness_counts_from_the_last_byte_of_a_server_that_stops() {
    let node = Node::new(Config::default().http2_prior_knowledge(true)).await;
    // The answers to PINGs are proof, although the watch is silent.
    assert!(matches!(node.proof(), Proof::At(_)));
    assert!(node.age() <= Duration::from_secs(10), "{:?}", node.age());
    let stopped = Instant::now();
    node.dead.store(true, Ordering::Relaxed);
    node.cut_off.store(true, Ordering::Relaxed);
    let mut noticed = None;
    for second in 1..60 {
        sleep(Duration::from_secs(1)).await;
        let age = node.age();
        assert!(age >= Duration::from_secs(second), "{second}: {age:?}");
        assert!(age <= Duration::from_secs(second + 10), "{second}: {age:?}");
        if let Proof::Lost { since, .. } = node.proof() {
            noticed.get_or_insert(second);
            assert!(since <= stopped);
        }
    }
    assert!(noticed.unwrap() <= 16, "{noticed:?}");
    let Proof::Lost { failure, .. } = node.proof() else {
        panic!("the server is away");
    };
    assert!(failure.is_some());

    node.cut_off.store(false, Ordering::Relaxed);
    sleep(Duration::from_secs(30)).await;
    assert!(matches!(node.proof(), Proof::At(_)));
    assert!(node.age() <= Duration::from_secs(10));
}

#[tokio::test(start_paused = true)]
async fn silent_watch_without_pings_is_reopened_on_a_new_connection() {
    let node = Node::new(Config::default()).await;
    node.dead.store(true, Ordering::Relaxed);
    node.cluster.set("a", "two", false);
    // The last bookmark may have come a minute before.
    sleep(Duration::from_secs(25)).await;
    assert_eq!(value(&node.manager, "a").await, "one");
    assert!(node.age() >= Duration::from_secs(25), "{:?}", node.age());
    // Half as long again as bookmarks take.
    sleep(Duration::from_secs(70)).await;
    assert_eq!(value(&node.manager, "a").await, "two");
    assert!(matches!(node.proof(), Proof::At(_)));
}

//! A TCP proxy between a client and its API server: a network with faults.

use std::{io, net::SocketAddr};

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream, tcp},
    sync::watch,
    task::JoinSet,
};

/// Forwards connections to an address. Dropping it cuts all of them and stops listening.
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    network: watch::Sender<Network>,
    _serving: JoinSet<()>,
}

/// The state of the network.
#[derive(Clone, Copy, Debug)]
struct Network {
    /// The target of new connections.
    target: SocketAddr,
    /// Counts the cuts; a connection lives as long as its number is the current one.
    cuts: u64,
    /// Nothing passes, and neither side is notified.
    stalled: bool,
}

/// Most bytes that are forwarded at once: less than a frame of HTTP/2, so that a cut falls inside a frame.
const PIECE: usize = 4096;

impl Proxy {
    /// Listens on a free port of loopback.
    ///
    /// # Errors
    ///
    /// There is no free port.
    pub async fn start(target: SocketAddr) -> io::Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let address = listener.local_addr()?;
        let network = watch::Sender::new(Network {
            target,
            cuts: 0,
            stalled: false,
        });
        let mut serving = JoinSet::new();
        serving.spawn(accept(listener, network.subscribe()));
        Ok(Self {
            address,
            network,
            _serving: serving,
        })
    }

    /// The address for clients.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Resets every connection. New ones pass.
    pub fn cut(&self) {
        self.network.send_modify(|network| network.cuts += 1);
    }

    /// Resets every connection, and connects new ones to `target`.
    pub fn lead_to(&self, target: SocketAddr) {
        self.network.send_modify(|network| {
            network.target = target;
            network.cuts += 1;
        });
    }

    /// Blocks all bytes, or lets them pass again. None are lost: TCP holds them.
    pub fn stall(&self, stalled: bool) {
        self.network
            .send_modify(|network| network.stalled = stalled);
    }
}

async fn accept(listener: TcpListener, network: watch::Receiver<Network>) {
    let mut connections = JoinSet::new();
    loop {
        // Both arms are cancel-safe.
        tokio::select! {
            Ok((client, _)) = listener.accept() => {
                connections.spawn(connection(client, network.clone()));
            }
            Some(_) = connections.join_next() => {}
        }
    }
}

/// Forwards until either side ends, or the network is cut.
async fn connection(client: TcpStream, mut network: watch::Receiver<Network>) {
    let Network { target, cuts, .. } = *network.borrow_and_update();
    // Without a server behind the proxy, the reset informs the client.
    let Ok(server) = TcpStream::connect(target).await else {
        return reset(client);
    };
    let (mut client, mut server) = (client, server);
    for stream in [&client, &server] {
        // Without it changes would wait for each other; the next read reports a failure.
        let _ = stream.set_nodelay(true);
    }
    {
        let (from_client, to_client) = client.split();
        let (from_server, to_server) = server.split();
        let mut watched = network.clone();
        tokio::select! {
            () = forward(from_client, to_server, network.clone()) => {}
            () = forward(from_server, to_client, network) => {}
            _ = watched.wait_for(|network| network.cuts != cuts) => {}
        }
    }
    reset(client);
    reset(server);
}

async fn forward(
    mut from: tcp::ReadHalf<'_>,
    mut to: tcp::WriteHalf<'_>,
    mut network: watch::Receiver<Network>,
) {
    let mut buffer = vec![0; PIECE];
    loop {
        let Ok(length @ 1..) = from.read(&mut buffer).await else {
            return;
        };
        if network.wait_for(|network| !network.stalled).await.is_err()
            || to.write_all(&buffer[..length]).await.is_err()
        {
            return;
        }
    }
}

/// Ends a connection like a machine that has lost it: with RST, discarding unsent bytes.
fn reset(stream: TcpStream) {
    // Without lingering there is a FIN instead, which ends the connection as well.
    let _ = stream.set_zero_linger();
}

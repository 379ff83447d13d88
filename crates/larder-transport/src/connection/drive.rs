//! Driving an HTTP/2 connection: its frames, its stream limit, and PINGs.

use std::{
    future::{Future as _, pending, poll_fn},
    pin::{Pin, pin},
    sync::Arc,
    task::Poll,
    time::Duration,
};

use bytes::Bytes;
use larder_net::io::{Io, Received, Stream};
use tokio::time::{Instant, sleep, sleep_until};

use super::Connection;
use crate::StreamError;

/// Time for reading what came before a peer is declared dead.
const LAST_LOOK: Duration = Duration::from_millis(10);

/// How a dead peer is noticed.
#[derive(Clone, Copy)]
pub(super) struct KeepAlive {
    /// The silence before a PING.
    pub(super) interval: Duration,
    /// The longest silence after it.
    pub(super) timeout: Duration,
}

/// Runs the connection until it ends, or until the peer is dead.
pub(super) async fn http2(
    connection: Arc<Connection>,
    mut driver: Box<h2::client::Connection<Io<Box<dyn Stream>>, Bytes>>,
    mut probe: h2::client::SendRequest<Bytes>,
    keep_alive: KeepAlive,
    most: usize,
) {
    let ping = driver.ping_pong().expect("it is taken once, here");
    let shared = Arc::clone(&connection);
    let drive = poll_fn(move |cx| {
        let result = Pin::new(&mut driver).poll(cx);
        shared.set_limit(driver.max_concurrent_send_streams().min(most));
        // Fails as soon as a GOAWAY arrives, while the streams that it spares continue.
        if result.is_pending()
            && let Poll::Ready(Err(error)) = probe.poll_ready(cx)
            && shared.close()
        {
            shared.metrics.go_aways.inc();
            let error = StreamError::of_http2(error);
            tracing::debug!(%error, id = shared.id, "connection takes no more requests");
        }
        result
    });
    tokio::select! {
        biased;
        result = drive => if let Err(error) = result {
            let error = StreamError::of_http2(error);
            tracing::debug!(%error, id = connection.id, "HTTP/2 connection ended");
        },
        () = until_dead(ping, connection.received.clone(), keep_alive) => {
            connection.died(keep_alive.timeout);
            tracing::warn!(
                server = %connection.server,
                waited = ?keep_alive.timeout,
                "API server does not answer a PING, closing the connection"
            );
        }
    }
    connection.close();
}

/// Sends a PING whenever nothing has arrived for the interval. Ends when nothing arrives for the timeout after that.
///
/// On a slow line, megabytes may precede the answer, so every byte counts as a sign of life.
async fn until_dead(
    mut ping: h2::PingPong,
    received: Received,
    KeepAlive { interval, timeout }: KeepAlive,
) {
    loop {
        while let due = received.last() + interval
            && Instant::now() < due
        {
            sleep_until(due).await;
        }
        let mut seen = received.bytes();
        let mut answer = pin!(ping.ping(h2::Ping::opaque()));
        loop {
            match tokio::time::timeout(timeout, answer.as_mut()).await {
                Ok(Ok(_)) => break,
                // The connection is ending, and its driver reports why.
                Ok(Err(_)) => pending().await,
                Err(_) => {
                    // This process may have slept, and what has come meanwhile is read now.
                    sleep(LAST_LOOK).await;
                    if received.bytes() == seen {
                        return;
                    }
                    seen = received.bytes();
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use http::{Request, Response};
    use tokio::sync::Notify;

    use super::*;
    use crate::{
        Config, Error, Lane, Metrics,
        dial::{NewConnection, start_http2},
    };

    #[tokio::test(start_paused = true)]
    async fn a_watch_on_a_dead_peer_ends_within_15_seconds() {
        let (ours, theirs) = tokio::io::duplex(1 << 16);
        // The peer answers the watch, sends one event and falls silent without closing anything.
        let peer = async {
            let mut connection = h2::server::handshake(theirs).await.unwrap();
            let accepted = connection.accept().await.unwrap();
            let (_request, mut respond) = accepted.unwrap();
            let mut body = respond.send_response(Response::new(()), false).unwrap();
            body.send_data(Bytes::from_static(b"event"), false).unwrap();
            let sent = poll_fn(|cx| connection.poll_closed(cx));
            tokio::select! {
                _ = sent => panic!("the client has closed"),
                () = sleep(Duration::from_millis(1)) => {}
            }
            (connection, body)
        };
        let config = Config::default();
        let watch = async {
            let dialed = start_http2(Box::new(ours), &config, Lane::Watch);
            let dialed = dialed.await.map_err(|error| error.to_string()).unwrap();
            let (connection, driver) = Connection::start(
                1,
                Lane::Watch,
                "server".into(),
                NewConnection {
                    dialed,
                    handshake: 0,
                },
                &config,
                Arc::new(Notify::new()),
                Metrics::default(),
            );
            let slot = connection.reserve().unwrap();
            let (head, ()) = Request::get("https://server/w?watch=true")
                .body(())
                .unwrap()
                .into_parts();
            let reading = async {
                let response = slot.send(&head, Bytes::new(), 0).await.unwrap();
                let mut body = response.into_body();
                let event = http_body_util::BodyExt::frame(&mut body).await.unwrap();
                assert_eq!(event.unwrap().into_data().unwrap(), "event");
                let last_heard = Instant::now();
                let end = http_body_util::BodyExt::frame(&mut body).await.unwrap();
                (end.unwrap_err(), last_heard.elapsed())
            };
            tokio::join!(reading, driver).0
        };
        let ((error, waited), _dead) = tokio::join!(watch, peer);
        assert!(matches!(error, Error::Dead { .. }), "{error}");
        assert_eq!(waited.as_secs(), 15);
    }

    #[tokio::test(start_paused = true)]
    async fn only_silence_after_a_ping_makes_a_peer_dead() {
        let (ours, _theirs) = tokio::io::duplex(1 << 16);
        let (_sender, mut driver) = h2::client::handshake(ours).await.unwrap();
        let ping = driver.ping_pong().unwrap();
        let received = Received::default();
        let busy_line = async {
            for _ in 0..10 {
                sleep(Duration::from_secs(10)).await;
                received.add(1, Instant::now());
            }
            pending::<()>().await;
        };
        let start = Instant::now();
        let keep_alive = KeepAlive {
            interval: Duration::from_secs(30),
            timeout: Duration::from_secs(15),
        };
        tokio::select! {
            () = busy_line => unreachable!("it never ends"),
            _ = driver => panic!("the connection ended"),
            () = until_dead(ping, received.clone(), keep_alive) => {}
        }
        // Last byte at 100 s, PING at 130 s.
        assert_eq!(start.elapsed().as_secs(), 145);
    }
}

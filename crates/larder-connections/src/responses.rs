//! Counts requests in flight, and detects clients that read no data.

use std::{
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use http::{Request, Response, StatusCode};
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use tokio::time::Instant;
use tower_service::Service;

use crate::activity::Activity;

/// Counts the requests in flight of a connection.
#[derive(Clone, Debug)]
pub(crate) struct Counted<S> {
    pub(crate) service: S,
    pub(crate) activity: Arc<Activity>,
}

/// One request in flight.
#[derive(Debug)]
struct InFlight(Arc<Activity>);

impl InFlight {
    fn begin(activity: Arc<Activity>) -> Self {
        activity.update(|state| state.in_flight += 1);
        Self(activity)
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.update(|state| state.in_flight -= 1);
    }
}

impl<S, B> Service<Request<Incoming>> for Counted<S>
where
    S: Service<Request<Incoming>, Response = Response<B>>,
    S::Future: Send + 'static,
{
    type Response = Response<CountedBody<B>>;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.service.poll_ready(context)
    }

    fn call(&mut self, request: Request<Incoming>) -> Self::Future {
        let in_flight = InFlight::begin(self.activity.clone());
        let answer = self.service.call(request);
        Box::pin(async move {
            let response = answer.await?;
            let known = response.status() != StatusCode::UNAUTHORIZED;
            if known {
                in_flight.0.update(|state| state.is_authenticated = true);
            }
            let activity = Arc::clone(&in_flight.0);
            // Only a known client keeps its connection by not reading.
            let in_flight = known.then_some(in_flight);
            Ok(response.map(|body| CountedBody {
                body: Box::pin(body),
                stall: Stall::begin(activity),
                _in_flight: in_flight,
            }))
        })
    }
}

/// The body of a response. Its request is in flight until it is dropped.
#[derive(Debug)]
pub(crate) struct CountedBody<B> {
    body: Pin<Box<B>>,
    stall: Stall,
    _in_flight: Option<InFlight>,
}

/// One response among the activity's bodies.
#[derive(Debug)]
struct Stall {
    activity: Arc<Activity>,
    number: u64,
}

impl Stall {
    /// A response of which nothing is taken yet.
    fn begin(activity: Arc<Activity>) -> Self {
        let mut bodies = activity.bodies.lock();
        let number = bodies.next;
        bodies.next += 1;
        bodies.stalled.insert(number, Instant::now());
        drop(bodies);
        Self { activity, number }
    }

    /// Notes whether the response waits for the client from now on.
    fn set(&self, is_stalled: bool) {
        let mut bodies = self.activity.bodies.lock();
        if is_stalled {
            bodies.stalled.insert(self.number, Instant::now());
        } else {
            bodies.stalled.remove(&self.number);
        }
    }
}

impl Drop for Stall {
    fn drop(&mut self) {
        self.set(false);
    }
}

impl<B: Body> Body for CountedBody<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        let frame = self.body.as_mut().poll_frame(context);
        // It is polled for the next frame once the connection has room for it; without one it waits for the server.
        self.stall.set(frame.is_ready());
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

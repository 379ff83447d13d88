//! Frames of a watch. The body comes in the pieces that line feeds make.

use std::convert::Infallible;

use bytes::Bytes;
use futures::stream;
use http::{Request, Response};
use http_body::Frame;
use http_body_util::StreamBody;
use kube::{Client, client::Body};
use larder_objects::{ObjectKey, Secret};
use larder_watch::{ByName, fuzzing};
use tower::service_fn;

use crate::block_on;

/// A client whose requests are all answered with `body`.
pub(crate) fn answering(body: &[u8]) -> Client {
    let pieces = body.split_inclusive(|byte| *byte == b'\n');
    let pieces: Vec<_> = pieces.map(Bytes::copy_from_slice).collect();
    let answer = move |_: Request<Body>| {
        let pieces = pieces.clone().into_iter();
        let frames = pieces.map(|piece| Ok::<_, Infallible>(Frame::data(piece)));
        let body = StreamBody::new(stream::iter(frames));
        async { Ok::<_, Infallible>(Response::new(body)) }
    };
    Client::new(service_fn(answer), "default")
}

/// Reads an input; `None` if no frame of it is readable.
pub fn run(input: &[u8]) -> Option<()> {
    block_on(async {
        let target = ByName::<Secret>::new(ObjectKey::new("n", "a"));
        let mut is_accepted = false;
        let read = fuzzing::watch(answering(input), target, |event| {
            is_accepted |= event.is_ok();
            if let Ok(Some(secret)) = event {
                assert_eq!(secret.metadata.name, "a");
            }
        });
        // An error is as good an end as any.
        let _ = read.await;
        is_accepted.then_some(())
    })
}

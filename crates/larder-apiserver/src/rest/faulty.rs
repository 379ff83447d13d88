//! Carries out the faults that tests inject: on requests, and on the bodies of their answers.

use std::{
    future::pending,
    task::{Context, Poll},
};

use bytes::Bytes;
use http::{Request, Response};
use http_body::Frame;

use super::{
    Asked,
    body::{Body, Content},
    message::error_response,
};
use crate::{
    ApiServer, BoxError, User,
    authorize::Attempt,
    cut::Cut,
    faults::{Effect, StreamFault, Struck},
    request::{ResourcePath, Route},
    selector::FieldSelector,
    unread::Pieces,
};

impl Asked<'_> {
    /// The objects that it is about; `None` if it is about something else.
    fn target(&self) -> Option<&ResourcePath> {
        match &self.route {
            Ok(Route::Objects(target)) => Some(target),
            _ => None,
        }
    }
}

impl ApiServer {
    /// Answers one request, unless a fault strikes it.
    ///
    /// # Errors
    ///
    /// A fault breaks the connection.
    pub(crate) async fn answer_or_fail(
        &self,
        user: Option<User>,
        request: Request<impl http_body::Body<Data: Send, Error: Into<BoxError>> + Send>,
    ) -> Result<Response<Body>, Cut> {
        let (parts, body) = request.into_parts();
        let asked = self.asked(&parts);
        let effect = self.strike(user.as_ref(), &asked);
        let record = |status: u16| self.record(asked.recorded(), &parts, status);
        match effect {
            Some(Effect::Silence) => {
                record(0);
                pending().await
            }
            Some(Effect::Drop) => {
                record(0);
                Err(Cut)
            }
            Some(Effect::Reject(error)) => {
                record(error.code().as_u16());
                Ok(error_response(&error))
            }
            Some(Effect::Delay(delay)) => {
                tokio::time::sleep(delay).await;
                Ok(self.answer(user, Request::from_parts(parts, body)).await)
            }
            Some(Effect::Stream(fault)) => {
                let mut response = self.answer(user, Request::from_parts(parts, body)).await;
                response.body_mut().fault = Some(fault);
                Ok(response)
            }
            Some(Effect::Nothing) | None => {
                Ok(self.answer(user, Request::from_parts(parts, body)).await)
            }
        }
    }

    /// The fault that concerns a request.
    fn strike(&self, user: Option<&User>, asked: &Asked<'_>) -> Option<Effect> {
        let target = asked.target();
        let selector = target.and_then(|target| {
            let selector = asked.query.get("fieldSelector")?;
            FieldSelector::parse(selector, target.kind.resource()).ok()
        });
        let attempt = Attempt::new(asked.recorded(), target, selector.as_ref());
        let streaming_list = asked.query.flag("sendInitialEvents");
        self.faults().strike(user, &attempt, streaming_list)
    }
}

impl Body {
    /// The next frame of a body that goes wrong.
    pub(super) fn poll_faulty(
        &mut self,
        mut fault: StreamFault,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Cut>>> {
        let pieces = if fault.is_due() {
            Pieces::new()
        } else {
            match self.poll_content(context) {
                Poll::Ready(Some(pieces)) => pieces?,
                Poll::Ready(None) => return Poll::Ready(None),
                Poll::Pending => {
                    self.fault = Some(fault);
                    return Poll::Pending;
                }
            }
        };
        Poll::Ready(match fault.strike(joined(pieces)) {
            Struck::Pass(frame) => {
                self.fault = Some(fault);
                Some(Ok(Frame::data(frame)))
            }
            Struck::Last(frame) => {
                self.content = Content::ENDED;
                (!frame.is_empty()).then_some(Ok(Frame::data(frame)))
            }
            Struck::Cut => {
                self.content = Content::ENDED;
                Some(Err(Cut))
            }
        })
    }
}

/// The text in one piece.
fn joined(pieces: Pieces) -> Bytes {
    match Vec::from(pieces).as_slice() {
        [whole] => whole.clone(),
        pieces => pieces.concat().into(),
    }
}

//! Bodies of responses.

use std::{
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http_body::{Frame, SizeHint};

use super::watch::WatchStream;
use crate::{
    faults::{Cut, StreamFault, Struck},
    versions,
};

/// The body of a response: whole, or the stream of a watch.
#[derive(Debug)]
pub struct Body {
    content: Content,
    fault: Option<StreamFault>,
    /// Its JSON is of the stored version and sent as `v1`.
    stable: bool,
}

#[derive(Debug)]
enum Content {
    Whole(Bytes),
    Watch(Box<WatchStream>),
    Ended,
}

impl Body {
    pub(crate) fn watch(stream: WatchStream) -> Self {
        Self {
            content: Content::Watch(Box::new(stream)),
            fault: None,
            stable: false,
        }
    }

    /// The same body, gone wrong.
    pub(crate) fn with_fault(mut self, fault: StreamFault) -> Self {
        self.fault = Some(fault);
        self
    }

    /// The same body with objects in `v1` of their group.
    pub(super) fn stable(mut self) -> Self {
        if let Content::Whole(bytes) = &mut self.content {
            // Here, since a response states its length.
            *bytes = versions::stable(std::mem::take(bytes));
        }
        self.stable = true;
        self
    }

    fn poll_content(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Bytes, Cut>>> {
        match &mut self.content {
            Content::Ended => Poll::Ready(None),
            Content::Watch(stream) => {
                let frame = ready!(stream.poll_next(context));
                let stable = self.stable;
                Poll::Ready(frame.map(|frame| {
                    frame.map(|frame| {
                        if stable {
                            versions::stable(frame)
                        } else {
                            frame
                        }
                    })
                }))
            }
            Content::Whole(bytes) => {
                let bytes = std::mem::take(bytes);
                self.content = Content::Ended;
                Poll::Ready((!bytes.is_empty()).then_some(Ok(bytes)))
            }
        }
    }
}

impl From<Bytes> for Body {
    fn from(bytes: Bytes) -> Self {
        Self {
            content: Content::Whole(bytes),
            fault: None,
            stable: false,
        }
    }
}

impl http_body::Body for Body {
    type Data = Bytes;
    type Error = Cut;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Cut>>> {
        let frame = if self.fault.as_ref().is_some_and(StreamFault::is_due) {
            Bytes::new()
        } else {
            match ready!(self.poll_content(context)) {
                None => return Poll::Ready(None),
                Some(frame) => frame?,
            }
        };
        let struck = match &mut self.fault {
            None => Struck::Pass(frame),
            Some(fault) => fault.strike(frame),
        };
        Poll::Ready(match struck {
            Struck::Pass(frame) => Some(Ok(Frame::data(frame))),
            Struck::Last(frame) => {
                self.content = Content::Ended;
                self.fault = None;
                (!frame.is_empty()).then_some(Ok(Frame::data(frame)))
            }
            Struck::Cut => {
                self.content = Content::Ended;
                Some(Err(Cut))
            }
        })
    }

    fn is_end_stream(&self) -> bool {
        match &self.content {
            Content::Whole(bytes) => bytes.is_empty(),
            Content::Watch(_) => false,
            Content::Ended => true,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.content {
            Content::Whole(bytes) => SizeHint::with_exact(bytes.len() as u64),
            Content::Watch(_) => SizeHint::default(),
            Content::Ended => SizeHint::with_exact(0),
        }
    }
}

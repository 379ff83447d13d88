//! Bodies of responses.

use std::{
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http_body::{Frame, SizeHint};

use super::{list::ListBody, watch::WatchStream};
use crate::{
    ApiError,
    cut::Cut,
    unread::{Pieces, Unread},
    versions,
};

/// The body of a response: whole, a list, or the stream of a watch.
#[derive(Debug)]
pub struct Body {
    pub(super) content: Content,
    /// What is left of the last frame.
    pieces: Pieces,
    /// How it goes wrong.
    #[cfg(feature = "faults")]
    pub(super) fault: Option<crate::faults::StreamFault>,
    /// The next frame is to be of `v1` of its group, and not of the version that is stored.
    pub(super) stable: bool,
}

#[derive(Debug)]
pub(super) enum Content {
    Whole(Bytes),
    List(ListBody),
    Watch(Box<WatchStream>),
}

impl Content {
    #[cfg(feature = "faults")]
    pub(super) const ENDED: Self = Self::Whole(Bytes::new());
}

impl Body {
    fn new(content: Content) -> Self {
        Self {
            content,
            pieces: Pieces::new(),
            #[cfg(feature = "faults")]
            fault: None,
            stable: false,
        }
    }

    pub(super) fn watch(stream: WatchStream) -> Self {
        Self::new(Content::Watch(Box::new(stream)))
    }

    /// The same body, whose memory counts until the client has read it.
    ///
    /// # Errors
    ///
    /// As [`Unread::share`].
    pub(super) fn counted(mut self, unread: &Unread) -> Result<Self, ApiError> {
        match &mut self.content {
            Content::Whole(bytes) => *bytes = unread.hold(std::mem::take(bytes))?,
            Content::List(list) => list.count(unread)?,
            Content::Watch(stream) => stream.count(unread)?,
        }
        Ok(self)
    }

    /// How many bytes of the content are left, if that is known.
    fn left(&self) -> Option<usize> {
        match &self.content {
            Content::Whole(bytes) => Some(bytes.len()),
            Content::List(list) => Some(list.left),
            Content::Watch(_) => None,
        }
    }

    /// The next frame, in pieces.
    pub(super) fn poll_content(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Pieces, Cut>>> {
        let pieces = match &mut self.content {
            Content::Watch(stream) => match ready!(stream.poll_next(context)) {
                Some(Ok(pieces)) => pieces,
                ended => return Poll::Ready(ended),
            },
            Content::List(list) => list.next(),
            Content::Whole(bytes) => Pieces::from([std::mem::take(bytes)]),
        };
        let pieces = if self.stable {
            pieces.into_iter().flat_map(versions::stable).collect()
        } else {
            pieces
        };
        // Each event of a watch says its version, and of anything else the beginning.
        self.stable &= matches!(self.content, Content::Watch(_));
        let has_text = pieces.iter().any(|piece| !piece.is_empty());
        Poll::Ready(has_text.then_some(Ok(pieces)))
    }
}

impl From<Bytes> for Body {
    fn from(bytes: Bytes) -> Self {
        Self::new(Content::Whole(bytes))
    }
}

impl From<ListBody> for Body {
    fn from(list: ListBody) -> Self {
        Self::new(Content::List(list))
    }
}

impl http_body::Body for Body {
    type Data = Bytes;
    type Error = Cut;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Cut>>> {
        while let Some(piece) = self.pieces.pop_front() {
            if !piece.is_empty() {
                return Poll::Ready(Some(Ok(Frame::data(piece))));
            }
        }
        #[cfg(feature = "faults")]
        if let Some(fault) = self.fault.take() {
            return self.poll_faulty(fault, context);
        }
        match ready!(self.poll_content(context)) {
            None => Poll::Ready(None),
            Some(pieces) => {
                self.pieces = pieces?;
                self.poll_frame(context)
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.pieces.is_empty() && self.left() == Some(0)
    }

    fn size_hint(&self) -> SizeHint {
        let pieces = self.pieces.iter().map(Bytes::len).sum::<usize>();
        match self.left().filter(|_| !self.stable) {
            Some(left) => SizeHint::with_exact((left + pieces) as u64),
            None => SizeHint::default(),
        }
    }
}

//! Bounds the memory that waits for clients: of responses that they have not read, and of bodies that they have not
//! finished.
//!
//! Lists and events of whole objects share the bytes of the store. Everything else that a response holds counts here,
//! until the client has read it: documents that are made for one client, and references to the objects of a list.
//! Bodies count apart, so that neither kind of client keeps the other waiting.

use std::{collections::VecDeque, sync::Arc};

use bytes::Bytes;
use http::StatusCode;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::ApiError;

/// Bytes that unread responses of a server may take, and unfinished bodies. The table of a thousand pods takes 2 MiB.
const MAX_UNREAD: u32 = 64 << 20;

/// Parts of a text that follow each other.
pub(crate) type Pieces = VecDeque<Bytes>;

/// The memory that is left. Cloning shares it.
#[derive(Clone, Debug)]
pub(crate) struct Unread {
    left: Arc<Semaphore>,
    /// Why there is none.
    exhausted: &'static str,
}

/// A share of the memory, until it is dropped.
pub(crate) type Share = OwnedSemaphorePermit;

/// A text with its share.
struct Held {
    text: Bytes,
    _share: Share,
}

impl AsRef<[u8]> for Held {
    fn as_ref(&self) -> &[u8] {
        &self.text
    }
}

impl Unread {
    /// A bound; `exhausted` is what its error says.
    pub(crate) fn new(exhausted: &'static str) -> Self {
        let left = Arc::new(Semaphore::new(MAX_UNREAD as usize));
        Self { left, exhausted }
    }

    /// A share of this many bytes. What is larger than all shares together gets all of them.
    ///
    /// # Errors
    ///
    /// 429: clients do not read what they have requested, or do not finish what they send.
    pub(crate) fn share(&self, bytes: usize) -> Result<Share, ApiError> {
        let bytes = u32::try_from(bytes).map_or(MAX_UNREAD, |bytes| bytes.min(MAX_UNREAD));
        Arc::clone(&self.left)
            .try_acquire_many_owned(bytes)
            .map_err(|_| {
                let code = StatusCode::TOO_MANY_REQUESTS;
                ApiError::new(code, "TooManyRequests", self.exhausted).with_retry_after(1)
            })
    }

    /// `text`, which counts until it is dropped, unless the store has it, too.
    ///
    /// # Errors
    ///
    /// As [`Self::share`].
    pub(crate) fn hold(&self, text: Bytes) -> Result<Bytes, ApiError> {
        if text.is_unique() {
            let share = self.share(text.len())?;
            return Ok(held(text, share));
        }
        Ok(text)
    }
}

/// `text`, whose share ends with it.
pub(crate) fn held(text: Bytes, share: Share) -> Bytes {
    Bytes::from_owner(Held {
        text,
        _share: share,
    })
}

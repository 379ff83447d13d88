//! Bounds the memory of responses that clients have not read.
//!
//! Lists and events of whole objects share the bytes of the store. Everything else that a response holds counts here,
//! until the client has read it: documents that are made for one client, and references to the objects of a list.

use std::{collections::VecDeque, sync::Arc};

use bytes::Bytes;
use http::StatusCode;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::ApiError;

/// Bytes that unread responses of a server may take. The table of a thousand pods takes 2 MiB.
const MAX_UNREAD: u32 = 64 << 20;

/// Parts of a text that follow each other.
pub(crate) type Pieces = VecDeque<Bytes>;

/// The memory that is left for responses. Cloning shares it.
#[derive(Clone, Debug)]
pub(crate) struct Unread(Arc<Semaphore>);

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
    pub(crate) fn new() -> Self {
        Self(Arc::new(Semaphore::new(MAX_UNREAD as usize)))
    }

    /// A share of this many bytes. What is larger than all shares together gets all of them.
    ///
    /// # Errors
    ///
    /// 429: clients do not read what they have requested.
    pub(crate) fn share(&self, bytes: usize) -> Result<Share, ApiError> {
        let bytes = u32::try_from(bytes).map_or(MAX_UNREAD, |bytes| bytes.min(MAX_UNREAD));
        let share = Arc::clone(&self.0).try_acquire_many_owned(bytes);
        share.map_err(|_| {
            let message = "too many responses that clients have not read";
            ApiError::new(StatusCode::TOO_MANY_REQUESTS, "TooManyRequests", message)
                .with_retry_after(1)
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
            return Ok(Bytes::from_owner(Held {
                text,
                _share: share,
            }));
        }
        Ok(text)
    }
}

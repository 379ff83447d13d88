//! Large responses, for clients that may not read them.
//!
//! Invariants:
//! 1. Clients share one document for a moment, so that requests without end cost no more than ten documents a second,
//!    unless pods change.
//! 2. Unread documents take at most [`MAX_UNREAD`] bytes, unless there is only one. While there is no room for another
//!    one, none is built.

use std::{sync::Arc, time::Duration};

use axum::{
    http::{StatusCode, header},
    response::{IntoResponse, Response},
};
use bytes::Bytes;
use parking_lot::Mutex;
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    task::JoinSet,
    time::{Instant, sleep},
};

/// Bytes of documents that clients of the socket, and those of all other listeners, may leave unread. The status of a full
/// node has some 330 KiB.
const MAX_UNREAD: u32 = 8 << 20;
/// Time for which a document is shared, unless the status of a pod changes.
const SHARED_FOR: Duration = Duration::from_millis(100);

/// Room for unread documents. Cloning shares it.
pub(super) fn budget() -> Arc<Semaphore> {
    Arc::new(Semaphore::new(MAX_UNREAD as usize))
}

/// One kind of documents. Cloning shares it.
#[derive(Clone, Debug)]
pub(super) struct Documents {
    budget: Arc<Semaphore>,
    latest: Arc<Mutex<Latest>>,
}

#[derive(Debug)]
struct Latest {
    /// Kept for [`SHARED_FOR`]; a full node's is a twentieth of the agent's memory.
    document: Option<Bytes>,
    /// Its share of the budget; the next one takes about as much.
    bytes: u32,
    built: Instant,
    sequence: u64,
    /// Drops the document after [`SHARED_FOR`].
    _end: JoinSet<()>,
}

#[derive(Debug)]
struct Document {
    text: Vec<u8>,
    /// Its share of the budget.
    _unread: OwnedSemaphorePermit,
}

impl AsRef<[u8]> for Document {
    fn as_ref(&self) -> &[u8] {
        &self.text
    }
}

impl Documents {
    /// Documents whose unread bytes count towards `budget`.
    pub(super) fn new(budget: &Arc<Semaphore>) -> Self {
        let latest = Latest {
            document: None,
            bytes: 1,
            built: Instant::now(),
            sequence: 0,
            _end: JoinSet::new(),
        };
        Self {
            budget: Arc::clone(budget),
            latest: Arc::new(Mutex::new(latest)),
        }
    }

    /// The document of the pods' change `sequence`, which `build` builds unless it is shared. 503 while clients do not
    /// read what they have asked for.
    pub(super) fn answer(
        &self,
        sequence: u64,
        media_type: &'static str,
        build: impl FnOnce() -> Vec<u8>,
    ) -> Response {
        let Some(document) = self.document(sequence, build) else {
            let text = "too many clients do not read their answers\n";
            return (StatusCode::SERVICE_UNAVAILABLE, text).into_response();
        };
        let kind = [(header::CONTENT_TYPE, media_type)];
        (kind, document).into_response()
    }

    fn document(&self, sequence: u64, build: impl FnOnce() -> Vec<u8>) -> Option<Bytes> {
        // Held while one is built, so that all who ask meanwhile share it.
        let mut latest = self.latest.lock();
        if latest.sequence == sequence
            && latest.built.elapsed() < SHARED_FOR
            && let Some(document) = &latest.document
        {
            return Some(document.clone());
        }
        latest.document = None;
        if self.budget.available_permits() < latest.bytes as usize {
            return None;
        }
        let text = build();
        let bytes = u32::try_from(text.len()).map_or(MAX_UNREAD, |bytes| bytes.min(MAX_UNREAD));
        let unread = Arc::clone(&self.budget)
            .try_acquire_many_owned(bytes)
            .ok()?;
        let document = Bytes::from_owner(Document {
            text,
            _unread: unread,
        });
        let shared = Arc::clone(&self.latest);
        let now = Instant::now();
        let mut end = JoinSet::new();
        end.spawn(async move {
            sleep(SHARED_FOR).await;
            let mut latest = shared.lock();
            // Otherwise it is a later one, which has a task of its own.
            if latest.built.elapsed() >= SHARED_FOR {
                latest.document = None;
            }
        });
        *latest = Latest {
            document: Some(document.clone()),
            bytes,
            built: now,
            sequence,
            _end: end,
        };
        Some(document)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn clients_that_do_not_read_share_one_document() {
        let documents = Documents::new(&budget());
        let first = documents.document(1, || vec![b'x'; 1000]).unwrap();
        for _ in 0..4000 {
            let other = documents
                .document(1, || unreachable!("it is shared"))
                .unwrap();
            assert_eq!(first.as_ptr(), other.as_ptr());
        }
        // Also after its readers are gone.
        drop(first);
        documents
            .document(1, || unreachable!("it is shared"))
            .unwrap();
        // A document of another change is another one; so is a later one of the same change.
        assert_eq!(documents.document(2, || b"2".to_vec()).unwrap(), "2");
        tokio::time::advance(SHARED_FOR).await;
        assert_eq!(documents.document(2, || b"3".to_vec()).unwrap(), "3");
        // Nothing is kept for clients that do not come.
        tokio::time::sleep(2 * SHARED_FOR).await;
        assert!(documents.latest.lock().document.is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn unread_documents_of_one_kind_leave_no_room_for_another() {
        let budget = budget();
        let [status, metrics] = [(); 2].map(|()| Documents::new(&budget));
        let all = status.document(1, || vec![b'x'; MAX_UNREAD as usize]);
        assert!(metrics.document(1, || b"1".to_vec()).is_none());
        drop(all);
        tokio::time::sleep(2 * SHARED_FOR).await;
        assert!(metrics.document(1, || b"1".to_vec()).is_some());
    }

    #[tokio::test]
    async fn unread_documents_are_bounded_and_read_ones_make_room() {
        let documents = Documents::new(&budget());
        let quarter = || vec![b'x'; MAX_UNREAD as usize / 4];
        let mut unread: Vec<_> = (0..4)
            .map(|sequence| documents.document(sequence, quarter).unwrap())
            .collect();
        let not_built = || unreachable!("there is no room for it");
        assert!(documents.document(5, not_built).is_none());
        unread.pop();
        assert!(documents.document(6, quarter).is_some());
        unread.clear();
        // One that is larger than the bound is served alone.
        let large = documents.document(7, || vec![b'x'; MAX_UNREAD as usize * 2]);
        assert!(large.is_some());
        assert!(documents.document(8, || b"8".to_vec()).is_none());
    }
}

//! The body of a list of whole objects: made piece by piece, from the bytes of the store.
//!
//! Invariant: until the client takes it, a body holds one reference for each object, and no copy of any.

use std::{sync::Arc, vec};

use bytes::Bytes;

use super::{params::ListParams, read};
use crate::{
    ApiError,
    object::Object,
    resource::ApiKind,
    store::Page,
    unread::{Pieces, Share, Unread},
};

/// Smaller items are joined up to this length.
const JOINED: usize = 8 << 10;
const CLOSING: &[u8] = b"]}";

/// A list of objects that is yet to be sent.
#[derive(Debug)]
pub(super) struct ListBody {
    /// What comes before the next item: the head of the list at first.
    before: Bytes,
    objects: vec::IntoIter<Arc<Object>>,
    /// Bytes that are left.
    pub(super) left: usize,
    share: Option<Share>,
}

impl ListBody {
    /// The list object of `page`. Its items say neither kind nor version, as those of kube-apiserver.
    pub(super) fn new(kind: ApiKind, page: Page, params: &ListParams) -> Self {
        let resource = kind.resource();
        let head = format!(
            r#"{{"kind":"{}List","apiVersion":"{}","metadata":{},"items":[{{"#,
            resource.name,
            resource.api_version(),
            read::list_metadata(&page, params),
        );
        let mut before = Bytes::from(head);
        if page.objects.is_empty() {
            before.truncate(before.len() - "{".len());
        }
        let items = page.objects.iter().map(|object| object.item().len());
        let between = page.objects.len().saturating_sub(1) * ",{".len();
        Self {
            left: before.len() + items.sum::<usize>() + between + CLOSING.len(),
            before,
            objects: page.objects.into_iter(),
            share: None,
        }
    }

    /// Counts what it holds, and what its next piece will.
    ///
    /// # Errors
    ///
    /// As [`Unread::share`].
    pub(super) fn count(&mut self, unread: &Unread) -> Result<(), ApiError> {
        let held = size_of_val(self.objects.as_slice()) + JOINED;
        self.share = Some(unread.share(held.min(self.left))?);
        Ok(())
    }

    /// The next pieces; none at the end.
    pub(super) fn next(&mut self) -> Pieces {
        let mut pieces = Pieces::new();
        if self.left == 0 {
            return pieces;
        }
        let mut text = Vec::new();
        loop {
            text.extend_from_slice(&std::mem::take(&mut self.before));
            let Some(object) = self.objects.next() else {
                text.extend_from_slice(CLOSING);
                pieces.push_back(text.into());
                break;
            };
            let is_last = self.objects.as_slice().is_empty();
            self.before = Bytes::from_static(if is_last { b"" } else { b",{" });
            let item = object.item();
            if text.len() + item.len() > JOINED {
                pieces.push_back(text.into());
                pieces.push_back(item);
                break;
            }
            text.extend_from_slice(&item);
        }
        self.left -= pieces.iter().map(Bytes::len).sum::<usize>();
        pieces
    }
}

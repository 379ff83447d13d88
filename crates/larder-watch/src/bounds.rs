//! How much of an answer is read. A broken or hostile API server, or a proxy in its place, may send an answer without an
//! end; each bound is one that no real node reaches.
//!
//! | answer | bound |
//! | --- | --- |
//! | a get, the answer to another request, a failure | [`OBJECT_BYTES`] |
//! | an item of a list, an event of a watch | [`OBJECT_BYTES`] |
//! | a complete state: a list with all its pages, or the initial events of a streaming list | [`ListBounds`] |
//! | a list without its items | [`FRAME_BYTES`] |
//! | pages of a list | [`MAX_PAGES`] |

use crate::error::RequestError;

/// Longest object, event or failure. The API server stores objects of up to about 1.5 MiB in etcd; a Secret's base64 in
/// JSON and its managed fields stay below twice that.
pub(crate) const OBJECT_BYTES: usize = 3 << 20;

/// Longest list without its items: kind, version, the token of the next page.
pub(crate) const FRAME_BYTES: usize = 64 << 10;

/// Most pages of a list, for a server that sends empty ones.
pub(crate) const MAX_PAGES: usize = 10_000;

/// The bounds of a complete state.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ListBounds {
    /// Most items. Kubernetes supports 150,000 pods in a whole cluster.
    pub(crate) items: usize,
    /// Most bytes received: the default quota of an etcd, which holds a whole cluster.
    pub(crate) bytes: usize,
    /// Most bytes of the items that the target covers, since these are held in memory: 500 pods of half a MiB each.
    pub(crate) kept_bytes: usize,
}

impl Default for ListBounds {
    fn default() -> Self {
        Self {
            items: 200_000,
            bytes: 2 << 30,
            kept_bytes: 256 << 20,
        }
    }
}

/// What was read of a complete state, against its bounds.
#[derive(Debug)]
pub(crate) struct ListMeter {
    bounds: ListBounds,
    read: ListBounds,
}

impl ListMeter {
    pub(crate) fn new(bounds: ListBounds) -> Self {
        let read = ListBounds {
            items: 0,
            bytes: 0,
            kept_bytes: 0,
        };
        Self { bounds, read }
    }

    /// Counts received bytes.
    ///
    /// # Errors
    ///
    /// The bound is passed.
    pub(crate) fn received(&mut self, bytes: usize) -> Result<(), RequestError> {
        self.read.bytes = self.read.bytes.saturating_add(bytes);
        let limit_bytes = self.bounds.bytes;
        if self.read.bytes > limit_bytes {
            return Err(RequestError::TooLong { limit_bytes });
        }
        Ok(())
    }

    /// Counts an item of so many bytes, which the target covers or not.
    ///
    /// # Errors
    ///
    /// A bound is passed.
    pub(crate) fn item(&mut self, bytes: usize, is_kept: bool) -> Result<(), RequestError> {
        self.read.items += 1;
        self.read.kept_bytes += if is_kept { bytes } else { 0 };
        let (limit, limit_bytes) = (self.bounds.items, self.bounds.kept_bytes);
        if self.read.items > limit {
            return Err(RequestError::TooManyItems { limit });
        }
        if self.read.kept_bytes > limit_bytes {
            return Err(RequestError::TooLong { limit_bytes });
        }
        Ok(())
    }
}

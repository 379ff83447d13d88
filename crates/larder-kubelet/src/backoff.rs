//! The kubelet's delays between attempts at a volume, which larder also uses for its own attempts.

use std::time::Duration;

use larder_transport::Backoff;

/// First delay (kubelet 1.36, `pkg/util/goroutinemap/exponentialbackoff`).
pub const FIRST: Duration = Duration::from_millis(500);
/// Longest delay (as above).
pub const CAP: Duration = Duration::from_secs(122);

/// The delays, from the first one on.
pub const RETRY: Backoff = Backoff::new(FIRST, CAP);

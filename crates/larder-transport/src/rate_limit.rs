//! The rate limit of ordinary requests.
//!
//! A token bucket of `burst` tokens, refilled at `qps` per second. A request takes a token in advance and waits until
//! it is available, so requests are sent in order of arrival.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::bucket::TokenBucket;

/// Rate of ordinary requests, by the kubelet's rules for `kubeAPIQPS` and `kubeAPIBurst`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RateLimit {
    /// No limit.
    Unlimited,
    /// At most `qps` per second in the long run and `burst` at once; neither is 0.
    Limited {
        /// Requests per second.
        qps: u32,
        /// Requests in one burst.
        burst: u32,
    },
}

impl RateLimit {
    /// The limit of a kubelet with these `kubeAPIQPS` and `kubeAPIBurst`.
    ///
    /// 0 selects the default of client-go: 5 per second, bursts of 10 (client-go 1.36, `rest/config.go`). A kubelet
    /// whose configuration omits the fields uses 50 and 100, as [`Default`] does.
    pub fn from_kubelet(qps: u32, burst: u32) -> Self {
        Self::Limited {
            qps: if qps == 0 { 5 } else { qps },
            burst: if burst == 0 { 10 } else { burst },
        }
    }
}

impl Default for RateLimit {
    fn default() -> Self {
        Self::Limited {
            qps: 50,
            burst: 100,
        }
    }
}

/// The token bucket of a transport.
pub(super) struct Limiter(Mutex<TokenBucket>);

impl Limiter {
    pub(super) fn new(limit: RateLimit) -> Self {
        let (interval, burst) = match limit {
            RateLimit::Unlimited => (Duration::ZERO, 0),
            RateLimit::Limited { qps, burst } => {
                (Duration::from_secs(1) / qps.max(1), burst.max(1))
            }
        };
        let bucket = TokenBucket::new(interval, burst, Instant::now());
        Self(Mutex::new(bucket))
    }

    /// Waits for a token. Returns the time waited.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future returns the token.
    pub(super) async fn acquire(&self) -> Duration {
        let wait = self.0.lock().take(Instant::now());
        if !wait.is_zero() {
            let mut token = Token(Some(self));
            tokio::time::sleep(wait).await;
            token.0 = None;
        }
        wait
    }
}

/// A token taken in advance.
struct Token<'a>(Option<&'a Limiter>);

impl Drop for Token<'_> {
    fn drop(&mut self) {
        if let Some(limiter) = self.0 {
            limiter.0.lock().give_back();
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    fn limiter(qps: u32, burst: u32) -> Limiter {
        Limiter::new(RateLimit::Limited { qps, burst })
    }

    #[tokio::test(start_paused = true)]
    async fn requests_beyond_the_burst_pass_at_the_rate() {
        let limiter = limiter(10, 3);
        let start = Instant::now();
        for expected_ms in [0, 0, 0, 100, 200] {
            limiter.acquire().await;
            assert_eq!(start.elapsed().as_millis(), expected_ms);
        }
        tokio::time::sleep(Duration::from_mins(1)).await;
        let start = Instant::now();
        for expected_ms in [0, 0, 0, 100] {
            limiter.acquire().await;
            assert_eq!(start.elapsed().as_millis(), expected_ms);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_canceled_wait_returns_its_token() {
        let limiter = limiter(1, 1);
        limiter.acquire().await;
        for _ in 0..5 {
            assert!(limiter.acquire().now_or_never().is_none());
        }
        assert_eq!(limiter.acquire().await, Duration::from_secs(1));
    }

    #[tokio::test(start_paused = true)]
    async fn an_unlimited_rate_never_waits() {
        let limiter = Limiter::new(RateLimit::Unlimited);
        for _ in 0..1000 {
            assert_eq!(limiter.acquire().await, Duration::ZERO);
        }
    }

    #[test]
    fn kubelet_fields_follow_its_rules() {
        let limited = |qps, burst| RateLimit::Limited { qps, burst };
        assert_eq!(RateLimit::from_kubelet(50, 100), limited(50, 100));
        assert_eq!(RateLimit::from_kubelet(0, 0), limited(5, 10));
    }
}

//! Whether this identity may list and watch a whole collection: a self subject access review that is made until it is
//! answered.

use std::{fmt, sync::Arc};

use tokio::{
    sync::watch,
    time::{Duration, Instant, sleep_until},
};

use crate::{
    api::Api,
    backoff::{RequestBackoff, retry_after},
    context::NodeContext,
    error::RequestError,
    outages::{OutageGuard, Outages},
};

/// The review of one resource in one namespace.
pub struct AccessReview {
    api: Api,
    resource: &'static str,
    namespace: String,
    outages: Outages,
    over: watch::Receiver<Duration>,
    backoff: RequestBackoff,
    /// The last attempt failed; when the next one is due, and when it is at the earliest if an outage ends.
    failed: Option<(Instant, Instant)>,
    /// It failed with the API server.
    outage: Option<OutageGuard>,
    random: fastrand::Rng,
}

impl fmt::Debug for AccessReview {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AccessReview")
            .field("resource", &self.resource)
            .field("namespace", &self.namespace)
            .finish_non_exhaustive()
    }
}

/// The answer to a review.
#[derive(Debug)]
pub enum Access {
    /// The identity may list and watch.
    Granted,
    /// It may not do this.
    Denied(&'static str),
    /// The API server does not answer such reviews, or not this identity.
    Unknown(RequestError),
    /// The API server cannot be asked now, but later.
    Failed(Arc<RequestError>),
}

impl AccessReview {
    /// Nothing is asked before [`next`](Self::next).
    pub fn new(
        api: Api,
        resource: &'static str,
        namespace: &str,
        context: &NodeContext,
        random: fastrand::Rng,
    ) -> Self {
        Self {
            api,
            resource,
            namespace: namespace.to_owned(),
            outages: context.outages.clone(),
            over: context.outages.over(),
            backoff: RequestBackoff::default(),
            failed: None,
            outage: None,
            random,
        }
    }

    /// Makes the review; after [`Access::Failed`] when the back-off is over.
    pub async fn next(&mut self) -> Access {
        self.back_off().await;
        let answer = self.ask().await;
        let error = match answer {
            Err(error) if error.is_outage() || error.is_throttled() => error,
            answer => {
                if let Some(outage) = self.outage.take() {
                    self.outages.recovered(outage);
                }
                return answer.unwrap_or_else(Access::Unknown);
            }
        };
        let (now, random) = (Instant::now(), self.random.f64());
        let delay = self.backoff.delay_after(&error, now, random);
        let least = retry_after(&error, random);
        let random = self.random.f64();
        let (outage, delay) = self.outages.failed(&error, delay, least, now, random);
        self.outage = Some(outage);
        self.failed = Some((now + delay, now + least));
        self.over.mark_unchanged();
        Access::Failed(Arc::new(error))
    }

    async fn back_off(&mut self) {
        let Some((mut until, least)) = self.failed.take() else {
            return;
        };
        loop {
            // Both arms are cancel-safe, and only one of them can be ready at a time that matters.
            tokio::select! {
                biased;
                Ok(()) = self.over.changed(), if self.outage.is_some() => {
                    self.outage = None;
                    let spread = self.over.borrow_and_update().mul_f64(self.random.f64());
                    until = until.min(least.max(Instant::now() + spread));
                }
                () = sleep_until(until) => return,
            }
        }
    }

    async fn ask(&self) -> Result<Access, RequestError> {
        for verb in ["list", "watch"] {
            let allowed = self.api.is_allowed(verb, self.resource, &self.namespace);
            if !allowed.await? {
                return Ok(Access::Denied(verb));
            }
        }
        Ok(Access::Granted)
    }
}

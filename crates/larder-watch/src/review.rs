//! Whether this identity may list and watch a whole collection: a self subject access review that is retried until it
//! is answered.

use std::sync::Arc;

use larder_objects::ObjectType;
use serde_json::json;
use tokio::{
    sync::watch,
    time::{Duration, Instant, sleep_until},
};

use crate::{
    api::Api, context::NodeContext, error::RequestError, outages::Retry, request::is_allowed,
};

/// The review of one resource in one namespace.
#[expect(missing_debug_implementations, reason = "it holds a client")]
pub struct AccessReview {
    api: Api,
    of: ObjectType,
    namespace: String,
    over: watch::Receiver<Duration>,
    retry: Retry,
    /// The last attempt failed; when the next one is due.
    due: Option<Instant>,
    random: fastrand::Rng,
}

/// The response to a review.
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
        of: ObjectType,
        namespace: &str,
        context: &NodeContext,
        random: fastrand::Rng,
    ) -> Self {
        Self {
            api,
            of,
            namespace: namespace.to_owned(),
            over: context.outages.over(),
            retry: Retry::new(context.outages.clone(), Instant::now()),
            due: None,
            random,
        }
    }

    /// Makes the review; after [`Access::Failed`] when the back-off is over.
    pub async fn next(&mut self) -> Access {
        self.back_off().await;
        let error = match self.ask().await {
            Err(error) if error.is_outage() || error.is_throttled() => error,
            result => {
                self.retry.recovered();
                return result.unwrap_or_else(Access::Unknown);
            }
        };
        let now = Instant::now();
        self.due = Some(now + self.retry.failed(&error, now, &mut self.random));
        self.over.mark_unchanged();
        Access::Failed(Arc::new(error))
    }

    async fn back_off(&mut self) {
        let Some(mut until) = self.due.take() else {
            return;
        };
        loop {
            // Both arms are cancel-safe, and only one of them can be ready at a time that matters.
            tokio::select! {
                biased;
                Ok(()) = self.over.changed() => {
                    let spread = self.over.borrow_and_update().mul_f64(self.random.f64());
                    let early = self.retry.retry_early(until, Instant::now() + spread);
                    until = early.unwrap_or(until);
                }
                () = sleep_until(until) => return,
            }
        }
    }

    async fn ask(&self) -> Result<Access, RequestError> {
        for verb in ["list", "watch"] {
            let of = &self.of;
            let attributes = json!({
                "verb": verb, "group": of.group, "version": of.version, "resource": of.resource,
                "namespace": self.namespace,
            });
            if !is_allowed(&self.api.client, &attributes).await? {
                return Ok(Access::Denied(verb));
            }
        }
        Ok(Access::Granted)
    }
}

//! The round of a webhook of the reload form.

use larder_actions::{StepInputs, StepOutcome};
use larder_on_change::{Hook, HttpUrl};
use tokio::time::Instant;

use crate::{
    metrics::WebhookMetrics,
    steps::{SidecarEnvironment, steps},
};

/// The round of a webhook.
#[derive(Debug)]
pub(crate) struct Webhook {
    pub(crate) url: HttpUrl,
    /// Attempts in quick succession.
    pub(crate) attempts: u32,
    pub(crate) status: u16,
    pub(crate) metrics: WebhookMetrics,
}

impl Webhook {
    /// Sends the request, a few times if it fails.
    pub(crate) async fn run(
        &self,
        hook: &Hook,
        inputs: StepInputs,
        environment: &SidecarEnvironment<'_>,
    ) -> StepOutcome {
        let webhook = self.url.to_string();
        let mut left = if inputs.attempt == 1 {
            self.attempts
        } else {
            1
        };
        loop {
            let began = Instant::now();
            let outcome = steps(&hook.steps, hook, inputs.clone(), environment).await;
            self.metrics
                .asked(&webhook, &outcome, began.elapsed(), self.status);
            left = left.saturating_sub(1);
            if outcome.is_success() {
                return outcome;
            }
            if left == 0 {
                self.metrics.exhausted(&webhook);
                return outcome;
            }
        }
    }
}

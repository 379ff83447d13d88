//! A worker's part in the hooks of its pod (R29).

use std::sync::Arc;

use larder_hooks::FoundContent;
use larder_kubelet::rules::{PartName, VolumeChange};
use larder_on_change::{ObjectTag, PartKey};
use larder_projection::Inputs;
use tokio::time::Instant;

use super::BesideWorker;
use crate::{
    beside::look::HookInputs,
    delivery::{
        plan::{PartKind, PodPlan},
        steps::{Abandoned, StepOwner as _},
    },
};

impl BesideWorker {
    /// Lets the hooks of the plan run, if this larder is the one of the node that acts. They look at all parts then.
    pub(super) async fn set_hooks(&mut self, plan: &PodPlan) -> Result<(), Abandoned> {
        let before = self.hooked.hooks().is_some();
        let runs = self.node.borrow().gate.acts();
        let hooks = plan.hooks.clone().filter(|_| runs);
        let parts = plan.parts.iter().map(|part| part.kind.observed());
        if self.hooked.set_hooks(hooks, parts) {
            self.work.all_due();
        }
        if before && plan.hooks.is_none() {
            let dropping = self.work.dropping_hooks();
            self.at_disk(&[], dropping).await?;
        }
        Ok(())
    }

    /// What a look at these inputs needs for hooks.
    pub(super) fn hook_inputs(&self, inputs: &Inputs) -> Option<HookInputs> {
        let hooks = self.hooked.hooks()?;
        Some(HookInputs {
            on_change: self.work.node.on_change.clone(),
            hooks: Arc::clone(hooks),
            wants_disk: self.hooked.wants_disk(),
            left_out: inputs.left_out().map(ObjectTag::of).collect(),
        })
    }

    /// Takes in what a look has found of a part, after the rules have.
    pub(super) fn seen_content(
        &mut self,
        part: &PartKind,
        seen: FoundContent,
        change: VolumeChange,
    ) {
        if self.hooked.hooks().is_none() {
            return;
        }
        let seen = match (part, seen) {
            // Pinned or detached: containers may see other bytes.
            (PartKind::Volume(volume, _), FoundContent::Verified(tags))
                if !self
                    .rules
                    .is_verified(&PartName::Volume(volume.as_str().into())) =>
            {
                FoundContent::OnDisk(tags)
            }
            // A container that does not run has no variables yet.
            (PartKind::Environment(name, _), FoundContent::Unknown)
                if !self.traits.running.contains(name.as_str()) =>
            {
                FoundContent::OnDisk(None)
            }
            (_, seen) => seen,
        };
        let key = part.observed();
        if change.is_swap() {
            self.hooked.swapped(&key);
        }
        self.hooked.seen(&key, seen);
    }

    /// Hands over what was verified. Waits for the disk, not for a round.
    pub(super) async fn hand_over(&mut self, plan: &Arc<PodPlan>) -> Result<(), Abandoned> {
        if self.hooked.hooks().is_none() {
            return Ok(());
        }
        let (rules, now) = (&self.rules, Instant::now());
        let is_held = |part: &PartKey| match part {
            PartKey::Volume(name, _) => rules.is_awaited_with(name, now),
            PartKey::Environment(container) => rules.is_awaited_by(container, now),
        };
        let Some(handed) = self.hooked.take(is_held) else {
            return Ok(());
        };
        let (on_change, pod) = (self.work.node.on_change.clone(), Arc::clone(&plan.pod));
        let handing = move || on_change.hand_over(&pod, handed);
        self.at_disk(&[], handing).await
    }

    /// The pod has ended: no hook fires any more, and its record goes.
    pub(super) async fn end_hooks(&mut self) -> Result<(), Abandoned> {
        let (node, uid) = (Arc::clone(&self.work.node), self.work.entry.uid.clone());
        node.on_change.forget(uid.as_str());
        let removing = move || node.host.remove_pod(uid.as_str());
        // What cannot be removed now is found at the next start.
        self.at_disk(&[], removing).await.map(drop)
    }
}

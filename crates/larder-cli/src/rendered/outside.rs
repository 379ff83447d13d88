//! What a pod needs to start besides what larder delivers: its account, its claims, and the Secrets of other volumes.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::Volume;
use larder_objects::{Kind, manifest::Recipe, references::secrets_of_volume};
use larder_projection::{ObjectId, Question, VolumeKind, pod_volumes};

use super::RenderedPod;
use crate::offline::likely_name;

const ACCOUNT: &str = "ServiceAccount";
const CLAIM: &str = "PersistentVolumeClaim";

impl RenderedPod<'_> {
    /// What of it no document has. What the pod of the first side needs as well counts as there: that one runs.
    pub(crate) fn outside_beyond(&self, first: Option<&Self>) -> BTreeSet<Question> {
        let mut outside = self.outside();
        let first = first.map(Self::outside).unwrap_or_default();
        outside.retain(|need| !first.contains(need));
        outside
    }

    /// What no document has. Of an API server, only what larder delivers is read.
    fn outside(&self) -> BTreeSet<Question> {
        if self.offline.is_of_cluster {
            return BTreeSet::new();
        }
        let fact = |kind: &str, name: &str| Question::Fact(format!("{kind} {name}").into());
        let account = self.missing_account().map(|name| fact(ACCOUNT, name));
        let claims = self.missing_claims().map(|(_, name)| fact(CLAIM, name));
        let volumes = pod_volumes(self.pod);
        let others =
            volumes.filter(|volume| VolumeKind::of(volume).is_none() && self.is_used(volume));
        let secrets = others.flat_map(secrets_of_volume);
        let missing = secrets.filter(|name| !self.offline.has_secret(self.namespace(), name));
        let secrets = missing.map(|name| {
            Question::Exists(ObjectId {
                kind: Kind::Secret,
                name: name.as_str().into(),
                recipe: Recipe::default(),
            })
        });
        account.into_iter().chain(claims).chain(secrets).collect()
    }

    /// Its account, if no document has that.
    pub(super) fn missing_account(&self) -> Option<&str> {
        let is_missing = !self.offline.is_of_cluster
            && !self.offline.has_account(self.namespace(), self.account());
        is_missing.then(|| self.account())
    }

    /// The claims of its volumes that no document has or makes.
    pub(super) fn missing_claims(&self) -> impl Iterator<Item = (&Volume, &str)> {
        let claims = pod_volumes(self.pod).filter_map(|volume| {
            let claim = volume.persistent_volume_claim.as_ref()?;
            Some((volume, &*claim.claim_name))
        });
        claims.filter(|(_, claim)| {
            !self.offline.is_of_cluster && !self.offline.has_claim(self.namespace(), claim)
        })
    }

    /// The name that is likely to be meant, of something that is needed and that no document has.
    pub(crate) fn similar(&self, need: &Question) -> Option<String> {
        let fact = match need {
            Question::Fact(fact) => fact,
            Question::Exists(object) | Question::HasKey(object, _) => {
                return self.similar_object(object.kind, &object.name);
            }
        };
        let (kind, name) = fact.split_once(' ')?;
        let known = match kind {
            ACCOUNT => self.offline.accounts_in(self.namespace()),
            CLAIM => self.offline.claims_in(self.namespace()),
            _ => return None,
        };
        likely_name(name, known.iter().copied()).map(str::to_owned)
    }
}

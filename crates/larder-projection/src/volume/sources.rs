//! The sources of projected volumes, and those that only these have: tokens, trust anchors, certificates.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{
    ClusterTrustBundleProjection, PodCertificateProjection, ServiceAccountTokenProjection,
    VolumeProjection,
};
use larder_objects::{ConfigMap, Secret, SourceKind};

use super::{Collector, SourceError, fs_group, fs_user, owned};
use crate::{
    Existence, File, Origin, Question, SourceKey, TokenRequest, TrustBundleError, Unavailable,
    Unknown, Value, VolumePath, trust_bundle::trust_anchors,
};

impl<'a> Collector<'a> {
    /// One entry of `sources`; of several types in it the first of this order counts.
    pub(super) fn source(
        &mut self,
        index: usize,
        source: &'a VolumeProjection,
    ) -> Result<(), SourceError> {
        match SourceKind::of_entry(source).next() {
            Some(SourceKind::Secret(source)) => {
                self.keys::<Secret>(&source.name, source.items.as_deref(), source.optional)
            }
            Some(SourceKind::ConfigMap(source)) => {
                self.keys::<ConfigMap>(&source.name, source.items.as_deref(), source.optional)
            }
            Some(SourceKind::DownwardApi(source)) => {
                self.downward(source.items.as_deref());
                Ok(())
            }
            Some(SourceKind::Token(source)) => self.token(source),
            Some(SourceKind::TrustBundle(source)) => {
                let data = self.trust_anchors(source)?;
                let file = self.special(data, source.user)?;
                self.add(VolumePath::parse(&source.path)?, file, Origin::TrustBundle);
                Ok(())
            }
            Some(SourceKind::PodCertificate(source)) => self.pod_certificate(index, source),
            None => Ok(()),
        }
    }

    fn trust_anchors(
        &mut self,
        source: &'a ClusterTrustBundleProjection,
    ) -> Result<Value<'a>, SourceError> {
        let missing = &self.inputs.assumptions.missing_bundles;
        let others = match trust_anchors(&self.inputs.trust_bundles, missing, source) {
            Ok(anchors) => return Ok(owned(anchors.into_bytes())),
            Err(TrustBundleError::Partial(others)) => others,
            Err(error) => return Err(error.into()),
        };
        let named = source.name.as_deref().or(source.signer_name.as_deref());
        let what: Arc<str> = format!("ClusterTrustBundle {}", named.unwrap_or_default()).into();
        if others == Existence::Unsure && source.optional != Some(true) {
            self.projection
                .needs
                .insert(Question::Fact(Arc::clone(&what)));
        }
        Ok(Unknown::of_fact(what).into())
    }

    fn token(&mut self, source: &'a ServiceAccountTokenProjection) -> Result<(), SourceError> {
        let request = TokenRequest::new(source);
        let token = self.inputs.tokens.get(&request);
        let token = held(token, "failed to fetch token: no token").map_err(SourceError::Token)?;
        let file = self.special(Value::Borrowed(token), source.user)?;
        let account = self
            .pod
            .spec
            .as_ref()
            .and_then(|spec| spec.service_account_name.as_deref());
        let origin = Origin::Token {
            account: account.unwrap_or_default(),
            audience: source.audience.as_deref().filter(|text| !text.is_empty()),
        };
        self.add(VolumePath::parse(&source.path)?, file, origin);
        Ok(())
    }

    fn pod_certificate(
        &mut self,
        index: usize,
        source: &'a PodCertificateProjection,
    ) -> Result<(), SourceError> {
        let key = SourceKey {
            volume: self.volume.to_owned(),
            index,
        };
        let issued = self.inputs.pod_certificates.get(&key);
        let issued = held(issued, "credential bundle is not issued yet");
        let unknown = self.inputs.assumptions.pod_certificate(self.pod, source);
        let [bundle, key, chain] = match (issued, unknown) {
            (Ok(issued), _) => [
                Value::Secret(issued.bundle()),
                Value::Borrowed(&issued.private_key_pem),
                owned(issued.chain().into_bytes()),
            ],
            (Err(_), Some(unknown)) => unknown.map(Value::from),
            (Err(error), None) => return Err(SourceError::PodCertificate(error)),
        };
        let files = [
            (&source.credential_bundle_path, bundle),
            (&source.key_path, key),
            (&source.certificate_chain_path, chain),
        ];
        for (path, data) in files {
            let Some(path) = path.as_deref().filter(|path| !path.is_empty()) else {
                continue;
            };
            let file = self.special(data, source.user)?;
            let origin = Origin::PodCertificate {
                signer: &source.signer_name,
            };
            self.add(VolumePath::parse(path)?, file, origin);
        }
        Ok(())
    }

    /// A file that belongs to the user that its source or the volume names, or else to the user of the pod. If the pod
    /// has a user or a group, no other user may read it, whatever the volume's mode; the group gets its bit when the
    /// file is written.
    fn special(&mut self, data: Value<'a>, user: Option<i64>) -> Result<File<'a>, SourceError> {
        let mut file = self.file(data, None, user)?;
        let of_pod = fs_user(self.pod);
        if of_pod.is_some() || fs_group(self.pod).is_some() {
            file.mode = 0o600;
        }
        file.owner = file.owner.or(of_pod);
        Ok(file)
    }
}

/// What the node got for a source, or why it has nothing.
fn held<'a, T>(input: Option<&'a Result<T, Unavailable>>, missing: &str) -> Result<&'a T, String> {
    match input {
        Some(Ok(held)) => Ok(held),
        Some(Err(Unavailable::Failed(message))) => Err(message.to_string()),
        Some(Err(Unavailable::NotFound | Unavailable::Unknown(_))) | None => {
            Err(missing.to_owned())
        }
    }
}

//! The sources of projected volumes, and those that only these have: tokens, trust anchors, certificates.

use k8s_openapi::api::core::v1::{
    PodCertificateProjection, ServiceAccountTokenProjection, VolumeProjection,
};
use larder_objects::{ConfigMap, Secret, SecretBytes};

use super::{Collector, SourceError, fs_group, fs_user, owned};
use crate::{
    File, FileData, Origin, SourceKey, TokenRequest, Unavailable, VolumePath,
    trust_bundle::trust_anchors,
};

impl<'a> Collector<'a> {
    /// One entry of `sources`; of several types in it the first of this order counts.
    pub(super) fn source(
        &mut self,
        volume: &str,
        index: usize,
        source: &'a VolumeProjection,
        mode: u32,
    ) -> Result<(), SourceError> {
        if let Some(source) = &source.secret {
            self.keys::<Secret>(&source.name, source.items.as_deref(), source.optional, mode)
        } else if let Some(source) = &source.config_map {
            self.keys::<ConfigMap>(&source.name, source.items.as_deref(), source.optional, mode)
        } else if let Some(source) = &source.downward_api {
            self.downward(source.items.as_deref(), mode);
            Ok(())
        } else if let Some(source) = &source.service_account_token {
            self.token(source, mode)
        } else if let Some(source) = &source.cluster_trust_bundle {
            let anchors = trust_anchors(&self.inputs.trust_bundles, source)?;
            let file = self.special(owned(anchors.into_bytes(), mode));
            self.add(VolumePath::parse(&source.path)?, file, Origin::TrustBundle);
            Ok(())
        } else if let Some(source) = &source.pod_certificate {
            self.pod_certificate(volume, index, source, mode)
        } else {
            Ok(())
        }
    }

    fn token(
        &mut self,
        source: &'a ServiceAccountTokenProjection,
        mode: u32,
    ) -> Result<(), SourceError> {
        let request = TokenRequest::new(source);
        let token = match self.inputs.tokens.get(&request) {
            Some(Ok(token)) => token,
            Some(Err(Unavailable::Failed(message))) => {
                return Err(SourceError::Token(message.to_string()));
            }
            Some(Err(Unavailable::NotFound)) | None => {
                return Err(SourceError::Token(
                    "failed to fetch token: no token".to_owned(),
                ));
            }
        };
        let file = self.special(File {
            data: FileData::Borrowed(token),
            mode,
            owner: None,
        });
        let origin = Origin::Token {
            audience: source.audience.as_deref().filter(|text| !text.is_empty()),
        };
        self.add(VolumePath::parse(&source.path)?, file, origin);
        Ok(())
    }

    fn pod_certificate(
        &mut self,
        volume: &str,
        index: usize,
        source: &'a PodCertificateProjection,
        mode: u32,
    ) -> Result<(), SourceError> {
        let key = SourceKey {
            volume: volume.to_owned(),
            index,
        };
        let issued = match self.inputs.pod_certificates.get(&key) {
            Some(Ok(issued)) => issued,
            Some(Err(Unavailable::Failed(message))) => {
                return Err(SourceError::PodCertificate(message.to_string()));
            }
            Some(Err(Unavailable::NotFound)) | None => {
                let message = "credential bundle is not issued yet";
                return Err(SourceError::PodCertificate(message.to_owned()));
            }
        };
        let files = [
            (
                &source.credential_bundle_path,
                FileData::Owned(issued.bundle()),
            ),
            (
                &source.key_path,
                FileData::Borrowed(&issued.private_key_pem),
            ),
            (
                &source.certificate_chain_path,
                FileData::Owned(SecretBytes::new(issued.chain().into_bytes())),
            ),
        ];
        for (path, data) in files {
            let Some(path) = path.as_deref().filter(|path| !path.is_empty()) else {
                continue;
            };
            let file = self.special(File {
                data,
                mode,
                owner: None,
            });
            let origin = Origin::PodCertificate {
                signer: &source.signer_name,
            };
            self.add(VolumePath::parse(path)?, file, origin);
        }
        Ok(())
    }

    /// Gives `file` to the user of the pod. With a user or a group of the pod, no other user may read it, whatever the
    /// volume's mode; the group gets its bit when the file is written.
    fn special(&self, file: File<'a>) -> File<'a> {
        let owner = fs_user(self.pod);
        let restricted = owner.is_some() || fs_group(self.pod).is_some();
        File {
            mode: if restricted { 0o600 } else { file.mode },
            owner,
            ..file
        }
    }
}

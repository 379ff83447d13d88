//! Keys of pods.

use larder_objects::{SecretBytes, pem};
use rcgen::{
    CertificateParams, DistinguishedName, KeyPair, PKCS_ECDSA_P256_SHA256, PKCS_ECDSA_P384_SHA384,
    PKCS_ED25519, SignatureAlgorithm,
};

/// A key that was made for one request.
pub(super) struct PodKey(KeyPair);

/// No key could be made.
#[derive(Debug, thiserror::Error)]
pub(super) enum KeyError {
    /// One of the kubelet's types that our library of cryptography cannot make, or none at all.
    #[error("keys of type {0:?} are not supported; ECDSAP256, ECDSAP384 and ED25519 are")]
    Type(String),
    #[error("cannot make a key")]
    Generate(#[source] rcgen::Error),
}

impl PodKey {
    /// A new key of the type that `podCertificate.keyType` names.
    pub(super) fn generate(key_type: &str) -> Result<Self, KeyError> {
        let algorithm: &SignatureAlgorithm = match key_type {
            "ECDSAP256" => &PKCS_ECDSA_P256_SHA256,
            "ECDSAP384" => &PKCS_ECDSA_P384_SHA384,
            "ED25519" => &PKCS_ED25519,
            // RSA3072, RSA4096 and ECDSAP521 are the kubelet's others.
            other => return Err(KeyError::Type(other.to_owned())),
        };
        KeyPair::generate_for(algorithm)
            .map(Self)
            .map_err(KeyError::Generate)
    }

    /// A PKCS#10 request for the key that names nobody: whom it is for, the signer learns from the API server. In DER.
    pub(super) fn stub_request(&self) -> Result<Vec<u8>, KeyError> {
        let mut nobody = CertificateParams::default();
        nobody.distinguished_name = DistinguishedName::new();
        let request = nobody.serialize_request(&self.0);
        Ok(request.map_err(KeyError::Generate)?.der().to_vec())
    }

    /// The private key as it stands in its file.
    pub(super) fn private_key_pem(&self) -> SecretBytes {
        pem::encode_private_key(&SecretBytes::new(self.0.serialize_der()))
    }
}

#[cfg(test)]
mod tests {
    use larder_objects::x509::{PublicKey, requested_key};

    use super::*;

    #[test]
    fn a_request_is_for_the_key_and_names_nobody() {
        for (key_type, expected) in [
            ("ECDSAP256", PublicKey::Elliptic(Some("P-256"))),
            ("ECDSAP384", PublicKey::Elliptic(Some("P-384"))),
            ("ED25519", PublicKey::Ed25519),
        ] {
            let key = PodKey::generate(key_type).unwrap();
            let request = key.stub_request().unwrap();
            let requested = requested_key(&request).unwrap();
            assert_eq!(PublicKey::parse(requested), Some(expected));
            let pem = key.private_key_pem();
            assert!(pem.starts_with(b"-----BEGIN PRIVATE KEY-----\n"));
            let pem = std::str::from_utf8(&pem).unwrap();
            assert_eq!(pem::blocks(pem)[0].der, key.0.serialize_der());
        }
    }

    #[test]
    fn what_cannot_be_made_is_named() {
        // projection 74
        let Err(error) = PodKey::generate("RSA3072") else {
            panic!("made")
        };
        assert_eq!(
            error.to_string(),
            r#"keys of type "RSA3072" are not supported; ECDSAP256, ECDSAP384 and ED25519 are"#
        );
    }
}

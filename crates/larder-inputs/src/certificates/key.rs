//! Keys of pods, of every type that a pod may request.
//!
//! ring signs with all of them except P-521, and generates all of them except RSA. The crate `rsa` generates RSA keys;
//! since its private-key operations are not constant-time (RUSTSEC-2023-0071), only ring uses them.

use larder_objects::{SecretBytes, pem};
use p521::{
    ecdsa::{DerSignature, Signature, SigningKey, signature::RandomizedSigner as _},
    pkcs8::{EncodePrivateKey as _, EncodePublicKey as _},
};
use rcgen::{
    CertificateParams, DistinguishedName, KeyPair, PKCS_ECDSA_P256_SHA256, PKCS_ECDSA_P384_SHA384,
    PKCS_ED25519, PKCS_RSA_SHA256,
};
use rsa::{RsaPrivateKey, rand_core::OsRng};

/// A key for one request.
pub(super) enum PodKey {
    /// One that ring uses.
    Ring(Box<KeyPair>),
    /// One on P-521.
    P521(p521::SecretKey),
}

/// Why there is no key, or no request signed with it.
#[derive(Debug, thiserror::Error)]
pub(super) enum PodKeyError {
    /// The type is unknown.
    #[error(
        "unsupported keyType {0:?}: expected one of RSA3072, RSA4096, ECDSAP256, ECDSAP384, ECDSAP521 or ED25519"
    )]
    Type(String),
    #[error("cannot generate a key")]
    Generate(#[source] rcgen::Error),
    #[error("cannot generate an RSA key")]
    Rsa(#[source] rsa::Error),
    #[error("cannot encode a key")]
    Encode(#[source] p521::pkcs8::Error),
    #[error("cannot sign with a key")]
    Sign(#[source] p521::ecdsa::Error),
}

impl PodKey {
    /// A new key of the type that `podCertificate.keyType` names. An RSA key takes seconds of a processor.
    pub(super) fn generate(key_type: &str) -> Result<Self, PodKeyError> {
        let algorithm = match key_type {
            "RSA3072" => return rsa_key(3072),
            "RSA4096" => return rsa_key(4096),
            "ECDSAP256" => &PKCS_ECDSA_P256_SHA256,
            "ECDSAP384" => &PKCS_ECDSA_P384_SHA384,
            "ECDSAP521" => return Ok(Self::P521(p521::SecretKey::random(&mut OsRng))),
            "ED25519" => &PKCS_ED25519,
            other => return Err(PodKeyError::Type(other.to_owned())),
        };
        let key = KeyPair::generate_for(algorithm).map_err(PodKeyError::Generate)?;
        Ok(Self::Ring(Box::new(key)))
    }

    /// A PKCS#10 request for the key, in DER, without a subject: the signer learns the subject from the API server.
    pub(super) fn stub_request(&self) -> Result<Vec<u8>, PodKeyError> {
        match self {
            Self::Ring(key) => {
                let mut nobody = CertificateParams::default();
                nobody.distinguished_name = DistinguishedName::new();
                let request = nobody.serialize_request(&**key);
                Ok(request.map_err(PodKeyError::Generate)?.der().to_vec())
            }
            Self::P521(key) => p521_request(key),
        }
    }

    /// The private key as PEM.
    pub(super) fn private_key_pem(&self) -> Result<SecretBytes, PodKeyError> {
        let pkcs8 = match self {
            Self::Ring(key) => SecretBytes::new(key.serialize_der()),
            Self::P521(key) => {
                let pkcs8 = key.to_pkcs8_der().map_err(PodKeyError::Encode)?;
                SecretBytes::new(pkcs8.as_bytes().to_vec())
            }
        };
        Ok(pem::encode_private_key(&pkcs8))
    }
}

fn rsa_key(bits: usize) -> Result<PodKey, PodKeyError> {
    let key = RsaPrivateKey::new(&mut OsRng, bits).map_err(PodKeyError::Rsa)?;
    let pkcs8 = key.to_pkcs8_der().map_err(PodKeyError::Encode)?;
    let key = KeyPair::from_pkcs8_der_and_sign_algo(&pkcs8.as_bytes().into(), &PKCS_RSA_SHA256);
    Ok(PodKey::Ring(Box::new(key.map_err(PodKeyError::Generate)?)))
}

/// RFC 2986 section 4, signed by `ecdsa-with-SHA512`.
fn p521_request(key: &p521::SecretKey) -> Result<Vec<u8>, PodKeyError> {
    const VERSION: &[u8] = &[0x02, 0x01, 0x00];
    const EMPTY_SUBJECT: &[u8] = &[SEQUENCE, 0x00];
    const NO_ATTRIBUTES: &[u8] = &[0xa0, 0x00];
    const ECDSA_WITH_SHA512: &[u8] = &[
        SEQUENCE, 0x0a, 0x06, 0x08, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x04, 0x03, 0x04,
    ];
    let public = key
        .public_key()
        .to_public_key_der()
        .map_err(|error| PodKeyError::Encode(error.into()))?;
    let info = der(
        SEQUENCE,
        &[VERSION, EMPTY_SUBJECT, public.as_bytes(), NO_ATTRIBUTES],
    );
    let signing = SigningKey::from_bytes(&key.to_bytes()).map_err(PodKeyError::Sign)?;
    let signed: Result<Signature, _> = signing.try_sign_with_rng(&mut OsRng, &info);
    let signature: DerSignature = signed.map_err(PodKeyError::Sign)?.to_der();
    // The first byte counts unused bits.
    let signature = der(BIT_STRING, &[&[0], signature.as_bytes()]);
    Ok(der(SEQUENCE, &[&info, ECDSA_WITH_SHA512, &signature]))
}

const SEQUENCE: u8 = 0x30;
const BIT_STRING: u8 = 0x03;

/// An element of these parts, which are shorter than 64 KiB.
fn der(tag: u8, parts: &[&[u8]]) -> Vec<u8> {
    let length: usize = parts.iter().map(|part| part.len()).sum();
    let [.., high, low] = length.to_be_bytes();
    let mut element = vec![tag];
    match (high, low) {
        (0, 0..=0x7f) => element.push(low),
        (0, _) => element.extend([0x81, low]),
        _ => element.extend([0x82, high, low]),
    }
    element.extend(parts.concat());
    element
}

#[cfg(test)]
mod tests {
    use larder_objects::x509::{PublicKey, requested_key};
    use p521::ecdsa::{VerifyingKey, signature::Verifier as _};

    use super::*;

    #[test]
    fn a_request_is_for_the_key_and_has_no_subject() {
        // projection 74
        for (key_type, expected) in [
            ("RSA3072", PublicKey::Rsa(3072)),
            ("ECDSAP256", PublicKey::Elliptic(Some("P-256"))),
            ("ECDSAP384", PublicKey::Elliptic(Some("P-384"))),
            ("ECDSAP521", PublicKey::Elliptic(Some("P-521"))),
            ("ED25519", PublicKey::Ed25519),
        ] {
            let key = PodKey::generate(key_type).unwrap();
            let request = key.stub_request().unwrap();
            let requested = requested_key(&request).unwrap();
            assert_eq!(PublicKey::parse(requested), Some(expected));
            let pem = key.private_key_pem().unwrap();
            assert!(pem.starts_with(b"-----BEGIN PRIVATE KEY-----\n"));
            let pem = std::str::from_utf8(&pem).unwrap();
            let pkcs8 = &pem::blocks(pem)[0].der;
            match key {
                PodKey::Ring(key) => assert_eq!(*pkcs8, key.serialize_der()),
                PodKey::P521(key) => {
                    use p521::pkcs8::DecodePrivateKey as _;
                    assert_eq!(p521::SecretKey::from_pkcs8_der(pkcs8).unwrap(), key);
                }
            }
        }
    }

    #[test]
    fn a_request_on_p521_is_signed_by_its_key() {
        let key = p521::SecretKey::random(&mut OsRng);
        let request = p521_request(&key).unwrap();
        // The head of the request has 4 bytes, that of what is signed has 3, its length the last. Then the algorithm,
        // and the head of the signature.
        let info = 4..4 + 3 + usize::from(request[6]);
        let signature = &request[info.end + 12 + 4..];
        let signature = Signature::from_der(signature).unwrap();
        let verifying = VerifyingKey::from_sec1_bytes(&key.public_key().to_sec1_bytes()).unwrap();
        verifying
            .verify(&request[info.clone()], &signature)
            .unwrap();
        let other = [&request[info], &[0]].concat();
        assert!(verifying.verify(&other, &signature).is_err());
    }

    #[test]
    fn an_unknown_key_type_is_named() {
        let Err(error) = PodKey::generate("RSA2048") else {
            panic!("made")
        };
        assert_eq!(
            error.to_string(),
            r#"unsupported keyType "RSA2048": expected one of RSA3072, RSA4096, ECDSAP256, ECDSAP384, ECDSAP521 or ED25519"#
        );
    }
}

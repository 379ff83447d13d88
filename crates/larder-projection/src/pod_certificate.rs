//! Key and certificates of `podCertificate` sources.

use larder_objects::{SecretBytes, pem};

/// The certificate of one source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodCertificate {
    /// The private key, PKCS#8 in PEM (`PRIVATE KEY`), with a final newline.
    pub private_key_pem: SecretBytes,
    /// The chain as the signer gave it, leaf first, in PEM.
    pub chain_pem: String,
}

impl PodCertificate {
    /// The chain as bare `CERTIFICATE` blocks.
    pub(crate) fn chain(&self) -> String {
        let blocks = pem::blocks(&self.chain_pem);
        blocks
            .iter()
            .map(|block| pem::encode_certificate(&block.der))
            .collect()
    }

    /// Key, then chain (kubelet 1.36, `pkg/kubelet/podcertificate`).
    pub(crate) fn bundle(&self) -> SecretBytes {
        let chain = self.chain();
        // Of the final size from the start: growing would leave a copy of the key behind in freed memory.
        let mut bundle = Vec::with_capacity(self.private_key_pem.len() + chain.len());
        bundle.extend_from_slice(&self.private_key_pem);
        bundle.extend_from_slice(chain.as_bytes());
        SecretBytes::new(bundle)
    }
}

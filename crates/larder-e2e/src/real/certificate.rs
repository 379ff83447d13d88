//! Client certificates of the node, kept and rotated as a kubelet keeps its own.

use std::{
    fmt, fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    time::Duration,
};

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DistinguishedName, DnType,
    ExtendedKeyUsagePurpose, IsCa, KeyPair, KeyUsagePurpose,
};

use crate::NODE;

/// How long the link is missing while it is replaced.
const GAP: Duration = Duration::from_millis(10);

/// An authority whose certificates the API server accepts.
pub(super) struct ClientAuthority(Box<CertifiedIssuer<'static, KeyPair>>);

impl fmt::Debug for ClientAuthority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientAuthority").finish_non_exhaustive()
    }
}

impl ClientAuthority {
    pub(super) fn generate() -> anyhow::Result<Self> {
        let mut params = CertificateParams::new([])?;
        params
            .distinguished_name
            .push(DnType::CommonName, "clients");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![
            KeyUsagePurpose::DigitalSignature,
            KeyUsagePurpose::KeyCertSign,
        ];
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate()?)?;
        Ok(Self(Box::new(issuer)))
    }

    /// Its certificate, as PEM.
    pub(super) fn certificate(&self) -> String {
        self.0.pem()
    }

    /// Puts a new certificate of the node into `folder`, in a new file. Then, as the kubelet does it, the link to the
    /// previous one is removed and a link to the new file is moved to its place. Returns the link.
    pub(super) async fn rotate(&self, folder: &Path) -> anyhow::Result<PathBuf> {
        let mut params = CertificateParams::new([])?;
        let mut name = DistinguishedName::new();
        name.push(DnType::OrganizationName, "system:nodes");
        name.push(DnType::CommonName, format!("system:node:{NODE}"));
        params.distinguished_name = name;
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        let key = KeyPair::generate()?;
        let certificate = params.signed_by(&key, &*self.0)?;
        let number = fs::read_dir(folder)?.count();
        let file = folder.join(format!("kubelet-client-{number}.pem"));
        fs::write(&file, certificate.pem() + &key.serialize_pem())?;
        let link = folder.join("kubelet-client-current.pem");
        let new = folder.join("new");
        symlink(&file, &new)?;
        if link.exists() {
            fs::remove_file(&link)?;
            // Longer than between two system calls, so that a reader can observe it.
            tokio::time::sleep(GAP).await;
        }
        fs::rename(new, &link)?;
        Ok(link)
    }
}

//! Verification of a server's certificate (rule H5).

use std::sync::Arc;

use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme,
    client::{
        WebPkiServerVerifier,
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
        verify_server_name,
    },
    crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature},
    server::ParsedCertificate,
};
use rustls_pki_types::{CertificateDer, ServerName, UnixTime, pem::PemObject as _};
use tokio::task::spawn_blocking;
use tokio_rustls::TlsConnector;

use super::{Files, HttpError};
use larder_on_change::HttpTls;

/// The connector for one request, and the name that the certificate must have. Reads files.
pub(super) async fn connector(
    tls: &HttpTls,
    host: &str,
    files: Files<'_>,
) -> Result<(TlsConnector, ServerName<'static>), HttpError> {
    let name = tls.server_name.as_deref().unwrap_or(host);
    let server = ServerName::try_from(name.to_owned()).map_err(|_| HttpError::ServerName {
        name: name.to_owned(),
    })?;
    let provider = Arc::new(ring::default_provider());
    let trusted = if tls.insecure_skip_verify {
        None
    } else {
        let (store, listed) = authorities(tls, files).await?;
        let (store, provider) = (Arc::new(store), Arc::clone(&provider));
        let roots = WebPkiServerVerifier::builder_with_provider(store, provider)
            .build()
            .expect("there are authorities, and no revocation lists");
        Some((roots, listed))
    };
    let mut config = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .expect("the provider knows the default versions")
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Verifier { provider, trusted }))
        .with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok((TlsConnector::from(Arc::new(config)), server))
}

/// The authorities, and the certificates of a file that the user has named.
async fn authorities(
    tls: &HttpTls,
    files: Files<'_>,
) -> Result<(RootCertStore, Vec<CertificateDer<'static>>), HttpError> {
    let (mut store, mut listed) = (RootCertStore::empty(), Vec::new());
    if let Some(path) = &tls.ca {
        let text = files.authorities(path)?;
        // As in Go's clients, an odd certificate leaves the others usable.
        listed.extend(CertificateDer::pem_slice_iter(&text).flatten());
        store.add_parsable_certificates(listed.iter().cloned());
        if store.is_empty() {
            return Err(HttpError::NoCaCertificates { path: path.clone() });
        }
    } else {
        // Hundreds of files on some systems.
        let found = spawn_blocking(|| rustls_native_certs::load_native_certs().certs).await;
        store.add_parsable_certificates(found.unwrap_or_default());
        if store.is_empty() {
            return Err(HttpError::NoSystemCaCertificates);
        }
    }
    Ok((store, listed))
}

/// Accepts a certificate of the authorities, and one that is listed itself, such as one that is its own authority; without
/// `trusted` every certificate, if the server has its key.
#[derive(Debug)]
struct Verifier {
    provider: Arc<CryptoProvider>,
    trusted: Option<(Arc<WebPkiServerVerifier>, Vec<CertificateDer<'static>>)>,
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let Some((roots, listed)) = &self.trusted else {
            return Ok(ServerCertVerified::assertion());
        };
        match roots.verify_server_cert(certificate, intermediates, name, ocsp, now) {
            // The period of validity is checked first, and has an error of its own.
            Err(rustls::Error::InvalidCertificate(
                CertificateError::Other(_) | CertificateError::UnknownIssuer,
            )) if listed.contains(certificate) => {
                verify_server_name(&ParsedCertificate::try_from(certificate)?, name)?;
                Ok(ServerCertVerified::assertion())
            }
            verified => verified,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signature, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signature, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider
            .signature_verification_algorithms
            .supported_schemes()
    }
}

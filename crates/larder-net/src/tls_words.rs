//! Errors of TLS in words.

use std::io;

use rustls::{CertificateError, Error};

/// Words a failed TLS handshake: rustls prints most errors of certificates as the names of its variants.
pub fn in_words(error: io::Error) -> io::Error {
    let inner = error.get_ref().and_then(|error| error.downcast_ref());
    let Some(Error::InvalidCertificate(reason)) = inner else {
        return error;
    };
    let words = match reason {
        CertificateError::UnknownIssuer => "it is signed by an unknown authority".to_owned(),
        CertificateError::Expired => "it has expired".to_owned(),
        CertificateError::NotValidYet => "it is not valid yet".to_owned(),
        CertificateError::Revoked => "it is revoked".to_owned(),
        CertificateError::NotValidForName => "it is for another name".to_owned(),
        CertificateError::BadSignature => "its signature is wrong".to_owned(),
        CertificateError::BadEncoding => "it cannot be decoded".to_owned(),
        CertificateError::InvalidPurpose => "it is not for servers".to_owned(),
        CertificateError::UnhandledCriticalExtension => {
            "it has a critical extension that is not supported".to_owned()
        }
        CertificateError::Other(_) => {
            "it is not for servers, as that of an authority, or is malformed".to_owned()
        }
        // Those with a context have words.
        reason => reason.to_string(),
    };
    io::Error::new(error.kind(), format!("invalid peer certificate: {words}"))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use rustls::OtherError;

    use super::*;

    #[test]
    fn no_name_of_a_variant_is_shown() {
        let other = OtherError(Arc::new(io::Error::other("CaUsedAsEndEntity")));
        for reason in [
            CertificateError::UnknownIssuer,
            CertificateError::Expired,
            CertificateError::Other(other),
        ] {
            let error = io::Error::other(Error::InvalidCertificate(reason.clone()));
            let text = in_words(error).to_string();
            let variant = format!("{reason:?}");
            assert!(!text.contains(variant.split('(').next().unwrap()), "{text}");
            assert!(text.starts_with("invalid peer certificate: it "), "{text}");
        }
        let other = in_words(io::Error::other("reset"));
        assert_eq!(other.to_string(), "reset");
    }
}

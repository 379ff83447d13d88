//! X.509, PKCS#10 and PEM: a parsed part is a part of the input, and an input with a byte more is another one.

use larder_objects::{
    pem,
    x509::{Certificate, PublicKey, requested_key},
};

/// Reads an input; `None` if it is rejected, and every block of it.
pub fn run(input: &[u8]) -> Option<()> {
    let mut is_accepted = check(input);
    let text = str::from_utf8(input).unwrap_or_default();
    for block in &pem::blocks(text) {
        is_accepted |= check(&block.der);
        let text = pem::encode_certificate(&block.der);
        let again = pem::blocks(&text);
        assert_eq!((again.len(), &again[0].der), (1, &block.der));
    }
    is_accepted.then_some(())
}

fn check(der: &[u8]) -> bool {
    let _ = PublicKey::parse(der);
    let key = requested_key(der);
    if let Some(key) = key {
        assert!(der.as_ptr_range().contains(&key.as_ptr()));
    }
    let certificate = Certificate::parse(der);
    if let Some(certificate) = &certificate {
        assert!(PublicKey::parse(certificate.public_key).is_some());
        for time in [&certificate.not_before, &certificate.not_after] {
            assert!(time.len() == 20 && time.ends_with('Z'), "{time}");
        }
    }
    let is_accepted = key.is_some() || certificate.is_some();
    if is_accepted {
        let more = [der, &[0]].concat();
        assert!(requested_key(&more).is_none() && Certificate::parse(&more).is_none());
    }
    is_accepted
}

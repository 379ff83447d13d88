//! X.509, PKCS#10 and PEM: nothing panics, and what is read is a part of what was given.

#![no_main]

use larder_objects::{
    pem,
    x509::{Certificate, PublicKey, requested_key},
};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|der: &[u8]| {
    check(der);
    if let Ok(text) = str::from_utf8(der) {
        for block in pem::blocks(text) {
            check(&block.der);
            let text = pem::encode_certificate(&block.der);
            let again = pem::blocks(&text);
            assert_eq!((again.len(), &again[0].der), (1, &block.der));
        }
    }
});

fn check(der: &[u8]) {
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
    // A byte more is another text.
    if key.is_some() || certificate.is_some() {
        let more = [der, &[0]].concat();
        assert!(requested_key(&more).is_none() && Certificate::parse(&more).is_none());
    }
}

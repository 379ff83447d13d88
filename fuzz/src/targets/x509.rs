//! X.509, PKCS#10 and PEM: a parsed part is a part of the input, and an input with a byte more is another one.

use larder_objects::{
    pem,
    x509::{Certificate, PublicKey, requested_key},
};

use super::{Reader::OfBytes, Target, repository_file};
use crate::{outcome::Outcome, structure::Structure};

pub(super) const TARGET: Target = Target {
    more_seeds: || {
        ["leaf", "root", "request"]
            .map(|name| repository_file(&format!("crates/larder-objects/src/x509/{name}.pem")))
            .into()
    },
    ..Target::new("x509", OfBytes(run), Structure::Der, 4 << 10)
};

fn run(input: &[u8]) -> Outcome {
    let mut outcome = check(input);
    let text = str::from_utf8(input).unwrap_or_default();
    let blocks = pem::blocks(text);
    for block in &blocks {
        let of_block = check(&block.der);
        outcome.is_accepted |= of_block.is_accepted;
        outcome = outcome
            .with_size(usize::from(of_block.is_accepted))
            .with(&block.has_headers);
        let text = pem::encode_certificate(&block.der);
        let again = pem::blocks(&text);
        assert_eq!((again.len(), &again[0].der), (1, &block.der));
    }
    outcome.with_size(blocks.len())
}

fn check(der: &[u8]) -> Outcome {
    let public_key = PublicKey::parse(der);
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
    let is_ca = certificate.as_ref().map(|certificate| certificate.is_ca);
    Outcome::new(is_accepted)
        .with(&format!("{is_ca:?} {}", public_key.is_some()))
        .with_size(der.len())
}

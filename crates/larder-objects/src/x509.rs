//! The parts of X.509 and PKCS#10 needed to check input of users and signers: structure, not signatures.
//!
//! Sources: RFC 5280 section 4.1, RFC 2986 section 4.1, X.690 (DER).

use k8s_openapi::jiff::civil::DateTime;

/// The fields of a certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Certificate<'a> {
    /// When it begins, as the API writes times: `2026-01-31T12:00:00Z`.
    pub not_before: String,
    /// When it ends, in the same form.
    pub not_after: String,
    /// The key that it certifies: a SubjectPublicKeyInfo in DER.
    pub public_key: &'a [u8],
    /// Whether it may certify others: the CA bit of its basic constraints.
    pub is_ca: bool,
    /// The common name of its subject, if that has exactly one.
    pub common_name: Option<&'a str>,
}

/// The type of the key in a SubjectPublicKeyInfo.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PublicKey {
    /// Ed25519.
    Ed25519,
    /// Elliptic, on this curve: `P-256`, `P-384`, `P-521`; another one's name is not known.
    Elliptic(Option<&'static str>),
    /// RSA, with a modulus of so many bits.
    Rsa(usize),
}

const SEQUENCE: u8 = 0x30;
const INTEGER: u8 = 0x02;
const BIT_STRING: u8 = 0x03;
const OCTET_STRING: u8 = 0x04;
const BOOLEAN: u8 = 0x01;
const OID: u8 = 0x06;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;
const SET: u8 = 0x31;
const UTF8_STRING: u8 = 0x0c;
const PRINTABLE_STRING: u8 = 0x13;
const CONTEXT_0: u8 = 0xa0;
const CONTEXT_3: u8 = 0xa3;

const BASIC_CONSTRAINTS: &[u8] = &[0x55, 0x1d, 0x13];
const COMMON_NAME: &[u8] = &[0x55, 0x04, 0x03];
const ED25519: &[u8] = &[0x2b, 0x65, 0x70];
const RSA: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 0x01];
const ELLIPTIC: &[u8] = &[0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01];
const CURVES: [(&str, &[u8]); 3] = [
    ("P-256", &[0x2a, 0x86, 0x48, 0xce, 0x3d, 0x03, 0x01, 0x07]),
    ("P-384", &[0x2b, 0x81, 0x04, 0x00, 0x22]),
    ("P-521", &[0x2b, 0x81, 0x04, 0x00, 0x23]),
];

impl<'a> Certificate<'a> {
    /// Reads `der`; `None` if it is no certificate.
    pub fn parse(der: &'a [u8]) -> Option<Self> {
        let mut body = Reader(signed_body(der)?);
        body.skip(CONTEXT_0);
        body.next(INTEGER)?;
        // Algorithm and issuer.
        body.next(SEQUENCE)?;
        body.next(SEQUENCE)?;
        let mut validity = Reader(body.next(SEQUENCE)?);
        let (not_before, not_after) = (validity.time()?, validity.time()?);
        let common_name = common_name(body.next(SEQUENCE)?);
        let public_key = body.whole(SEQUENCE)?;
        PublicKey::parse(public_key)?;
        // Unique identifiers of issuer and subject.
        for tag in [0xa1, 0x81, 0xa2, 0x82] {
            body.skip(tag);
        }
        let is_ca = match body.skip(CONTEXT_3) {
            Some(extensions) => is_ca(extensions)?,
            None => false,
        };
        body.end()?;
        Some(Self {
            not_before,
            not_after,
            public_key,
            is_ca,
            common_name,
        })
    }
}

impl PublicKey {
    /// Reads a SubjectPublicKeyInfo; `None` if it is none, or of another sort.
    pub fn parse(der: &[u8]) -> Option<Self> {
        let mut outer = Reader(der);
        let mut info = Reader(outer.next(SEQUENCE)?);
        outer.end()?;
        let mut algorithm = Reader(info.next(SEQUENCE)?);
        let key = info.next(BIT_STRING)?;
        info.end()?;
        match algorithm.next(OID)? {
            ED25519 => Some(Self::Ed25519),
            ELLIPTIC => {
                let curve = algorithm.next(OID)?;
                let known = CURVES.iter().find(|(_, id)| *id == curve);
                Some(Self::Elliptic(known.map(|(name, _)| *name)))
            }
            RSA => {
                // The first byte counts unused bits.
                let mut key = Reader(key.strip_prefix(&[0])?);
                let modulus = Reader(key.next(SEQUENCE)?).next(INTEGER)?;
                let modulus = modulus.strip_prefix(&[0]).unwrap_or(modulus);
                let unused = modulus.first()?.leading_zeros() as usize;
                Some(Self::Rsa(modulus.len() * 8 - unused))
            }
            _ => None,
        }
    }
}

/// The key, a SubjectPublicKeyInfo in DER, that a PKCS#10 request is about; `None` if `der` is no such request.
pub fn requested_key(der: &[u8]) -> Option<&[u8]> {
    let mut body = Reader(signed_body(der)?);
    body.next(INTEGER)?;
    // The subject.
    body.next(SEQUENCE)?;
    let public_key = body.whole(SEQUENCE)?;
    // The attributes, which some leave out.
    body.skip(CONTEXT_0);
    body.end()?;
    Some(public_key)
}

/// What is signed: of a sequence of it, an algorithm and a signature.
fn signed_body(der: &[u8]) -> Option<&[u8]> {
    let mut outer = Reader(der);
    let mut signed = Reader(outer.next(SEQUENCE)?);
    outer.end()?;
    let body = signed.next(SEQUENCE)?;
    signed.next(SEQUENCE)?;
    signed.next(BIT_STRING)?;
    signed.end()?;
    Some(body)
}

/// The common name among the attributes of `subject`; `None` unless they are well-formed and there is exactly one.
fn common_name(subject: &[u8]) -> Option<&str> {
    let (mut subject, mut found) = (Reader(subject), None);
    while !subject.0.is_empty() {
        let mut attributes = Reader(subject.next(SET)?);
        while !attributes.0.is_empty() {
            let mut attribute = Reader(attributes.next(SEQUENCE)?);
            if attribute.next(OID)? == COMMON_NAME {
                let text = attribute
                    .skip(UTF8_STRING)
                    .or_else(|| attribute.skip(PRINTABLE_STRING))?;
                if found.replace(str::from_utf8(text).ok()?).is_some() {
                    return None;
                }
            }
        }
    }
    found
}

/// The CA bit among `extensions`; `None` if they are malformed.
fn is_ca(extensions: &[u8]) -> Option<bool> {
    let mut outer = Reader(extensions);
    let mut list = Reader(outer.next(SEQUENCE)?);
    outer.end()?;
    let mut is_ca = false;
    while !list.0.is_empty() {
        let mut extension = Reader(list.next(SEQUENCE)?);
        let id = extension.next(OID)?;
        extension.skip(BOOLEAN);
        let value = extension.next(OCTET_STRING)?;
        extension.end()?;
        if id == BASIC_CONSTRAINTS {
            let mut constraints = Reader(Reader(value).next(SEQUENCE)?);
            is_ca = constraints.skip(BOOLEAN) == Some(&[0xff]);
        }
    }
    Some(is_ca)
}

/// Reads DER elements one after the other.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    /// The next element if it has this tag: all of it, and the length of its head.
    fn element(&mut self, tag: u8) -> Option<(&'a [u8], usize)> {
        let (&found, rest) = self.0.split_first()?;
        let (&first, rest) = rest.split_first()?;
        if found != tag {
            return None;
        }
        let (length, head) = match first {
            // Up to four bytes of length: more is no certificate of this world.
            0x81..=0x84 => {
                let count = usize::from(first & 0x7f);
                let bytes = rest.get(..count)?.iter();
                let length = bytes.fold(0_usize, |length, byte| length << 8 | usize::from(*byte));
                (length, 2 + count)
            }
            0x00..=0x7f => (usize::from(first), 2),
            _ => return None,
        };
        let (element, rest) = self.0.split_at_checked(head.checked_add(length)?)?;
        self.0 = rest;
        Some((element, head))
    }

    /// The content of the next element, which must have this tag.
    fn next(&mut self, tag: u8) -> Option<&'a [u8]> {
        self.element(tag).map(|(element, head)| &element[head..])
    }

    /// The next element with its head.
    fn whole(&mut self, tag: u8) -> Option<&'a [u8]> {
        self.element(tag).map(|(element, _)| element)
    }

    /// The content of the next element if it has this tag; otherwise it stays the next.
    fn skip(&mut self, tag: u8) -> Option<&'a [u8]> {
        (self.0.first() == Some(&tag)).then(|| self.next(tag))?
    }

    /// A time of either form: the short one is of the years from 1950 to 2049.
    fn time(&mut self) -> Option<String> {
        let (form, century) = match self.skip(UTC_TIME) {
            Some(short) if short < &b"50"[..] => (short, "20"),
            Some(short) => (short, "19"),
            None => (self.next(GENERALIZED_TIME)?, ""),
        };
        let digits = [century, str::from_utf8(form).ok()?.strip_suffix('Z')?].concat();
        let is_whole = digits.len() == 14 && digits.bytes().all(|byte| byte.is_ascii_digit());
        let time = is_whole.then(|| DateTime::strptime("%Y%m%d%H%M%S", digits).ok())??;
        Some(format!("{time}Z"))
    }

    fn end(&self) -> Option<()> {
        self.0.is_empty().then_some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pem;

    /// A root with an Ed25519 key, and a leaf with an RSA key. Their private keys were discarded.
    const ROOT: &str = include_str!("x509/root.pem");
    const LEAF: &str = include_str!("x509/leaf.pem");
    /// A request without a subject, for a key on P-384.
    const REQUEST: &str = include_str!("x509/request.pem");

    fn der(text: &str) -> Vec<u8> {
        pem::blocks(text).remove(0).der
    }

    #[test]
    fn a_certificate_has_times_key_and_authority_flag() {
        let (root, leaf) = (der(ROOT), der(LEAF));
        let root = Certificate::parse(&root).unwrap();
        assert!(root.is_ca);
        assert_eq!(PublicKey::parse(root.public_key), Some(PublicKey::Ed25519));
        assert_eq!(root.not_before, "2026-01-31T12:00:00Z");
        // Beyond 2049 the other form of time is used.
        assert_eq!(root.not_after, "2126-01-31T12:00:00Z");
        let leaf = Certificate::parse(&leaf).unwrap();
        assert!(!leaf.is_ca);
        assert_eq!(
            (root.common_name, leaf.common_name),
            (Some("root"), Some("leaf"))
        );
        assert_eq!(
            PublicKey::parse(leaf.public_key),
            Some(PublicKey::Rsa(3072))
        );
    }

    #[test]
    fn a_request_contains_its_key() {
        let request = der(REQUEST);
        let key = requested_key(&request).unwrap();
        assert_eq!(
            PublicKey::parse(key),
            Some(PublicKey::Elliptic(Some("P-384")))
        );
        assert_eq!(Certificate::parse(&request), None);
    }

    #[test]
    fn truncated_input_and_trailing_bytes_are_rejected() {
        for whole in [der(ROOT), der(LEAF), der(REQUEST)] {
            for length in 0..whole.len() {
                assert_eq!(Certificate::parse(&whole[..length]), None);
                assert_eq!(requested_key(&whole[..length]), None);
            }
            let more = [&whole[..], &[0]].concat();
            assert_eq!(Certificate::parse(&more), None);
            assert_eq!(requested_key(&more), None);
        }
    }

    #[test]
    fn no_byte_that_is_another_makes_it_panic() {
        for whole in [der(ROOT), der(LEAF), der(REQUEST)] {
            for at in 0..whole.len() {
                for byte in [0x00, 0x01, 0x30, 0x7f, 0x80, 0x81, 0x84, 0x85, 0xa0, 0xff] {
                    let mut other = whole.clone();
                    other[at] = byte;
                    // Times and keys may differ; what counts is that there is an answer.
                    let _ = Certificate::parse(&other);
                    let _ = requested_key(&other).map(PublicKey::parse);
                }
            }
        }
    }
}

//! The JSON encoding of the fields of ConfigMaps and Secrets in the API.

use base64::{
    Engine as _, alphabet,
    engine::{GeneralPurpose, GeneralPurposeConfig},
};
use serde::{Deserialize, Deserializer};
use zeroize::Zeroizing;

/// `null` for a field stands for its absence, as everywhere in the API.
pub(crate) fn null_as_default<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de> + Default,
{
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

/// Standard base64 as Go reads it: padded, but what is left of the last character's bits may be anything.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &alphabet::STANDARD,
    GeneralPurposeConfig::new().with_decode_allow_trailing_bits(true),
);

/// Decodes standard base64, line breaks ignored, as Go does it. What a failed attempt leaves behind is zeroized.
pub(crate) fn decode_base64(text: &str) -> Option<Vec<u8>> {
    if text.contains(['\r', '\n']) {
        let mut packed = Zeroizing::new(String::with_capacity(text.len()));
        packed.extend(text.split(['\r', '\n']));
        return decode_base64(&packed);
    }
    // Exactly sized up front: growing would leave a copy behind in freed memory.
    let mut bytes = Zeroizing::new(vec![0; base64::decoded_len_estimate(text.len())]);
    let length = BASE64.decode_slice(text, &mut bytes).ok()?;
    bytes.truncate(length);
    Some(std::mem::take(&mut *bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_is_taken_as_go_takes_it() {
        // As kube-apiserver 1.36 answered.
        for good in ["YQ==", "YR==", "YQ==\n", "Y\nQ==", "YQ=\r\n="] {
            assert_eq!(decode_base64(good).as_deref(), Some(&b"a"[..]), "{good:?}");
        }
        for bad in ["YQ", "YQ=", "Y Q==", "_-__", "====", "=", "YQ==YQ=="] {
            assert_eq!(decode_base64(bad), None, "{bad:?}");
        }
    }
}

//! Env files: the first line is the key, the rest is the file. Reading stops at the key.

use larder_projection::env_file_value;

use super::{Reader::OfBytes, Target};
use crate::{outcome::Outcome, structure::Structure};

pub(super) const TARGET: Target = Target::new("env_file", OfBytes(run), Structure::Bytes, 4 << 10);

fn run(input: &[u8]) -> Outcome {
    let end = input.iter().position(|&byte| byte == b'\n').unwrap_or(0);
    let (key, content) = input.split_at(end);
    let Ok(key) = str::from_utf8(key) else {
        return Outcome::rejected(&"the key is not text");
    };
    let value = match env_file_value(content, key) {
        Ok(value) => value,
        Err(error) => return Outcome::rejected(&error),
    };
    if !value.is_empty() {
        assert!(!value.contains(&b'\''), "a value ends at its quote");
        let more = [content, b"\nbroken"].concat();
        assert_eq!(env_file_value(&more, key).as_deref(), Ok(&value[..]));
    }
    Outcome::accepted().with_size(value.len())
}

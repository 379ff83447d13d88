//! Env files: the first line is the key, the rest is the file. Reading stops at the key.

use larder_projection::env_file_value;

/// Reads an input. Returns whether it was accepted.
pub fn run(input: &[u8]) -> bool {
    let end = input.iter().position(|&byte| byte == b'\n').unwrap_or(0);
    let (key, content) = input.split_at(end);
    let Ok(key) = str::from_utf8(key) else {
        return false;
    };
    let Ok(value) = env_file_value(content, key) else {
        return false;
    };
    if !value.is_empty() {
        assert!(!value.contains(&b'\''), "a value ends at its quote");
        let more = [content, b"\nbroken"].concat();
        assert_eq!(env_file_value(&more, key).as_deref(), Ok(&value[..]));
    }
    true
}

//! Env files: the first line is the key, the rest is the file. Reading stops at the key.

use larder_projection::env_file_value;

/// Reads an input; `None` if it is rejected.
pub fn run(input: &[u8]) -> Option<()> {
    let end = input.iter().position(|&byte| byte == b'\n').unwrap_or(0);
    let (key, content) = input.split_at(end);
    let key = str::from_utf8(key).ok()?;
    let value = env_file_value(content, key).ok()?;
    if !value.is_empty() {
        assert!(!value.contains(&b'\''), "a value ends at its quote");
        let more = [content, b"\nbroken"].concat();
        assert_eq!(env_file_value(&more, key).as_deref(), Ok(&value[..]));
    }
    Some(())
}

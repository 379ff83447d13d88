//! Env files: the first line is the key, the rest is the file.

#![no_main]

use larder_projection::env_file_value;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let end = data.iter().position(|&byte| byte == b'\n').unwrap_or(0);
    let (key, content) = data.split_at(end);
    let Ok(key) = std::str::from_utf8(key) else {
        return;
    };
    let value = env_file_value(content, key);
    // Reading stops at the key: what comes after it changes nothing.
    if let Ok(value) = value
        && !value.is_empty()
    {
        assert!(!value.contains(&b'\''));
        let more = [content, b"\nbroken"].concat();
        assert_eq!(env_file_value(&more, key).as_deref(), Ok(&value[..]));
    }
});

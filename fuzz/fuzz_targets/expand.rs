//! `$(VAR)` expansion: one pass, and texts without a reference stay as they are but for `$$`.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    let unknown = larder_projection::expand(text, |_| None);
    assert!(unknown.len() <= text.len());
    if !text.contains("$$") {
        assert_eq!(unknown, text.as_bytes());
    }
    let mut names = Vec::new();
    let emptied = larder_projection::expand(text, |name| {
        names.push(name.to_owned());
        Some(b"")
    });
    assert!(emptied.len() <= unknown.len());
    assert!(names.iter().all(|name| !name.contains(')')));
});

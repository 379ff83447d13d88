//! `$(VAR)` expansion: one pass; without `$$` and without known names a text stays as it is.

/// Reads an input; `None` if it names no variable.
pub fn run(input: &[u8]) -> Option<()> {
    let text = str::from_utf8(input).ok()?;
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
    (!names.is_empty()).then_some(())
}

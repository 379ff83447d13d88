//! Where a redirect leads (RFC 3986, section 5; names such as `..` are left to the server).

/// The URL to which `location` leads from `scheme://authority` and `path`, without its fragment. The caller checks that
/// it may be followed.
pub fn redirect_target(scheme: &str, authority: &str, path: &str, location: &str) -> String {
    let location = location.split('#').next().unwrap_or_default();
    let path = path.split('?').next().unwrap_or_default();
    let directory = path.rfind('/').map_or("/", |at| &path[..=at]);
    // A path or query may contain a URL.
    let start = location.find([':', '/', '?']).unwrap_or(location.len());
    match &location[start..] {
        rest if rest.starts_with("://") => location.to_owned(),
        _ if location.starts_with("//") => format!("{scheme}:{location}"),
        _ if location.starts_with('/') => format!("{scheme}://{authority}{location}"),
        _ if location.is_empty() || location.starts_with('?') => {
            format!("{scheme}://{authority}{path}{location}")
        }
        _ => format!("{scheme}://{authority}{directory}{location}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locations_are_resolved_against_the_url_that_was_asked() {
        for (location, expected) in [
            ("/x#top", "http://u:p@h:80/x"),
            (
                "/login?next=https://other/",
                "http://u:p@h:80/login?next=https://other/",
            ),
            ("x", "http://u:p@h:80/a/x"),
            (
                "x?next=https://other/",
                "http://u:p@h:80/a/x?next=https://other/",
            ),
            ("?d", "http://u:p@h:80/a/b?d"),
            ("", "http://u:p@h:80/a/b"),
            ("//other/x", "http://other/x"),
            ("https://other/x", "https://other/x"),
            ("file:///etc/passwd", "file:///etc/passwd"),
        ] {
            assert_eq!(
                redirect_target("http", "u:p@h:80", "/a/b?c", location),
                expected
            );
        }
        // Never a part of the host's name.
        assert_eq!(redirect_target("http", "h", "", "x"), "http://h/x");
    }
}

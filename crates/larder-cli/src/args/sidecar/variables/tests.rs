use super::*;

fn read(variables: &[(&str, &str)]) -> Result<LabelVariables, Vec<String>> {
    let base = [("LABEL", "l"), ("FOLDER", "/f"), ("NAMESPACE", "n")];
    let all = base.iter().chain(variables);
    let find = |name: &str| {
        let mut found = all.clone().filter(|(known, _)| *known == name);
        found.next_back().map(|(_, value)| (*value).to_owned())
    };
    LabelVariables::read(find)
}

// sidecar 3
#[test]
fn bad_value_is_an_error_that_names_its_variable() {
    let bad = [
        ("DEFAULT_FILE_MODE", "rw"),
        ("DISABLE_X509_STRICT_VERIFICATION", "maybe"),
        ("ENABLE_5XX", "maybe"),
        ("ERROR_THROTTLE_SLEEP", "x"),
        ("FOLDER", ""),
        ("HEALTH_HOST", "here"),
        ("HEALTH_PORT", "99999"),
        ("IGNORE_ALREADY_PROCESSED", "maybe"),
        ("LABEL", "a\nb"),
        ("LABEL_VALUE", "a\nb"),
        ("LARDER_DEBOUNCE", "5s:1s"),
        ("LARDER_FOLDER_ROOTS", "relative"),
        ("LARDER_SCRIPT_TIMEOUT", "5"),
        ("LARDER_URL_CREDENTIALS", "x"),
        ("LARDER_URL_KEYS", "x"),
        ("LARDER_URL_REFRESH", "x"),
        ("LOG_FORMAT", "XML"),
        ("LOG_LEVEL", "LOUD"),
        ("LOG_TZ", "MARS"),
        ("NAMESPACE", "A/B"),
        ("REQ_BASIC_AUTH_ENCODING", "cp037"),
        ("REQ_METHOD", "DELETE"),
        ("REQ_RETRY_BACKOFF_FACTOR", "-1"),
        ("REQ_RETRY_CONNECT", "x"),
        ("REQ_RETRY_READ", "x"),
        ("REQ_RETRY_TOTAL", "x"),
        ("REQ_SKIP_INIT", "maybe"),
        ("REQ_SKIP_TLS_VERIFY", "maybe"),
        ("REQ_TIMEOUT", "0"),
        ("REQ_URL", "ftp://h"),
        ("RESOURCE", "pod"),
        ("RESOURCE_NAME", "a/b/c/d"),
        ("SKIP_TLS_VERIFY", "maybe"),
        ("SLEEP_TIME", "x"),
        ("UNIQUE_FILENAMES", "maybe"),
        ("WATCH_CLIENT_TIMEOUT", "x"),
        ("WATCH_SERVER_TIMEOUT", "x"),
    ];
    for (name, value) in bad {
        let errors = read(&[(name, value)]).unwrap_err();
        assert_eq!(errors.len(), 1, "{errors:?}");
        assert!(errors[0].starts_with(&format!("{name}: ")), "{errors:?}");
    }
    for (name, value) in [
        ("METHOD", "POLL"),
        ("LABEL", ""),
        ("RESOURCE_NAME", "x,secret/x"),
        ("RESOURCE_NAME", "other/configmap/x"),
        ("SKIP_TLS_VERIFY", "true"),
    ] {
        let warnings = read(&[(name, value)]).unwrap().warnings;
        assert!(warnings[0].starts_with(name), "{warnings:?}");
    }
    let errors = read(&[("RESOURCE", "x"), ("REQ_METHOD", "y")]).unwrap_err();
    assert_eq!(errors.len(), 2, "all mistakes at once");
}

#[test]
fn kubeconfig_in_the_folder_is_not_used() {
    let root = tempfile::tempdir().unwrap();
    let config = root.path().join(".kube/config");
    fs::create_dir(root.path().join(".kube")).unwrap();
    fs::write(&config, "").unwrap();
    let home = root.path().to_str().unwrap();
    let of = |folder: &str| read(&[("HOME", home), ("FOLDER", folder)]).unwrap();
    assert_eq!(of("/f").kubeconfig, Some(config));
    let read = of(&format!("{home}/."));
    assert_eq!(read.kubeconfig, None);
    assert!(read.warnings[0].starts_with("HOME: "));
}

// sidecar 1
#[test]
fn label_and_folder_are_required() {
    let read = LabelVariables::read(|_| None);
    let errors = read.unwrap_err().join("\n");
    for name in [
        "LABEL: is required",
        "FOLDER: is required",
        "NAMESPACE: is not set",
    ] {
        assert!(errors.contains(name), "{errors}");
    }
}

// sidecar 18
#[test]
fn namespaces_may_have_blanks_around_them() {
    let of = |text| {
        let settings = read(&[("NAMESPACE", text)]).unwrap().settings;
        let selections = settings.selections.into_iter();
        selections.map(|one| one.namespace).collect::<Vec<_>>()
    };
    assert_eq!(of(" a, b"), [Some("a".into()), Some("b".into())]);
    assert_eq!(of("a,ALL"), [None]);
}

// sidecar 17
#[test]
fn mode_is_octal_with_or_without_a_leading_zero() {
    for text in ["440", "0440"] {
        let settings = read(&[("DEFAULT_FILE_MODE", text)]).unwrap().settings;
        assert_eq!(settings.files.mode, Some(0o440));
    }
}

// sidecar 37
#[test]
fn payload_is_json_or_becomes_a_json_string() {
    for (text, expected) in [(r#"{"a": 1}"#, r#"{"a":1}"#), ("abc", "\"abc\"")] {
        let variables = [
            ("REQ_PAYLOAD", text),
            ("REQ_URL", "http://h/"),
            ("REQ_METHOD", "POST"),
        ];
        let request = read(&variables).unwrap().settings.request.unwrap();
        assert_eq!(request.call.body, expected);
    }
}

#[test]
fn neither_credentials_nor_payload_are_shown() {
    let variables = [
        ("REQ_USERNAME", "canary"),
        ("REQ_PASSWORD", "canary"),
        ("REQ_PAYLOAD", "canary"),
        ("REQ_URL", "http://canary:canary@h/?canary"),
    ];
    let shown = format!("{:?}", read(&variables).unwrap());
    assert!(!shown.contains("canary"), "{shown}");
}

#[test]
fn level_of_root_is_read_from_a_python_configuration() {
    let text = "version: 1\nhandlers:\n  x:\n    level: ERROR\nroot:\n  handlers: [x]\n  level: \"DEBUG\"\n";
    assert_eq!(root_level(text), Some("DEBUG"));
    assert_eq!(root_level("version: 1\n"), None);
}

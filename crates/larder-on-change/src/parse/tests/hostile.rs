//! Annotations as an attacker writes them: each costs little, and is rejected or harmless.

use std::collections::BTreeMap;

use super::*;

fn annotated(annotations: impl IntoIterator<Item = (String, String)>) -> Vec<AnnotatedHooks> {
    let annotations: BTreeMap<_, _> = annotations.into_iter().collect();
    annotated_hooks(&annotations, AllowedActions::default(), &outline("Always"))
}

// on-change 6
#[test]
fn thousands_of_annotations_have_a_few_errors() {
    let many = (0..10_000).map(|number| (format!("{ANNOTATION_PREFIX}{number}"), String::new()));
    let found = annotated(many);
    assert_eq!(found.len(), MAX_HOOKS + 1);
    let too_many = HookError::whole(TOO_MANY);
    assert!(
        found
            .iter()
            .all(|one| one.hooks.as_ref().err() == Some(&too_many))
    );
}

// on-change 6
#[test]
fn thousands_of_hooks_are_rejected() {
    for text in [
        "- {}\n".repeat(3000),
        "- signal: HUP\n".repeat(1000),
        "-\n".repeat(8000),
    ] {
        assert!(text.len() <= MAX_TEXT);
        assert!(hooks(&text, POD, Some(&outline("Always"))).is_err());
    }
}

#[test]
fn aliases_of_aliases_are_rejected_before_they_expand_far() {
    let laughs = (1..30).fold("- &a0 [x]\n".to_owned(), |text, level| {
        let aliases = vec![format!("*a{}", level - 1); 9].join(", ");
        format!("{text}- &a{level} [{aliases}]\n")
    });
    // The line says how much was read: each one repeats nine times as much as the one before.
    let rejected = HookError {
        line: Some(4),
        ..HookError::whole("aliases repeat too much of the text")
    };
    assert_eq!(hooks(&laughs, POD, Some(&outline("Always"))), Err(rejected));
}

#[test]
fn aliases_repeat_what_hooks_share() {
    let first = "- &web {http: {port: 80, headers: &same {a: b, c: d, e: f, g: h}}, timeout: 5s, retry: {min: 1s}}\n";
    let text = first.to_owned() + &"- {<<: *web, paths: [x]}\n".repeat(MAX_HOOKS - 1);
    let found = hooks(&text, POD, Some(&outline("Always")));
    assert_eq!(found.map(|hooks| hooks.len()), Ok(MAX_HOOKS));
}

#[test]
fn nested_and_repeated_yaml_is_rejected() {
    for text in [
        "[".repeat(16_000),
        "{a: ".repeat(4000),
        "- ".repeat(8000),
        "- &a [*a]".to_owned(),
        "- {signal: HUP, signal: USR1}".to_owned(),
        "- {signal: HUP}\n---\n- {signal: USR1}".to_owned(),
    ] {
        let shown: String = text.chars().take(40).collect();
        assert!(
            hooks(&text, POD, Some(&outline("Always"))).is_err(),
            "{shown}"
        );
    }
}

#[test]
fn names_are_short_and_printable() {
    let named = |name: &str| {
        let text = json!([{"name": name, "signal": "HUP"}]).to_string();
        hooks(&text, POD, Some(&outline("Always")))
    };
    assert!(named("näme of a hook").is_ok());
    let long = "x".repeat(64);
    for name in ["", "a\0b", "a\nb", "\u{1b}[31m", &long] {
        let error = named(name).unwrap_err().to_string();
        let expected = "[0].name: expected a name of 1 to 63 bytes without control characters";
        assert_eq!(error, expected, "{name:?}");
    }
    // The reader rejects these.
    for name in ["\u{85}", "\u{9b}", "\u{2028}"] {
        assert!(named(name).is_err(), "{name:?}");
    }
}

// Attack: hooks of one pod hold the places of the node, each for as long as it likes.
#[test]
fn annotated_steps_do_not_wait_for_ever() {
    for (text, message) in [
        (
            "[{signal: HUP, timeout: 6m}]",
            "[0].timeout: expected at most 5m in an annotation",
        ),
        (
            "[{steps: [{http: 9090/}, {restart: true}], timeout: 1h}]",
            "[0].timeout: expected at most 5m in an annotation",
        ),
        (
            "[{steps: [{http: 1/}, {http: 1/}, {restart: true}, {http: 1/}], timeout: 2m}]",
            "[0].steps: expected timeouts of at most 5m together in an annotation",
        ),
        (
            "[{restart: true, timeout: 2h}]",
            "[0].timeout: expected at most 1h in an annotation",
        ),
        (
            "[{restart: {signal: SIGWINCH, grace: 8000h}}]",
            "[0].restart.grace: expected at most 1h in an annotation",
        ),
        (
            "[{steps: [{signal: HUP}, {restart: {grace: 61m}}]}]",
            "[0].steps[1].restart.grace: expected at most 1h in an annotation",
        ),
    ] {
        let error = hooks(text, POD, Some(&outline("Always"))).unwrap_err();
        assert_eq!(error.to_string(), message);
        assert!(hooks(text, HookOrigin::Configuration, None).is_ok());
    }
    for longest in [
        "[{restart: {grace: 1h}, timeout: 1h}]",
        "[{steps: [{http: 1/}, {restart: true}, {http: 1/}], timeout: 150s}]",
    ] {
        assert!(hooks(longest, POD, Some(&outline("Always"))).is_ok());
    }
    let many = "{http: 1/},".repeat(31);
    let error = hooks(
        &format!("[{{steps: [{many}]}}]"),
        POD,
        Some(&outline("Always")),
    );
    assert!(error.is_err(), "31 steps of 10 s by default");
}

// Attack: hooks that fail keep the node busy with attempts.
#[test]
fn annotated_retries_leave_the_node_time() {
    for (retry, message) in [
        (
            "{min: 0s}",
            "[0].retry.min: expected at least 1s in an annotation",
        ),
        (
            "{max: 59s}",
            "[0].retry.max: expected at least 1m in an annotation",
        ),
    ] {
        let text = format!("[{{signal: HUP, retry: {retry}}}]");
        let error = hooks(&text, POD, Some(&outline("Always"))).unwrap_err();
        assert_eq!(error.to_string(), message);
        assert!(hooks(&text, HookOrigin::Configuration, None).is_ok());
    }
    let least = "[{signal: HUP, retry: {min: 1s, max: 1m, attempts: 9}}]";
    assert!(hooks(least, POD, Some(&outline("Always"))).is_ok());
}

#[test]
fn patterns_of_an_annotation_are_short() {
    let text = |length: usize| format!("[{{signal: HUP, paths: ['{}']}}]", "?".repeat(length));
    assert!(hooks(&text(1024), POD, Some(&outline("Always"))).is_ok());
    check(
        &text(1025),
        POD,
        expect!["[0].paths: expected at most 1 KiB in an annotation"],
    );
    assert!(hooks(&text(1025), HookOrigin::Configuration, None).is_ok());
}

#[test]
fn requests_that_could_not_be_sent_are_rejected() {
    for http in [
        json!({"port": 80, "path": "/a#b"}),
        json!({"port": 80, "path": "/a b"}),
        json!({"port": 80, "path": "/\u{e4}"}),
        json!({"port": 80, "path": "/a\r\nhost: x"}),
        json!({"port": 80, "path": "a"}),
        json!({"port": 0}),
        json!({"port": 65536}),
        json!({"port": -1}),
        json!({"port": 80.5}),
        json!({"port": "99999"}),
        json!({"port": 80, "headers": {"a": "\u{7f}"}}),
        json!({"port": 80, "tls": {"serverName": "a b"}}),
        json!({"port": 80, "tls": {"serverName": ""}}),
    ] {
        let text = json!([{ "http": http }]).to_string();
        assert!(
            hooks(&text, POD, Some(&outline("Always"))).is_err(),
            "{text}"
        );
    }
    for text in [
        "http:99999/",
        "http:0/",
        "http:80/#x",
        "http:http://h:99999/",
    ] {
        assert!(
            hooks(text, HookOrigin::CommandLine, None).is_err(),
            "{text}"
        );
    }
}

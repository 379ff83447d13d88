use expect_test::{Expect, expect};

use super::*;
use crate::FieldPath;

fn limits(copied_bytes: usize) -> Limits {
    Limits {
        documents: 16,
        copied_bytes,
        last_key_wins: false,
        as_kubernetes: false,
    }
}

#[test]
fn line_breaks_of_kubernetes_hide_nothing() {
    for (character, code) in [
        ('\u{85}', "0085"),
        ('\u{2028}', "2028"),
        ('\u{2029}', "2029"),
    ] {
        // kubectl sees a second key after the comment, and a line break in the text.
        for text in ["a: 1\n# x@b: 2\n", "a: 1\nc: 'x@b: 2'\n"] {
            let text = text.replace('@', &character.to_string());
            let error = parse_one(Chunk {
                text: &text,
                line: 1,
            })
            .err()
            .unwrap();
            assert_eq!(error.line, 2);
            assert!(error.problem.contains(code), "{}", error.problem);
        }
    }
    let text = r#"a: "x\Ly\Pz\N""#;
    let mut documents = parse_one(Chunk { text, line: 1 }).unwrap();
    assert_eq!(documents[0].take_value()["a"], "x\u{2028}y\u{2029}z\u{85}");
}

fn parse_one(chunk: Chunk<'_>) -> Result<Vec<Node>, Error> {
    parse(chunk, &mut limits(1 << 20))
}

/// Every document as one line of JSON with its line, or the error.
#[track_caller]
fn check(text: &str, expected: Expect) {
    let mut shown = Vec::new();
    for chunk in chunks(text) {
        match parse_one(chunk) {
            Ok(documents) => {
                for mut node in documents {
                    let line = node.line;
                    shown.push(format!("{line}: {}\n", node.take_value()));
                }
            }
            Err(error) => shown.push(format!("line {}: {}\n", error.line, error.problem)),
        }
    }
    expected.assert_eq(&shown.concat());
}

#[test]
fn documents_keep_their_lines_and_a_bad_one_costs_only_itself() {
    check(
        "# licence\n---\na: 1\n---\nb: [\n---\n---\n# nothing\n--- # three\nc:\n  d: 2\n",
        expect![[r#"
                3: {"a":1}
                line 5: unclosed bracket '['
                6: null
                7: null
                10: {"c":{"d":2}}
            "#]],
    );
}

#[test]
fn a_separator_inside_a_block_scalar_is_text() {
    check(
        "a: |\n  x\n  ---\n  y\nb: 1\n",
        expect![[r#"
                1: {"a":"x\n---\ny\n","b":1}
            "#]],
    );
}

#[test]
fn block_scalars_keep_their_newlines() {
    check(
        "strip: |-\n  a\n  b\nclip: |\n  a\n\nkeep: |+\n  a\n\nfold: >\n  a\n  b\n\n  c\nindent: |2\n    a\n",
        expect![[r#"
                1: {"clip":"a\n","fold":"a b\nc\n","indent":"  a\n","keep":"a\n\n","strip":"a\nb"}
            "#]],
    );
}

#[test]
fn windows_line_ends_and_directives_are_taken() {
    check(
        "%YAML 1.1\r\n---\r\na: |\r\n  x\r\n---\r\nb: 1\r\n",
        expect![[r#"
                line 2: did not find expected <document start>
                3: {"a":"x\n"}
                6: {"b":1}
            "#]],
    );
}

#[test]
fn a_key_twice_is_an_error_that_names_both_lines() {
    check(
        "data:\n  a: 1\n  b: 2\n  a: 3\n",
        expect![[r#"
                line 4: key "a" is already set on line 2
            "#]],
    );
    check(
        "a:\n  x: 1\na:\n  x: 2\n",
        expect![[r#"
                line 3: key "a" is already set on line 1
            "#]],
    );
}

#[test]
fn anchors_are_copied_and_merge_keys_give_way_to_the_mappings_own() {
    check(
        "base: &base {a: 1, b: 2}\nother: &other {b: 3, c: 4}\n\
             use: {<<: *base, b: 9}\nboth: {b: 9, <<: [*base, *other]}\nsame: *base\n",
        expect![[r#"
                1: {"base":{"a":1,"b":2},"both":{"a":1,"b":9,"c":4},"other":{"b":3,"c":4},"same":{"a":1,"b":2},"use":{"a":1,"b":9}}
            "#]],
    );
    check(
        "a: {<<: 5}\n",
        expect![[r#"
                line 1: a merge key (<<) takes a mapping or a sequence of mappings
            "#]],
    );
}

#[test]
fn aliases_cannot_blow_up_memory_or_contain_themselves() {
    let levels = (1..9).map(|level| {
        let below = format!("*a{}", level - 1);
        format!("a{level}: &a{level} [{}]\n", [&*below; 10].join(", "))
    });
    let first = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
    let bomb: Vec<_> = [first].into_iter().chain(levels).collect();
    let bomb = bomb.concat();
    let chunk = chunks(&bomb)[0];
    let error = parse_one(chunk).err().unwrap();
    assert_eq!(error.problem, "aliases repeat too much of the text");
    assert_eq!(error.kind, ErrorKind::Limit);
    check(
        "a: &a [*a]\n",
        expect![[r#"
                line 1: an alias refers to the node that contains it
            "#]],
    );
}

#[test]
fn keys_become_text_as_in_json() {
    check(
        "{1234: a, yes: b, 1.50: c, 0x10: d, 'on': e}\n",
        expect![[r#"
                1: {"1.5":"c","1234":"a","16":"d","on":"e","true":"b"}
            "#]],
    );
    check(
        "[a]: 1\n",
        expect![[r#"
                line 1: a key must be text, a number or a boolean
            "#]],
    );
}

#[test]
fn a_path_is_found_again_as_a_line() {
    let text = "# c\nspec:\n  volumes:\n  - name: a\n  - name: b\n    secret: {}\n";
    let node = &parse_one(chunks(text)[0]).unwrap()[0];
    let line_of = |path: &FieldPath| node.line_of(path.segments());
    let item = FieldPath::fields("spec.volumes").index(1);
    assert_eq!(line_of(&item.child("secret")), 6);
    assert_eq!(line_of(&item), 5);
    assert_eq!(line_of(&FieldPath::fields("spec.absent")), 3);
}

#[test]
fn tags_decide_the_type() {
    check(
        "[!!str 5, !!int \"5\", !!binary aGk=, !local 5, ! 5]\n",
        expect![[r#"
                1: ["5",5,"hi","5","5"]
            "#]],
    );
    check(
        "a: !!int x\n",
        expect![[r#"
                line 1: a value is not of the type of its tag
            "#]],
    );
}

#[test]
fn a_text_is_one_document_or_as_many_as_are_allowed() {
    for (text, expected) in [
        ("", "null"),
        ("# nothing\n", "null"),
        ("\u{feff}---\na: 1\n...\n", r#"{"a":1}"#),
        ("a: |\r\n  x\r\n", r#"{"a":"x\n"}"#),
        ("{\n\t\"a\": [\"\\u00e4\"]\n}", r#"{"a":["ä"]}"#),
    ] {
        let document = YamlDocument::parse(text, 0).unwrap();
        assert_eq!(document.value().to_string(), expected, "{text}");
    }
    let error = YamlDocument::parse("a: 1\n---\n", 0).unwrap_err();
    let expected = "line 2: too many documents: at most 1";
    assert_eq!(error.to_string(), expected);
    let all = YamlDocument::parse_all("---\n---\na: 1\n---\n", limits(0)).unwrap();
    assert_eq!(all.len(), 3);
    let error = YamlDocument::parse_all(&"---\n".repeat(1 << 20), limits(0)).unwrap_err();
    assert_eq!((error.line, error.kind), (17, ErrorKind::Limit));
}

#[test]
fn the_last_of_equal_keys_counts_where_it_may() {
    let text = "a: 1\nb: {c: 1, <<: {c: 2, d: 2}, c: 3}\na:\n  x: 2\n";
    let mut last = limits(0);
    last.last_key_wins = true;
    let document = YamlDocument::parse_all(text, last).unwrap().pop().unwrap();
    let expected = r#"{"a":{"x":2},"b":{"c":3,"d":2}}"#;
    assert_eq!(document.value().to_string(), expected);
    assert_eq!(document.line_of(&FieldPath::fields("a.x")), 4);
    let error = YamlDocument::parse(text, 0).unwrap_err();
    assert_eq!((error.line, error.kind), (2, ErrorKind::DuplicateKey));
}

#[test]
fn anchors_may_be_rejected() {
    for text in ["a: &x 1\n", "a: &x\n", "a: &x {}\nb: *x\n", "&x a: 1\n"] {
        let error = YamlDocument::parse(text, 0).unwrap_err();
        assert_eq!((error.line, error.kind), (1, ErrorKind::Limit), "{text}");
    }
    let merged = YamlDocument::parse("a: {<<: {b: 1}}\n", 0).unwrap();
    assert_eq!(merged.value()["a"]["b"], 1);
}

#[test]
fn errors_quote_no_value_and_little_of_a_key() {
    #[derive(Debug, Deserialize)]
    struct Typed {
        #[expect(dead_code, reason = "only decoded")]
        a: Option<Vec<bool>>,
    }
    let long = "k".repeat(1000);
    for text in [
        "a: \"hunter2\n",
        "a: hunter2: x\n",
        "a: !!binary \"hunter2!\"\n",
        "a: [hunter2\n",
        "a: hunter2\n",
        "a: [hunter2]\n",
        "- hunter2\n",
        "a: *hunter2\n",
        "a: &hunter2 [*hunter2]\n",
        "a: !<hunter2\n",
        "a: !!int hunter2\n",
        "a: \"\\hunter2\"\n",
        "a: 'x'hunter2\n",
        "a:\n\thunter2: 1\n",
        "%hunter2 1\n%hunter2\na: [",
        "a: |hunter2\n",
        "[hunter2]: 1\n",
        "a: {<<: hunter2}\n",
        &format!("{long}: 1\n{long}: hunter2\n"),
        &format!("a: {}hunter2", "[".repeat(1 << 20)),
        &format!("a: {}hunter2", "- ".repeat(1 << 20)),
        &format!("{}hunter2", "? ".repeat(1 << 20)),
        &format!("{}hunter2", "{a: ".repeat(1 << 20)),
    ] {
        let shown: String = text.chars().take(20).collect();
        let read = YamlDocument::parse(text, 1 << 20).and_then(|document| {
            assert!(!format!("{document:?}").contains("hunter2"), "{shown}");
            document.decode::<Typed>()
        });
        let error = format!("{0} {0:?}", read.unwrap_err());
        assert!(!error.contains("hunter2"), "{error}");
        assert!(error.len() < 500, "{error}");
    }
}

/// What kubectl (1.32) refuses of what YAML 1.2 has. In each pair of texts, it reads the second.
#[test]
fn what_kubernetes_lacks_is_refused_in_manifests_only() {
    let cases = [
        ("a: |\n  \tx\n", "a: |2\n  \tx\n", 2, "tab"),
        ("a: b\n\t\n", "a: b\n  \t\n", 2, "tab"),
        ("a:\n  b: c\n  \t\n", "a:\n  b: c\n   \t\n", 3, "tab"),
        ("a: 'b'\n \t# c\n", "a: 'b' \t# c\n", 2, "tab"),
        (
            "a:\n  b: c\n \t\n   d\n",
            "a:\n  b: c\n   \t\n   d\n",
            3,
            "tab",
        ),
        ("- \ta\n", "- a:\tb\n", 1, "tab"),
        ("a: \"b\\/c\"\n", "a: \"b\\\\/c\"\n", 1, "escape"),
        ("{\"a\"\n: b}\n", "{? \"a\"\n: b}\n", 1, "one line"),
        ("a: {!x\n b: c}\n", "a: {!x b: c}\n", 1, "one line"),
        ("a: [b?c]\n", "a: b?c\n", 1, "quote"),
        ("a: {b: :c}\n", "a: {b: c:d}\n", 1, "quote"),
        ("a: &b.c d\n", "a: &b-c d\n", 1, "anchor"),
        ("a: !b#c d\n", "a: !b/c d\n", 1, "tag"),
    ];
    let read = |text: &str, as_kubernetes| {
        let mut limits = limits(1 << 20);
        limits.as_kubernetes = as_kubernetes;
        parse(Chunk { text, line: 1 }, &mut limits).map(|nodes| nodes.len())
    };
    for (refused, taken, line, word) in cases {
        let error = read(refused, true).unwrap_err();
        assert_eq!(error.line, line, "{refused:?}: {}", error.problem);
        assert!(
            error.problem.contains(word),
            "{refused:?}: {}",
            error.problem
        );
        assert_eq!(read(refused, false), Ok(1), "{refused:?}");
        assert_eq!(read(taken, true), Ok(1), "{taken:?}");
    }
}

/// What kubectl (1.32) makes of merge keys; an error where it fails, or where its order of precedence differs.
#[test]
fn merge_keys_mean_what_they_mean_to_kubernetes() {
    let sources = "a: &a {k: a, x: a}\nb: &b {k: b, z: b}\nc: &c {<<: *a, x: c}\ns: &s [*a, *b]\n";
    let first = "write one, as the first key";
    let takes = "takes a mapping or a sequence of mappings";
    for (mapping, expected) in [
        ("{<<: *a, k: own}", r#"{"k":"own","x":"a"}"#),
        ("{<<: [*a, *b]}", r#"{"k":"a","x":"a","z":"b"}"#),
        ("{<<: [*b, *a], x: own}", r#"{"k":"b","x":"own","z":"b"}"#),
        ("{<<: *c, k: own}", r#"{"k":"own","x":"c"}"#),
        ("{<<: [*c, *b]}", r#"{"k":"a","x":"c","z":"b"}"#),
        ("{<<: {k: 1, <<: *a}}", first),
        ("{<<: {k: 1}, x: 2}", r#"{"k":1,"x":2}"#),
        ("{<<: [], x: 2}", r#"{"x":2}"#),
        ("\n  <<: *a\n  k: null", r#"{"k":null,"x":"a"}"#),
        ("{\"<<\": x, k: own}", r#"{"<<":"x","k":"own"}"#),
        ("{!!str <<: x, k: own}", r#"{"<<":"x","k":"own"}"#),
        ("{! <<: *a, k: own}", r#"{"k":"own","x":"a"}"#),
        ("{!!merge \"<<\": *a, k: own}", r#"{"k":"own","x":"a"}"#),
        ("{k: own, <<: *a}", first),
        ("\n  k: own\n  <<: *a", first),
        ("{<<: *a, <<: *b}", first),
        ("{<<: *s}", takes),
        ("{<<: [*s]}", takes),
        ("{<<: [[*a]]}", takes),
        ("{<<: null}", takes),
        ("{<<: x}", takes),
    ] {
        let mut limits = limits(1 << 20);
        limits.as_kubernetes = true;
        let text = format!("{sources}m: {mapping}\n");
        let read = match parse(
            Chunk {
                text: &text,
                line: 1,
            },
            &mut limits,
        ) {
            Ok(mut documents) => documents[0].take_value()["m"].to_string(),
            Err(error) => error.problem,
        };
        assert!(read.contains(expected), "{mapping}: {read}");
    }
}

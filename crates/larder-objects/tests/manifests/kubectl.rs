//! Texts that were right, mutated at random: what kubectl reads in them, larder reads alike, or it refuses.
//!
//! `testdata/yaml.txt` has a line for each text: what kubectl (1.32) made of its documents. `LARDER_RECORD=1` asks the
//! installed one again. Texts follow from their numbers, so they are not recorded.

use std::{
    collections::HashMap,
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use fastrand::Rng;
use larder_objects::manifest::{Loader, Manifest};
use serde_json::{Deserializer, Map, Value};

const TEXTS: u32 = 12_000;
/// Most mutations of one text.
const MOST_MUTATIONS: usize = 4;
/// A document with a value that is no text: an API server rejects it, kubectl without one prints it.
const NOT_A_TEXT: &str = "-";

/// The data of ConfigMaps, in the styles that people and programs write.
const STYLES: [&str; 12] = [
    "  a: one\n  b: \"two\"\n  c: 'three'\n",
    "  a: |\n    first\n      second\n\n    third\n  b: |-\n    x\n  c: |+\n    y\n\n",
    "  a: >\n    folded\n    text\n\n    more\n  b: >-\n    x\n     y\n    z\n",
    "  a: |2\n      indented\n    less\n  b: ok\n",
    "  {a: one, b: \"two # no comment\", \"c\": 'it''s'}\n",
    "  # a comment\n  a: one # another\n  b: two#none\n",
    "  a: \"x\\ty\\u00e9\\n\\\n    continued\"\n  b: plain text\n    continued\n",
    "  a: &x one\n  b: *x\n  c: !!str 12\n",
    "  ? a\n  : one\n  ? \"b\"\n  : two\n",
    "  a: 'yes'\n  b: \"012\"\n  c: '1e3'\n  d: '~'\n  e: \"\"\n",
    "  app.conf: |\n    key = value\n    - list: x\n    ---\n    # text\n  b: \"---\"\n",
    "  \"a\": \"one\",\n  \"b\": \"x\\ty\",\n",
];

/// A second ConfigMap of the same text.
const OTHER_DOCUMENT: &str =
    "\n...\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: t-0}\ndata: {z: z}\n";

/// What means something to a reader of YAML.
const PIECES: [&str; 66] = [
    OTHER_DOCUMENT,
    "\\/",
    "\u{85}",
    "\u{2028}",
    "\u{2029}",
    "\u{feff}",
    "\u{a0}",
    "\u{1f600}",
    "\t",
    "\r",
    "\r\n",
    "\n",
    "\n\n",
    " ",
    "  ",
    "\n  ",
    "\n    ",
    "#",
    " # ",
    ": ",
    ":",
    "- ",
    "-",
    "? ",
    ", ",
    "{",
    "}",
    "[",
    "]",
    "\"",
    "'",
    "''",
    "\\",
    "\\n",
    "\\x41",
    "\\\n",
    "|",
    "|\n",
    ">",
    "|-",
    "|+",
    ">2",
    "|1",
    "&x ",
    "*x",
    "<<: ",
    "!!str ",
    "!!binary ",
    "!x ",
    "! ",
    "---",
    "\n---\n",
    "\n--- ",
    "\n...\n",
    "%YAML 1.1",
    "\n%TAG ! x\n",
    "~",
    "null",
    "yes",
    "012",
    "0x1F",
    "1_000",
    ".inf",
    "2001-01-01",
    "@",
    "`",
];

/// Text number `number`: one ConfigMap `t-NUMBER`, which the mutations may end, split or spoil.
fn text(number: u32) -> String {
    let mut rng = Rng::with_seed(number.into());
    let style = *rng.choice(&STYLES).unwrap();
    let is_json = style.ends_with(",\n");
    let mut data = style.to_owned();
    for _ in 0..rng.usize(1..=MOST_MUTATIONS) {
        let mut at = || {
            let mut at = rng.usize(..=data.len());
            while !data.is_char_boundary(at) {
                at -= 1;
            }
            at
        };
        let (from, to) = (at(), at());
        match rng.u8(..5) {
            0 if from.abs_diff(to) < 6 => data.replace_range(from.min(to)..from.max(to), ""),
            1 if from.abs_diff(to) < 40 => {
                let copy = data[from.min(to)..from.max(to)].to_owned();
                data.insert_str(to, &copy);
            }
            _ => data.insert_str(from, rng.choice(&PIECES).unwrap()),
        }
    }
    data = data.replace("t-0", &format!("t-{number}"));
    if is_json {
        data = data.trim_end().trim_end_matches(',').to_owned();
        let before = rng.choice(["", "---\n", "# comment\n", " \n"]).unwrap();
        let name = format!("\"metadata\": {{\"name\": \"t-{number}\"}}");
        return format!(
            "{before}{{\"apiVersion\": \"v1\", \"kind\": \"ConfigMap\", {name}, \"data\": {{\n{data}\n}}}}\n"
        );
    }
    format!("apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: t-{number}}}\ndata:\n{data}")
}

fn hash(data: &Map<String, Value>) -> String {
    // FNV-1a: the record outlives versions of Rust.
    let text = Value::Object(data.clone()).to_string();
    let hash = text.bytes().fold(0x811c_9dc5_u32, |hash, byte| {
        (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193)
    });
    format!("{hash:08x}")
}

/// What larder reads: the data of each ConfigMap of this number.
fn ours(number: u32, text: &str) -> Vec<Map<String, Value>> {
    let mut loader = Loader::new("default");
    loader.text("text.yaml", text);
    let documents = loader.finish().documents.into_iter();
    let found = documents.filter_map(|document| match document.manifest {
        Manifest::ConfigMap(map) if *document.object.key().name == format!("t-{number}") => {
            let data = map.data.iter();
            Some(
                data.map(|(key, value)| (key.to_string(), value.as_str().into()))
                    .collect(),
            )
        }
        _ => None,
    });
    found.collect()
}

/// What kubectl reads in a directory of texts: the line of each number.
fn theirs(directory: &Path) -> HashMap<String, Vec<String>> {
    let mut command = Command::new("kubectl");
    command
        .args(["label", "--local", "-o", "json", "recorded=yes", "-f"])
        .arg(directory);
    let output = command.output().unwrap().stdout;
    let mut all = HashMap::<_, Vec<_>>::new();
    for document in Deserializer::from_slice(&output).into_iter::<Value>() {
        let document = document.unwrap();
        let name = document["metadata"]["name"].as_str().unwrap_or_default();
        if document["kind"] != "ConfigMap" || document["apiVersion"] != "v1" {
            continue;
        }
        let mut data = match &document["data"] {
            Value::Null => Map::new(),
            Value::Object(data) => data.clone(),
            _ => Map::from_iter([(String::new(), Value::Bool(false))]),
        };
        // As Go reads them into a map of texts.
        for value in data.values_mut().filter(|value| value.is_null()) {
            *value = "".into();
        }
        let is_text = data.values().all(Value::is_string);
        let line = if is_text {
            hash(&data)
        } else {
            NOT_A_TEXT.to_owned()
        };
        all.entry(name.to_owned()).or_default().push(line);
    }
    all
}

fn record(texts: &[String]) -> String {
    let directory = tempfile::tempdir().unwrap();
    for (number, text) in texts.iter().enumerate() {
        fs::write(directory.path().join(format!("{number}.yaml")), text).unwrap();
    }
    let all = theirs(directory.path());
    let mut record = String::new();
    for number in 0..texts.len() {
        let read = all.get(&format!("t-{number}"));
        let _ = writeln!(
            record,
            "{}",
            read.map_or_else(String::new, |read| read.join(" "))
        );
    }
    record
}

/// The heads of a file, with `@` for the line break.
const HEADS: [&str; 15] = [
    "",
    "@",
    "# c@",
    "---@",
    "--- # c@",
    "# c@---@",
    "---@---@",
    "...@",
    "---@...@",
    "---\n...\n",
    "---\n# c\n...\n",
    "# c@...@",
    "%YAML 1.1@",
    "%YAML 1.1@---@",
    "%x@",
];

/// What may be a line break.
const BREAKS: [&str; 8] = [
    "\n", "\r", "\r\n", "\n\r", "\r\r\n", "\u{85}", "\u{2028}", "\u{2029}",
];

/// Every head with every line break, in the head alone and in the whole file.
fn files_of_breaks() -> Vec<String> {
    let document = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: NAME}\ndata:\n  a: |\n    one\n    two\n  b: 'x\n    y'\n";
    let mut files = Vec::new();
    for head in HEADS {
        for line_break in BREAKS {
            for body in [document.replace('\n', line_break), document.to_owned()] {
                let name = format!("t-{}", files.len());
                let file = head.replace('@', line_break) + &body;
                files.push(file.replace("NAME", &name));
            }
        }
    }
    files
}

/// What may follow a key and its colon in braces.
const AFTER_COLON: [&str; 14] = [
    " b", "\n   b", "", ",", "b", ":", ": b", "#b", " #b\n  ", "\tb", "[b]", "{b: c}", "'b'", "? b",
];

/// Keys of every style in braces, with what may follow their colon.
fn files_of_colons() -> Vec<String> {
    let mut files = Vec::new();
    for key in [
        "a", "a b", "'a'", "\"a\"", "&x a", "!!str a", "? a", "a ", "'a' ",
    ] {
        for after in AFTER_COLON {
            for rest in ["", ", c: d", ",c: d"] {
                let number = files.len();
                files.push(format!(
                    "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: t-{number}}}\ndata:\n  {{{key}:{after}{rest}}}\n"
                ));
            }
        }
    }
    files
}

/// Texts of every style at the end of a file, with what may end it.
fn files_of_ends() -> Vec<String> {
    let mut files = Vec::new();
    for style in [
        "|", "|+", "|-", ">", ">+", ">-", "|1+", "", "\"x", "- x", "# x",
    ] {
        for end in [
            "", "\n", "\n\n", "\n ", "\n\n ", "\n\n   ", "\n    ", "\n\t", "\r", "\n\r", " ", "\"",
            "\"\r",
        ] {
            let number = files.len();
            files.push(format!(
                "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: t-{number}}}\ndata:\n  a: {style}\n   x\n   y{end}"
            ));
        }
    }
    files
}

#[test]
fn no_line_break_hides_an_object_that_kubectl_reads() {
    // A quarter has breaks that only Kubernetes' YAML has.
    check("yaml-breaks.txt", &files_of_breaks(), 60);
}

#[test]
fn colon_belongs_to_the_key_that_kubectl_reads() {
    check("yaml-colons.txt", &files_of_colons(), 50);
}

#[test]
fn file_ends_as_kubectl_reads_it() {
    check("yaml-ends.txt", &files_of_ends(), 80);
}

/// Reads files, of which `testdata` has a line for each, as that of the other test. More than `least` per cent are read
/// alike: to refuse all would hide nothing, either.
#[track_caller]
fn check(recorded: &str, files: &[String], least: usize) {
    let path = testdata(recorded);
    if std::env::var_os("LARDER_RECORD").is_some() {
        fs::write(&path, record(files)).unwrap();
    }
    let recorded = fs::read_to_string(&path).unwrap();
    assert_eq!(recorded.lines().count(), files.len());
    let mut agreed = 0;
    for ((number, file), theirs) in (0..).zip(files).zip(recorded.lines()) {
        let mut loader = Loader::new("default");
        loader.text("text.yaml", file);
        let has_error = !loader.finish().errors.is_empty();
        let ours: Vec<_> = ours(number, file).iter().map(hash).collect();
        let is_same = ours.join(" ") == theirs;
        agreed += usize::from(is_same);
        // A file that kubectl refuses may be read, too, where an error says that.
        assert!(is_same || has_error, "{file:?}: {ours:?}, not {theirs:?}");
        let is_alike = ours.is_empty() || theirs.is_empty() || is_same;
        assert!(is_alike, "{file:?}: {ours:?}, not {theirs:?}");
    }
    assert!(
        agreed * 100 > files.len() * least,
        "{agreed} of {}",
        files.len()
    );
}

fn testdata(name: &str) -> PathBuf {
    let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/../../testdata");
    Path::new(directory).join(name)
}

#[test]
fn what_kubectl_reads_is_read_alike_or_refused() {
    let path = testdata("yaml.txt");
    if std::env::var_os("LARDER_RECORD").is_some() {
        let texts: Vec<_> = (0..TEXTS).map(text).collect();
        fs::write(&path, record(&texts)).unwrap();
    }
    let recorded = fs::read_to_string(&path).unwrap();
    assert_eq!(recorded.lines().count(), TEXTS as usize);
    let (mut wrong, mut agreed, mut refused, mut only_ours) = (Vec::new(), 0, 0, Vec::new());
    for (number, line) in (0..).zip(recorded.lines()) {
        let text = text(number);
        let mut theirs: Vec<_> = line.split(' ').filter(|hash| !hash.is_empty()).collect();
        let is_rejected = theirs.is_empty();
        for data in ours(number, &text) {
            let hash = hash(&data);
            // A document that larder refuses stands between two others.
            match theirs.iter().position(|theirs| *theirs == hash) {
                Some(same) => {
                    drop(theirs.drain(..=same));
                    agreed += 1;
                }
                // Since 1.33, kubectl reads YAML that begins with a brace.
                None if is_rejected && text.trim_start().starts_with('{') => agreed += 1,
                None if is_rejected => only_ours.push(text.clone()),
                None => wrong.push(format!("{number}: {data:?} of {text:?}, not {line}\n")),
            }
        }
        refused += i32::from(theirs.iter().any(|theirs| *theirs != NOT_A_TEXT));
    }
    let (count, shown) = (wrong.len(), &wrong[..wrong.len().min(12)]);
    assert!(wrong.is_empty(), "{count} differ:\n{}", shown.concat());
    // Refusing all would agree, too. These are texts of which nearly all are damaged.
    let [agreed, refused] = [agreed, refused].map(|count| f64::from(count) / f64::from(TEXTS));
    assert!(agreed > 0.15, "{agreed} agree");
    assert!(refused < 0.15, "{refused} are refused");
    assert!(only_ours.is_empty(), "only ours: {only_ours:#?}");
}

//! Each attack costs time and memory in proportion to its size.
//!
//! `LARDER_ATTACK_KIB` sets the size of the texts; 10240 is the most that larder reads of a file.

use std::{env, fmt::Write as _, time::Duration};

use larder_objects::manifest::{Loader, ManifestError, Manifests, Problem};

use crate::{
    limits::{Limits, Meter},
    texts::{attacks, bomb, object},
};

fn load(text: &str) -> Manifests {
    let mut loader = Loader::new("default");
    loader.text("attack", text);
    loader.finish()
}

/// Whether `error` stands for a panic.
pub(crate) fn is_internal(error: &ManifestError) -> bool {
    let problem = Problem::Internal;
    matches!(error, ManifestError::Document { problem: found, .. } if *found == problem)
}

#[test]
fn attacks_cost_time_and_memory_in_proportion_to_their_size() {
    let kib: usize = env::var("LARDER_ATTACK_KIB").map_or(64, |size| size.parse().unwrap());
    let size = kib << 10;
    let shown = env::var("LARDER_ATTACK_KIB").is_ok();
    let limits = Limits {
        // 20 s for a MiB: a hundred times what an attack takes without optimization.
        cpu: Duration::from_secs(5) + Duration::from_millis(20) * u32::try_from(kib).unwrap(),
        bytes: (32 << 20) + size * 208,
    };
    let meter = Meter::new();
    for (name, text) in attacks(size) {
        let (manifests, used) = meter.check(name, limits, || load(&text));
        let errors = manifests.errors.len() + manifests.warnings.len();
        assert!(errors <= 2 * 101, "{name}: {errors} errors");
        let internal = manifests.errors.iter().find(|error| is_internal(error));
        assert!(internal.is_none(), "{name}: {internal:?}");
        let shown_errors: usize = manifests
            .errors
            .iter()
            .chain(&manifests.warnings)
            .map(|error| error.to_string().len())
            .sum();
        if shown {
            println!(
                "{:>8.2?} {:>6} KiB, {errors:>3} errors of {shown_errors} bytes: {name}",
                used.cpu,
                used.bytes >> 10
            );
        }
    }
}

#[test]
fn a_key_with_a_bracket_is_named() {
    let text = r#"{"apiVersion":"v1","kind":"Service","metadata":{"name":"a"},"spec":{"[x":1}}"#;
    let limits = Limits {
        cpu: Duration::from_secs(5),
        bytes: 32 << 20,
    };
    let (manifests, _) = Meter::new().check("key with a bracket", limits, || load(text));
    assert_eq!(
        manifests.warnings[0].to_string(),
        r#"attack: document 1, line 1: Service "a": unknown field "spec.[x", ignored"#,
    );
}

#[test]
fn errors_beyond_the_first_hundred_are_counted() {
    let mut text = "apiVersion: v1\nkind: List\nitems:\n".to_owned();
    for number in 0..2000 {
        let _ = writeln!(
            text,
            "- {{apiVersion: v1, kind: ConfigMap, metadata: {{name: c{number}}}, data: {{k: 1}}}}"
        );
    }
    let limits = Limits {
        cpu: Duration::from_secs(20),
        bytes: 64 << 20,
    };
    let (manifests, _) = Meter::new().check("2000 errors", limits, || load(&text));
    let errors = &manifests.errors;
    assert_eq!(errors.len(), 101);
    assert_eq!(
        errors[99].to_string(),
        r#"attack: document 1, item 100, line 103: ConfigMap "c99": data[k]: expected a string, found a number (quote it)"#,
    );
    assert!(matches!(
        &errors[100],
        ManifestError::Omitted { count: 1900, .. }
    ));
    assert_eq!(
        errors[100].to_string(),
        "attack: 1900 more problems not shown"
    );
}

#[test]
fn aliases_do_not_nest_deeper_than_collections() {
    let nested = |levels: usize| object("ConfigMap", &bomb(levels, 1));
    let manifests = load(&nested(97));
    assert!(manifests.errors.is_empty(), "{:?}", manifests.errors);
    let manifests = load(&nested(99));
    assert_eq!(
        manifests.errors[0].to_string(),
        "attack: document 1, line 103: nested more than 100 levels deep",
    );
}

//! Variables: `envFrom`, `env`, Services, env files.

use larder_objects::Kind;
use larder_projection::{Origin, Unavailable, environment};
use serde_json::json;

use super::World;

#[test]
fn env_overrides_env_from_and_refers_to_it() {
    // projection 53
    World::with_container(json!({
        "envFrom": [{"configMapRef": {"name": "cm"}}, {"prefix": "p_", "configMapRef": {"name": "cm"}}],
        "env": [
            {"name": "TEST_LITERAL", "value": "test"},
            {"name": "EXPANSION", "value": "$(REPLACE_ME)"},
            {"name": "DUPE", "value": "env"},
        ],
    }))
    .config_map("cm", json!({"REPLACE_ME": "from-config-map", "DUPE": "$(X)"}))
    .check_variables(&[
        ("REPLACE_ME", "from-config-map"),
        ("DUPE", "env"),
        ("p_REPLACE_ME", "from-config-map"),
        ("p_DUPE", "$(X)"),
        ("TEST_LITERAL", "test"),
        ("EXPANSION", "from-config-map"),
    ]);
}

#[test]
fn names_are_not_validated() {
    // projection 54
    for prefix in ["1-", "$_-", "ABC_", "#@!", ""] {
        let world = World::with_container(
            json!({"envFrom": [{"prefix": prefix, "secretRef": {"name": "s"}}]}),
        )
        .secret(
            "s",
            &[("1234", b"a"), ("1234.name", b"b"), ("data-1", b"c")],
        );
        let names: Vec<_> = world.variables().into_keys().collect();
        assert_eq!(
            names,
            [
                format!("{prefix}1234"),
                format!("{prefix}1234.name"),
                format!("{prefix}data-1")
            ]
        );
    }
}

#[test]
fn binary_data_is_not_in_the_environment() {
    let world = World::with_container(json!({
        "envFrom": [{"configMapRef": {"name": "cm"}}],
        "env": [{"name": "B", "valueFrom": {"configMapKeyRef": {"name": "cm", "key": "b", "optional": true}}}],
    }))
    .config_map("cm", json!({"a": "1"}))
    .binary("cm", "b", b"2");
    world.check_variables(&[("a", "1")]);
}

#[test]
fn missing_objects_of_env_from_fail_unless_optional() {
    // projection 55
    for (kind, field) in [
        (Kind::ConfigMap, "configMapRef"),
        (Kind::Secret, "secretRef"),
    ] {
        let from = |optional: bool| {
            World::with_container(
                json!({"envFrom": [{field: {"name": "x", "optional": optional}}]}),
            )
        };
        let text = format!("{} \"x\" not found", kind.singular());
        from(false)
            .missing(kind, "x")
            .check_environment_fails(&text);
        let world = from(true).missing(kind, "x");
        world.check_variables(&[]);
        let environment = world.environment_of("c").unwrap();
        let absent = &environment.absent()[0];
        assert_eq!((absent.kind, absent.name, absent.key), (kind, "x", None));
    }
}

#[test]
fn missing_objects_and_keys_of_references_fail_unless_optional() {
    // projection 55
    for (kind, field) in [
        (Kind::ConfigMap, "configMapKeyRef"),
        (Kind::Secret, "secretKeyRef"),
    ] {
        let reference = |optional: bool| {
            World::with_env(json!([{"name": "A", "valueFrom": {field: {"name": "x", "key": "k", "optional": optional}}}]))
                .config_map("x", json!({"other": "1"}))
                .secret("x", &[("other", b"1")])
        };
        let text = format!("{} \"x\" not found", kind.singular());
        reference(false)
            .missing(kind, "x")
            .check_environment_fails(&text);
        reference(true).missing(kind, "x").check_variables(&[]);
        reference(false).check_environment_fails(&format!("couldn't find key k in {kind} ns/x"));
        reference(true).check_variables(&[]);
    }
}

#[test]
fn optional_covers_absence_and_no_other_failure() {
    let reason = "failed to sync configmap cache: timed out waiting for the condition";
    World::with_container(json!({"envFrom": [{"configMapRef": {"name": "x", "optional": true}}]}))
        .unavailable(Kind::ConfigMap, "x", Unavailable::failed(reason))
        .check_environment_fails(reason);
    World::with_container(json!({"envFrom": [{"secretRef": {"name": "x", "optional": true}}]}))
        .check_environment_fails("secret \"x\" was not gathered");
}

#[test]
fn a_skipped_reference_keeps_the_value_set_before() {
    World::with_container(json!({
        "envFrom": [{"configMapRef": {"name": "cm"}}],
        "env": [{"name": "A", "valueFrom": {"configMapKeyRef": {"name": "cm", "key": "none", "optional": true}}}],
    }))
    .config_map("cm", json!({"A": "kept"}))
    .check_variables(&[("A", "kept")]);
}

#[test]
fn references_see_what_was_set_before_them() {
    // projection 56
    World::with_env(json!([
        {"name": "FORWARD", "value": "$(LATER)"},
        {"name": "LATER", "value": "1"},
        {"name": "CHAIN", "value": "$(LATER)2"},
        {"name": "CHAINED", "value": "$(CHAIN)3"},
        {"name": "LATER", "value": "x$(LATER)"},
        {"name": "EMPTY", "value": ""},
        {"name": "NOTHING", "value": "[$(EMPTY)][$(UNDEFINED)]"},
    ]))
    .check_variables(&[
        ("FORWARD", "$(LATER)"),
        ("LATER", "x1"),
        ("CHAIN", "12"),
        ("CHAINED", "123"),
        ("EMPTY", ""),
        ("NOTHING", "[][$(UNDEFINED)]"),
    ]);
}

#[test]
fn value_overrides_value_from_and_an_empty_source_is_empty() {
    World::with_container(json!({
        "envFrom": [{"configMapRef": {"name": "cm"}}],
        "env": [
            {"name": "A", "value": "1", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
            {"name": "B", "valueFrom": {}},
            {"name": "C"},
        ],
    }))
    .config_map("cm", json!({"B": "2", "C": "3"}))
    .check_variables(&[("A", "1"), ("B", ""), ("C", "")]);
}

#[test]
fn values_of_sources_are_not_expanded_but_can_be_referenced() {
    World::with_env(json!([
        {"name": "A", "value": "1"},
        {"name": "B", "valueFrom": {"configMapKeyRef": {"name": "cm", "key": "k"}}},
        {"name": "C", "value": "$(B)"},
    ]))
    .config_map("cm", json!({"k": "$(A)"}))
    .check_variables(&[("A", "1"), ("B", "$(A)"), ("C", "$(A)")]);
}

#[test]
fn services_of_the_namespace_and_kubernetes_are_there() {
    // projection 58
    let services = [
        ("default", "kubernetes", "10.0.0.1"),
        ("default", "other", "10.0.0.2"),
        ("ns", "mine", "10.0.0.3"),
        ("ns", "headless", "None"),
        ("ns", "external", ""),
    ];
    let hosts = |links: bool| -> Vec<_> {
        let world = World::new(json!({"enableServiceLinks": links, "containers": [{"name": "c"}]}));
        let variables = world.services(&services).variables().into_iter();
        variables
            .filter(|(name, _)| name.ends_with("_SERVICE_HOST"))
            .collect()
    };
    let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    let kubernetes = pair("KUBERNETES_SERVICE_HOST", "10.0.0.1");
    assert_eq!(hosts(false), std::slice::from_ref(&kubernetes));
    assert_eq!(
        hosts(true),
        [kubernetes, pair("MINE_SERVICE_HOST", "10.0.0.3")]
    );
}

#[test]
fn a_local_kubernetes_service_stands_in_for_the_default_one() {
    // projection 58
    let services = [
        ("ns", "kubernetes", "10.0.0.9"),
        ("default", "kubernetes", "10.0.0.1"),
    ];
    let world = World::with_env(json!([])).services(&services);
    assert_eq!(world.variables()["KUBERNETES_SERVICE_HOST"], "10.0.0.9");
}

#[test]
fn explicit_variables_override_those_of_services_in_references_too() {
    // projection 58
    let services = [("ns", "svc", "10.0.0.3")];
    let world = World::with_env(json!([
        {"name": "BEFORE", "value": "$(SVC_SERVICE_HOST)"},
        {"name": "SVC_SERVICE_HOST", "value": "mine"},
        {"name": "AFTER", "value": "$(SVC_SERVICE_HOST)"},
    ]))
    .services(&services);
    let variables = world.variables();
    assert_eq!(variables["BEFORE"], "10.0.0.3");
    assert_eq!(variables["SVC_SERVICE_HOST"], "mine");
    assert_eq!(variables["AFTER"], "mine");
}

#[test]
fn unlisted_services_stop_api_pods_but_not_static_pods() {
    // projection 58
    let mut world = World::with_env(json!([]));
    world.inputs.services = None;
    let text = "services have not yet been read at least once, cannot construct envvars";
    world.check_environment_fails(text);
    let source =
        |source: &str| Some([("kubernetes.io/config.source".to_owned(), source.to_owned())].into());
    world.pod.metadata.annotations = source("api");
    world.check_environment_fails(text);
    world.pod.metadata.annotations = source("file");
    world.check_variables(&[]);
}

#[test]
fn a_pod_without_the_default_for_service_links_is_refused() {
    // projection 58
    let mut world = World::with_env(json!([]));
    world.pod.spec.as_mut().unwrap().enable_service_links = None;
    world.check_environment_fails(
        "nil pod.spec.enableServiceLinks encountered, cannot construct envvars",
    );
}

#[test]
fn command_and_args_are_expanded_with_the_final_environment() {
    // projection 60
    let world = World::with_container(json!({
        "command": ["sh", "-c", "echo $(TEST_VAR) $$(TEST_VAR) $(NOPE)"],
        "args": ["$(LATE)"],
        "env": [{"name": "TEST_VAR", "value": "1"}, {"name": "TEST_VAR", "value": "2"}, {"name": "LATE", "value": "3"}],
    }));
    let environment = world.environment_of("c").unwrap();
    let container = world.container("c");
    let expand = |texts: &[String]| -> Vec<_> {
        let values = texts
            .iter()
            .map(|text| environment.expand(text).unwrap().to_vec());
        values
            .map(|value| String::from_utf8(value).unwrap())
            .collect()
    };
    assert_eq!(
        expand(container.command),
        ["sh", "-c", "echo 2 $(TEST_VAR) $(NOPE)"]
    );
    assert_eq!(expand(container.args), ["3"]);
}

#[test]
fn references_that_double_a_value_end_at_the_limit() {
    let mut env = vec![json!({"name": "V0", "value": "x".repeat(1 << 10)})];
    env.extend((1..64).map(|number| {
        let twice = format!("$(V{0})$(V{0})", number - 1);
        json!({"name": format!("V{number}"), "value": twice})
    }));
    // 1 KiB + 2 KiB + … + 4 MiB + 8 MiB is the most that fits.
    let world = World::with_env(json!(env));
    world.check_environment_fails("environment exceeds 16777216 bytes with variable \"V14\"");
    let world = World::with_env(json!(env[..14]));
    let environment = world.environment_of("c").unwrap();
    assert_eq!(environment.get("V13").unwrap().value.len(), 8 << 20);
    // So do words of a command.
    assert!(environment.expand("$(V13)$(V12)").is_ok());
    assert!(environment.expand(&"$(V13)".repeat(3)).is_err());
    assert!(environment.expand(&"$(V13)".repeat(100_000)).is_err());
}

#[test]
fn a_variable_that_is_replaced_frees_its_room() {
    let long = "x".repeat(9 << 20);
    let world = World::with_env(json!([
        {"name": "A", "value": long}, {"name": "A", "value": long}, {"name": "A", "value": "1"}, {"name": "B", "value": long},
    ]));
    assert_eq!(world.environment_of("c").unwrap().len(), 2);
}

/// A container that takes the key `K` of the file `env` in the volume `tmp`.
fn env_file_world(optional: bool, mounted: bool) -> World {
    let mounts = if mounted {
        json!([{"name": "tmp", "mountPath": "/tmp"}])
    } else {
        json!([])
    };
    let key = json!({"volumeName": "tmp", "path": "env", "key": "K", "optional": optional});
    World::new(json!({
        "initContainers": [{"name": "i", "volumeMounts": mounts}],
        "containers": [{"name": "c", "env": [{"name": "A", "valueFrom": {"fileKeyRef": key}}]}],
        "volumes": [{"name": "tmp", "emptyDir": {}}],
    }))
}

#[test]
fn variables_come_from_env_files_unexpanded() {
    // projection 61
    let world = env_file_world(false, true).env_file("tmp", "env", "# x\n\nK='$(v)'\n");
    world.check_variables(&[("A", "$(v)")]);
    let environment = world.environment_of("c").unwrap();
    assert!(environment.get("A").unwrap().secret);
}

#[test]
fn missing_env_file_keys_fail_unless_optional() {
    // projection 61, 63; on purpose different: optional covers a missing file.
    let text = "environment variable key \"K\" not found in file \"/host/env\"";
    for content in ["OTHER='v'", "K=''"] {
        env_file_world(false, true)
            .env_file("tmp", "env", content)
            .check_environment_fails(text);
        env_file_world(true, true)
            .env_file("tmp", "env", content)
            .check_variables(&[]);
    }
    let missing = |optional| {
        let mut world = env_file_world(optional, true).env_file("tmp", "env", "");
        for file in world.inputs.env_files.values_mut() {
            *file = Err(Unavailable::NotFound);
        }
        world
    };
    missing(false).check_environment_fails("couldn't parse env file");
    missing(true).check_variables(&[]);
}

#[test]
fn malformed_env_files_fail_with_their_cause_even_if_optional() {
    // projection 61
    let world = env_file_world(true, true).env_file("tmp", "env", "K = 'v'");
    let error = world.environment_of("c").unwrap_err();
    assert_eq!(error.to_string(), "couldn't parse env file");
    let source = std::error::Error::source(&error).unwrap().to_string();
    assert!(
        source.ends_with("line 1: whitespace before '=' is not allowed"),
        "{source}"
    );
}

#[test]
fn an_env_file_needs_a_volume_in_use() {
    // projection 61
    let text = "cannot find the volume \"tmp\" referenced by FileKeyRef";
    env_file_world(true, false)
        .env_file("tmp", "env", "K='1'")
        .check_environment_fails(text);
    let mut world = env_file_world(true, true).env_file("tmp", "env", "K='1'");
    world.pod.spec.as_mut().unwrap().volumes = None;
    world.check_environment_fails(text);
}

#[test]
fn values_of_secrets_stay_secret_in_references() {
    let world = World::with_container(json!({
        "envFrom": [{"secretRef": {"name": "s"}}],
        "env": [{"name": "URL", "value": "db://$(PASSWORD)@host"}, {"name": "COPY", "value": "$(URL)"}, {"name": "OPEN", "value": "1"}],
    }))
    .secret("s", &[("PASSWORD", b"hunter2\xff")]);
    let environment = world.environment_of("c").unwrap();
    assert_eq!(
        &*environment.get("COPY").unwrap().value,
        b"db://hunter2\xff@host"
    );
    let secret: Vec<_> = environment
        .iter()
        .map(|(name, variable)| (name, variable.secret))
        .collect();
    assert_eq!(
        secret,
        [
            ("PASSWORD", true),
            ("URL", true),
            ("COPY", true),
            ("OPEN", false)
        ]
    );
    assert!(!format!("{environment:?}").contains("hunter2"));
}

#[test]
fn a_nul_byte_is_refused_by_name_without_its_value() {
    World::with_container(json!({"envFrom": [{"secretRef": {"name": "s"}}]}))
        .secret("s", &[("BAD", b"hunter2\0")])
        .check_environment_fails("environment variable \"BAD\" contains a NUL byte");
    World::with_env(json!([{"name": "A", "value": "x\0y"}]))
        .check_environment_fails("environment variable \"A\" contains a NUL byte");
}

#[test]
fn first_settings_give_the_order_and_last_ones_the_origin() {
    let world = World::with_container(json!({
        "envFrom": [{"configMapRef": {"name": "cm"}}],
        "env": [
            {"name": "Z", "value": "1"},
            {"name": "B", "value": "2"},
            {"name": "NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
        ],
    }))
    .config_map("cm", json!({"B": "b", "A": "a"}))
    .services(&[("default", "kubernetes", "1.1.1.1")]);
    let environment = world.environment_of("c").unwrap();
    let names: Vec<_> = environment.iter().map(|(name, _)| name).take(5).collect();
    assert_eq!(names, ["A", "B", "Z", "NAME", "KUBERNETES_SERVICE_HOST"]);
    let origin = |name: &str| environment.get(name).unwrap().origin.clone();
    let Origin::Key {
        kind,
        name,
        key,
        resource_version,
    } = origin("A")
    else {
        panic!("{:?}", origin("A"));
    };
    assert_eq!(
        (kind, name, key, resource_version.as_str()),
        (Kind::ConfigMap, "cm", "A", "7")
    );
    assert_eq!(origin("B"), Origin::Value { text: "2" });
    assert_eq!(origin("NAME"), Origin::Field("metadata.name"));
    let service = Origin::Service {
        namespace: "default",
        name: "kubernetes",
    };
    assert_eq!(origin("KUBERNETES_SERVICE_HOST"), service);
}

#[test]
fn every_kind_of_container_has_an_environment() {
    let container = |name: &str| json!({"name": name, "env": [{"name": "A", "value": name}]});
    let world = World::new(json!({
        "initContainers": [container("init")],
        "containers": [container("regular")],
        "ephemeralContainers": [container("debug")],
    }));
    for name in ["init", "regular", "debug"] {
        let environment = environment(&world.pod, world.container(name), &world.inputs).unwrap();
        assert_eq!(&*environment.get("A").unwrap().value, name.as_bytes());
    }
}

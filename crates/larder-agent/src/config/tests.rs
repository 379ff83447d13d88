mod fields;
mod reference;

use expect_test::{Expect, expect};
use larder_objects::yaml::field_names;
use larder_transport::RateLimit;

use self::fields::FIELDS;
use super::{written::AgentConfiguration, *};

fn host() -> Host {
    Host {
        name: "Box-1".to_owned(),
        uid: 1000,
        runtime_dir: Some("/run/user/1000".into()),
        temp_dir: "/tmp".into(),
    }
}

fn parse(text: &str) -> Result<(Config, Option<String>), yaml::Error> {
    Config::parse(text, Path::new("/etc/larder/agent.yaml"), &host())
}

#[track_caller]
fn refused(text: &str, expected: Expect) {
    let error = parse(text).expect_err("the file is wrong");
    expected.assert_eq(&error.to_string());
}

#[test]
fn an_empty_file_gives_the_kubelets_defaults() {
    let (config, warning) = parse("").unwrap();
    assert_eq!(warning, None);
    assert_eq!(config.node_name, "box-1");
    assert_eq!(config.root_dir, Path::new("/run/user/1000/larder"));
    assert_eq!(config.change_detection, Strategy::Watch);
    assert_eq!(config.sync_frequency, Duration::from_mins(1));
    assert_eq!(config.file_check_frequency, Duration::from_secs(20));
    assert_eq!(config.rate_limit, RateLimit::default());
    assert_eq!(config.listen, None);
}

#[test]
#[expect(clippy::too_many_lines, reason = "every field has a line")]
fn every_field_is_read() {
    let (config, warning) = parse(
        "
apiVersion: larder.dev/v1alpha1
kind: AgentConfiguration
manifests: m
podAddress: 10.0.0.7
nodeName: edge-7
rootDir: state
listen: 127.0.0.1:0
configMapAndSecretChangeDetectionStrategy: Cache
checkpoint: {key: [credential:larder.key, file:old.key], after: 2s, maxAge: {Secret: 24h, ConfigMap: 0s}}
watchScope: Auto
syncFrequency: 1m30s
staticPodPath: pods
fileCheckFrequency: 500ms
staticPodURL: https://example.com/pods
staticPodURLHeader: {Authorization: [Bearer hunter2]}
httpCheckFrequency: 5s
staticPodAPIReferences: Allow
kubeAPIQPS: 0
kubeAPIBurst: 7
maxRequestsInFlight: 20
registerNode: true
",
    )
    .unwrap();
    assert_eq!(warning, None);
    assert!(!format!("{config:?}").contains("hunter2"));
    expect![[r#"
        Config {
            kubeconfig: None,
            manifests: Some(
                "/etc/larder/m",
            ),
            pod_address: Some(
                10.0.0.7,
            ),
            node_name: "edge-7",
            root_dir: "/etc/larder/state",
            listen: Some(
                127.0.0.1:0,
            ),
            change_detection: Cache,
            watch_scope: Auto,
            sync_frequency: 90s,
            static_pod_path: Some(
                "/etc/larder/pods",
            ),
            file_check_frequency: 500ms,
            static_pod_url: Some(
                https://example.com/pods,
            ),
            static_pod_url_headers: {
                "Authorization",
            },
            http_check_frequency: 5s,
            static_pod_api_references: Allow,
            rate_limit: Limited {
                qps: 5,
                burst: 7,
            },
            max_requests_in_flight: 20,
            on_change: OnChangeConfig {
                from_pods: AllowedActions {
                    signal: true,
                    http: true,
                    restart: true,
                },
                allowed_networks: [],
                parallelism: 8,
                hooks: [],
                key_dirs: [],
            },
            checkpoint: Some(
                CheckpointConfig {
                    keys: [
                        Credential(
                            "larder.key",
                        ),
                        File(
                            "/etc/larder/old.key",
                        ),
                    ],
                    after: 2s,
                    max_age_secrets: Some(
                        86400s,
                    ),
                    max_age_config_maps: None,
                },
            ),
            checkpoint_dir: None,
            sub_path_updates: Annotated,
            register_node: true,
            beside: None,
            beside_settings: BesideConfig {
                kubelet_root_dir: "/var/lib/kubelet",
                namespaces: {},
                selector: {},
                refresh_cluster_cas: false,
                restart_events: false,
                lock_dir: "/run/larder",
                dry_run: false,
                mounts: Required,
                swaps: Inotify,
                processes: "/proc",
            },
        }
    "#]]
    .assert_debug_eq(&config);
}

#[test]
fn mistakes_are_named_with_line_and_field() {
    refused(
        "nodeName: a\nsyncFreqency: 1m\n",
        expect![[r#"line 2: unknown field "syncFreqency""#]],
    );
    refused(
        "watchScope: namespace",
        expect![
            "line 1: watchScope: expected one of `Object`, `Namespace`, `Auto`, found a string"
        ],
    );
    refused(
        "syncFrequency: 0s",
        expect!["line 1: syncFrequency: must be more than zero"],
    );
    refused(
        "# a comment\nhttpCheckFrequency: -5s",
        expect!["line 2: httpCheckFrequency: expected a duration such as 20s, 1m30s or 500ms"],
    );
    refused(
        "maxRequestsInFlight: 0",
        expect!["line 1: maxRequestsInFlight: expected a whole number from 1"],
    );
    refused(
        "fileCheckFrequency: 20",
        expect!["line 1: fileCheckFrequency: expected a string, found a number (quote it)"],
    );
    refused(
        "configMapAndSecretChangeDetectionStrategy: watch",
        expect![
            "line 1: configMapAndSecretChangeDetectionStrategy: expected one of `Get`, `Cache`, `Watch`, found a string"
        ],
    );
    refused(
        "kubeAPIQPS: -1",
        expect!["line 1: kubeAPIQPS: expected a number of requests, 0 to 65535"],
    );
    refused(
        "apiVersion: v1\n",
        expect!["line 1: apiVersion: expected larder.dev/v1alpha1"],
    );
    refused(
        "kind: Pod\n",
        expect![
            "line 1: kind: expected `AgentConfiguration` or `KubeletConfiguration`, found a string"
        ],
    );
}

#[test]
fn a_header_of_the_wrong_form_is_not_quoted() {
    refused(
        "staticPodURLHeader:\n  Authorization: Bearer hunter2\n",
        expect!["line 2: staticPodURLHeader[Authorization]: expected a sequence, found a string"],
    );
}

#[test]
fn text_at_a_mistake_is_not_quoted() {
    for text in [
        "staticPodURLHeader:\n  Authorization: [*hunter2]\n",
        "staticPodURLHeader:\n  Authorization: [!hunter2 \n",
        "staticPodURLHeader:\n  Authorization: [\"hunter2\n",
        "staticPodURLHeader:\n  Authorization: [!!int hunter2]\n",
        "staticPodURLHeader:\n  Authorization: [\"\\hunter2\"]\n",
        "staticPodURLHeader:\n  hunter2: a\n  hunter2: b\n",
        "- hunter2\n",
        "hunter2\n",
    ] {
        let error = parse(text).expect_err(text);
        assert!(
            !format!("{error} {error:?}").contains("hunter2"),
            "{error:?}"
        );
    }
}

#[test]
fn text_that_is_not_a_mapping_is_rejected_with_its_line() {
    for text in ["- a", "nodeName: [", "a: 1\na: 2\n"] {
        let error = parse(text).expect_err(text);
        assert!(error.line > 0, "{text}: {error}");
    }
}

#[test]
fn a_kubelets_file_is_accepted_and_one_warning_names_other_fields() {
    let (config, warning) = parse(
        "
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
clusterDNS: [10.96.0.10]
staticPodPath: /etc/kubernetes/manifests
staticPodURL: ''
syncFrequency: 0s
fileCheckFrequency: 10s
cgroupDriver: systemd
",
    )
    .unwrap();
    assert_eq!(
        warning.as_deref(),
        Some("fields without effect here: cgroupDriver, clusterDNS")
    );
    assert_eq!(
        config.static_pod_path.as_deref(),
        Some(Path::new("/etc/kubernetes/manifests"))
    );
    assert_eq!(config.static_pod_url, None);
    assert_eq!(config.sync_frequency, Duration::from_mins(1));
    assert_eq!(config.file_check_frequency, Duration::from_secs(10));
}

#[test]
fn a_flag_overrides_the_file() {
    let (mut config, _) = parse("nodeName: from-file\nrootDir: /from/file\n").unwrap();
    config
        .apply(Flags {
            node_name: Some("from-flag".to_owned()),
            change_detection: Some(Strategy::Get),
            watch_scope: Some(WatchScope::Namespace),
            ..Flags::default()
        })
        .unwrap();
    assert_eq!(config.node_name, "from-flag");
    assert_eq!(config.root_dir, Path::new("/from/file"));
    assert_eq!(config.change_detection, Strategy::Get);
    assert_eq!(config.watch_scope, WatchScope::Namespace);
}

#[test]
fn a_node_name_that_the_api_would_reject_is_rejected_at_once() {
    for name in ["", "Node", "a_b", "-a", "a..b"] {
        let flags = Flags {
            node_name: Some(name.to_owned()),
            ..Flags::default()
        };
        let error = Config::load(None, flags, &host()).expect_err(name);
        assert!(matches!(error, ConfigError::NodeName { .. }), "{error}");
    }
}

#[test]
fn the_root_directory_suits_the_user() {
    let root = Host { uid: 0, ..host() };
    assert_eq!(root.default_root_dir(), Path::new("/var/lib/larder"));
    let bare = Host {
        runtime_dir: None,
        ..host()
    };
    assert_eq!(bare.default_root_dir(), Path::new("/tmp/larder-1000"));
}

#[test]
fn key_of_digests_is_where_an_agent_beside_a_kubelet_may_write() {
    let flags = |beside_kubelet| Flags {
        beside_kubelet,
        ..Flags::default()
    };
    let first = |flags| {
        let (config, _) = Config::load(None, flags, &host()).unwrap();
        config.on_change.key_dirs[0].clone()
    };
    assert_eq!(first(flags(true)), BesideConfig::default().lock_dir);
    assert_eq!(first(flags(false)), Path::new("/run/user/1000/larder"));
}

/// The fields that [`Config`] reads from a file with a value for each field of the table.
#[test]
fn table_of_fields_is_complete() {
    // It excludes `manifests`.
    let fields = FIELDS.iter().filter(|field| field.name != "kubeconfig");
    let lines = fields.map(|field| format!("{}: {}\n", field.name, field.example));
    let text: String = lines.collect();
    // The configuration rejects unknown fields, so every name is right.
    let (config, warning) = parse(&text).unwrap();
    assert_eq!(warning, None);
    let names: Vec<_> = FIELDS.iter().map(|field| field.name).collect();
    let mut shown: Vec<_> = config.values().keys().cloned().collect();
    let mut sorted = names.clone();
    sorted.sort_unstable();
    shown.sort_unstable();
    assert_eq!(shown, sorted);
    let read = field_names::<AgentConfiguration>().iter();
    let others = read.filter(|name| !names.contains(name));
    assert_eq!(others.collect::<Vec<_>>(), [&"kind", &"apiVersion"]);
    for name in RELOADED_FIELDS {
        assert!(names.contains(&name), "{name}");
    }
}

/// What `/configz` shows is a file for the same configuration, but for what it masks.
#[test]
fn shown_configuration_is_one_that_can_be_read() {
    let masked = [
        "kubeconfig",
        "staticPodURL",
        "staticPodURLHeader",
        "onChange",
    ];
    let fields = FIELDS.iter().filter(|field| !masked.contains(&field.name));
    let lines = fields.map(|field| format!("{}: {}\n", field.name, field.example));
    let (config, _) = parse(&lines.collect::<String>()).unwrap();
    let mut shown = config.values();
    shown.retain(|name, _| !masked.contains(&name.as_str()));
    let (again, _) = parse(&serde_json::Value::Object(shown).to_string()).unwrap();
    assert_eq!(again.values(), config.values());
}

#[test]
fn shown_configuration_has_no_credential() {
    let text = "
staticPodURL: https://u:hunter2@h/?hunter2
staticPodURLHeader: {Authorization: [hunter2]}
onChange:
- pods: [a/b]
  steps:
  - exec: {command: [/bin/a, hunter2], env: {A: hunter2}}
  - http: {url: 'http://u:hunter2@h/?hunter2', headers: {A: hunter2}, body: hunter2}
";
    let (config, _) = parse(text).unwrap();
    let shown = serde_json::to_string(&config.values()).unwrap();
    assert!(shown.contains("Authorization") && shown.contains("https://h/"));
    assert!(
        !format!("{shown} {config:?}").contains("hunter2"),
        "{shown}"
    );
}

/// Every value of a configuration is replaced by each of many others.
#[test]
fn no_error_shows_a_value() {
    let wrong = [
        "hunter2",
        "'hunter2: x'",
        "[hunter2]",
        "{x: hunter2}",
        "[[hunter2]]",
        "[{x: hunter2}]",
        "{x: [hunter2]}",
        "4711.4711",
        "-4711",
        "http://hunter2:4711@h/",
    ];
    let nested = [
        "checkpoint: {key: ~~}",
        "checkpoint: {after: ~~}",
        "checkpoint: {maxAge: {Secret: ~~}}",
        "beside: {kubeletRootDir: ~~}",
        "beside: {namespaces: ~~}",
        "beside: {selector: ~~}",
        "beside: {restartEvents: ~~}",
        "onChange: [{pods: ~~}]",
        "onChange: [{pods: [a/b], signal: ~~}]",
        "onChange: [{selector: ~~}]",
        "staticPodURLHeader: {A: ~~}",
        "onChangeAllowedNetworks: [~~]",
        "onChangeFromPods: [~~]",
        "kind: ~~",
        "apiVersion: ~~",
    ];
    let tops = FIELDS.iter().map(|field| format!("{}: ~~", field.name));
    let mut errors = 0;
    for line in tops.chain(nested.map(str::to_owned)) {
        for value in wrong {
            if let Err(error) = parse(&line.replace("~~", value)) {
                errors += 1;
                let shown = format!("{error} {error:?}");
                assert!(
                    !shown.contains("hunter2") && !shown.contains("4711"),
                    "{line} {value}: {shown}"
                );
            }
        }
    }
    assert!(errors > 200, "{errors}");
}

#[test]
fn fields_of_different_values_are_named_in_order() {
    let config = |text: &str| parse(text).unwrap().0;
    let old = config("staticPodURL: http://host/?a=1\nmaxRequestsInFlight: 7\n");
    let new = config("staticPodURL: http://host/?a=2\nlisten: 127.0.0.1:1\n");
    // A URL differs even where it is not shown.
    assert_eq!(old.values()["staticPodURL"], new.values()["staticPodURL"]);
    let expected = ["listen", "maxRequestsInFlight", "staticPodURL"];
    assert_eq!(old.differences(&new), expected);
    assert!(new.differences(&new).is_empty());
}

// on-change 8: an error of a hook names the line of the hook.
#[test]
fn hooks_are_read_and_their_errors_name_file_line_and_field() {
    let text = "\
onChangeFromPods: [signal]
onChangeParallelism: 3
onChangeAllowedNetworks: [10.244.0.0/16]
onChange:
- pods: [web/nginx-*]
  volumes: [config, tls]
  steps:
  - exec: [nginx, -t]
  - exec: [systemctl, reload, nginx]
- selector: {matchLabels: {app: db}}
  name: reload
  signal: SIGHUP
- pods: ['*/*']
  http: {url: 'https://reload.example:8443/'}
";
    let config = parse(text).unwrap().0.on_change;
    assert_eq!((config.parallelism, config.hooks.len()), (3, 3));
    assert_eq!(config.allowed_networks, ["10.244.0.0/16".parse().unwrap()]);
    assert!(config.from_pods.signal && !config.from_pods.http && !config.from_pods.restart);
    assert!(config.runs_commands());
    let error = |text: &str| parse(text).unwrap_err().to_string();
    for (from, to, expected) in [
        (
            "signal: SIGHUP",
            "signal: SIGFOO",
            "line 12: onChange[1].signal: expected one of SIGHUP",
        ),
        (
            "name: reload",
            "naem: reload",
            "line 11: onChange[1]: unknown field \"naem\"",
        ),
        (
            "http: {url: 'https://reload.example:8443/'}",
            "name: reload\n  signal: SIGUSR1",
            "line 14: onChange[2].name: [1] is named \"reload\" as well",
        ),
        (
            "example:8443",
            "example:99999",
            "line 14: onChange[2].http.url: expected 1 to 65535 as the port of the URL",
        ),
        (
            "https://reload",
            "https://user:canary@@reload",
            "line 14: onChange[2].http.url: expected a user",
        ),
        (
            "pods: [web/nginx-*]",
            "pods: nginx",
            "line 5: onChange[0].pods: expected a sequence",
        ),
        (
            "[signal]",
            "[exec]",
            "line 1: onChangeFromPods: a pod may not run commands",
        ),
        (
            "10.244.0.0/16",
            "10.244.0.0/33",
            "line 3: onChangeAllowedNetworks[0]: expected a network such as 10.244.0.0/16",
        ),
        (
            "Parallelism: 3",
            "Parallelism: 0",
            "line 2: onChangeParallelism: expected a whole number",
        ),
    ] {
        let error = error(&text.replace(from, to));
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn a_checkpoint_is_on_when_it_names_a_key() {
    let (config, _) = parse("checkpoint: {key: 'file:/var/lib/larder.key'}").unwrap();
    let checkpoint = config.checkpoint.unwrap();
    assert_eq!(checkpoint.after, Duration::from_secs(1));
    assert_eq!(checkpoint.max_age_secrets, Some(Duration::from_hours(168)));
    assert_eq!(checkpoint.max_age_config_maps, None);
    let (config, _) = parse("checkpoint: {after: 5s}").unwrap();
    assert_eq!(config.checkpoint, None);
}

#[test]
fn an_invalid_checkpoint_is_rejected() {
    refused(
        "checkpoint: {key: 'tpm:0'}",
        expect![
            "line 1: checkpoint.key: expected credential:NAME or file:PATH, or a list of these"
        ],
    );
    refused(
        "checkpoint: {key: 'file:k', maxAge: {Pod: 1h}}",
        expect!["line 1: checkpoint.maxAge: unknown field \"Pod\""],
    );
    refused(
        "checkpoint: {key: 'file:k', after: soon}",
        expect!["line 1: checkpoint.after: expected a duration such as 20s, 1m30s or 500ms"],
    );
    let text = "checkpoint: {key: 'file:k'}\nconfigMapAndSecretChangeDetectionStrategy: Get";
    let (mut config, _) = parse(text).unwrap();
    let error = config.apply(Flags::default()).unwrap_err();
    assert_eq!(
        error.to_string(),
        "checkpoint needs change detection Watch, not Get"
    );
}

#[test]
fn an_address_may_lack_its_host_or_name_it() {
    for (text, expected) in [
        (":18098", "0.0.0.0:18098"),
        ("localhost:18098", "127.0.0.1:18098"),
        ("[::1]:80", "[::1]:80"),
    ] {
        let (config, _) = parse(&format!("listen: \"{text}\"")).unwrap();
        assert_eq!(config.listen, expected.parse().ok(), "{text}");
        assert_eq!(listen_address(text).ok(), config.listen);
    }
    assert_eq!(
        parse("listen: :80").unwrap().0.listen,
        "0.0.0.0:80".parse().ok()
    );
    for bad in [
        "",
        ":",
        "18098",
        "127.0.0.1",
        "localhost",
        ":99999",
        "example.com:80",
    ] {
        assert!(listen_address(bad).is_err(), "{bad}");
    }
}

//! Numbers at their limits: in manifests, with the API server's answers, and in the agent's configuration.

use std::{fs, process::Command};

use crate::{
    Desk,
    kills::listen,
    run::{Agent, config_map, desk, key, until},
};

/// A pod whose volume, security context and memory limit are these.
fn pod(volume: &str, context: &str, memory: &str) -> String {
    format!(
        "{{apiVersion: v1, kind: ConfigMap, metadata: {{name: a}}, data: {{k: v}}}}
---
apiVersion: v1
kind: Pod
metadata: {{name: p}}
spec:
  securityContext: {{{context}}}
  volumes: [{{name: v, {volume}}}]
  containers:
  - name: c
    image: i
    resources: {{limits: {{memory: {memory:?}}}}}
    env: [{{name: M, valueFrom: {{resourceFieldRef: {{resource: limits.memory}}}}}}]
    volumeMounts: [{{name: v, mountPath: /v}}]
"
    )
}

#[track_caller]
fn check(pod: &str, expected: &str) {
    let run = Desk::with([("app.yaml", pod)]).run("render -f app.yaml");
    assert!(run.code <= 2, "{run:?}");
    let text = run.stdout + &run.stderr;
    assert!(text.contains(expected), "{pod}{text}");
}

const OUT_OF_RANGE: &str = "expected a whole number, found one that is too large or a fraction";

#[test]
fn modes_at_their_limits_are_accepted_or_named() {
    let volumes = [
        (
            "configMap: {name: a, defaultMode: MODE}",
            "configMap.defaultMode",
        ),
        (
            "secret: {secretName: a, defaultMode: MODE}",
            "secret.defaultMode",
        ),
        (
            "downwardAPI: {defaultMode: MODE, items: []}",
            "downwardAPI.defaultMode",
        ),
        (
            "projected: {defaultMode: MODE, sources: []}",
            "projected.defaultMode",
        ),
        (
            "configMap: {name: a, items: [{key: k, path: k, mode: MODE}]}",
            "configMap.items[0].mode",
        ),
    ];
    for (volume, field) in volumes {
        let check = |mode: &str, expected: &str| {
            check(&pod(&volume.replace("MODE", mode), "", "1"), expected);
        };
        for mode in ["-1", "512", "2147483647", "-2147483648"] {
            let told = format!(
                "spec.volumes[0].{field}: Invalid value: {mode}: must be a number between 0 and 0777 (octal), both inclusive"
            );
            check(mode, &told);
        }
        for mode in ["2147483648", "-2147483649", "9223372036854775808", "0.5"] {
            check(mode, &format!("spec.volumes[0].{field}: {OUT_OF_RANGE}"));
        }
    }
    for (mode, shown) in [("0", "k  0000  1 B"), ("511", "k  0777  1 B")] {
        let volume = format!("configMap: {{name: a, defaultMode: {mode}}}");
        check(&pod(&volume, "", "1"), shown);
    }
}

#[test]
fn users_and_groups_at_their_limits_are_accepted_or_named() {
    for field in ["fsGroup", "runAsUser", "runAsGroup"] {
        let check = |number: &str, expected: &str| {
            let context = format!("{field}: {number}");
            check(&pod("configMap: {name: a}", &context, "1"), expected);
        };
        for number in ["0", "2147483647"] {
            check(number, "ready to start");
        }
        for number in [
            "-1",
            "2147483648",
            "4294967295",
            "4294967296",
            "9223372036854775807",
        ] {
            let told = format!(
                "spec.securityContext.{field}: Invalid value: {number}: must be between 0 and 2147483647, inclusive"
            );
            check(number, &told);
        }
        check(
            "9223372036854775808",
            &format!("spec.securityContext.{field}: {OUT_OF_RANGE}"),
        );
    }
}

#[test]
fn quantities_at_their_limits_are_capped_or_named_as_kubernetes_does() {
    for quantity in [
        "9223372036854775807",
        "9223372036854775808",
        "9223372036854775808Ei",
        "1e400",
    ] {
        let volume = format!("emptyDir: {{sizeLimit: {quantity:?}}}");
        let pod = pod(&volume, "", quantity);
        check(&pod, r#"M  "9223372036854775807""#);
        check(&pod, "/v  volume v: emptyDir");
    }
    // Rounded up.
    check(&pod("configMap: {name: a}", "", "1e-400"), r#"M  "1""#);
    let negative = pod("emptyDir: {sizeLimit: -1}", "", "-1e400");
    check(
        &negative,
        "spec.volumes[0].emptyDir.sizeLimit: Forbidden: SizeLimit field must be a valid resource quantity",
    );
    check(&negative, "must be greater than or equal to 0");
    for quantity in ["1e", "1e4.5", "0x10", "NaN", "inf"] {
        let told =
            format!(r#"spec.containers[0].resources.limits[memory]: Invalid value: "{quantity}""#);
        check(&pod("configMap: {name: a}", "", quantity), &told);
    }
}

#[test]
fn divisors_at_their_limits_are_applied_or_named() {
    let check = |memory: &str, divisor: &str, expected: &str| {
        let reference = format!("resource: limits.memory, divisor: {divisor:?}");
        let pod =
            pod("configMap: {name: a}", "", memory).replace("resource: limits.memory", &reference);
        check(&pod, expected);
    };
    // Rounded up, so that the smallest amount is one of the largest unit.
    for (memory, divisor, shown) in [
        ("9223372036854775807", "1", "9223372036854775807"),
        ("9223372036854775807", "1k", "9223372036854776"),
        ("9223372036854775807", "1E", "10"),
        ("9223372036854775807", "1Ei", "8"),
        ("9223372036854775808Ei", "1Ei", "8"),
        ("1", "1Ei", "1"),
        ("1e-400", "1E", "1"),
        ("9223372036854775807", "0", "9223372036854775807"),
    ] {
        check(memory, divisor, &format!("M  {shown:?}"));
    }
    for divisor in [
        "-1",
        "2",
        "1m",
        "1e400",
        "9223372036854775808",
        "1e-400",
        "0x1",
        "",
    ] {
        let field = "spec.containers[0].env[0].valueFrom.resourceFieldRef.divisor";
        check("1", divisor, &format!("{field}: "));
    }
}

#[test]
fn lifetimes_of_tokens_at_their_limits_are_accepted_or_named() {
    const FIELD: &str =
        "spec.volumes[0].projected.sources[0].serviceAccountToken.expirationSeconds";
    let check = |seconds: &str, expected: &str| {
        let source = format!("{{serviceAccountToken: {{path: t, expirationSeconds: {seconds}}}}}");
        check(
            &pod(&format!("projected: {{sources: [{source}]}}"), "", "1"),
            expected,
        );
    };
    for (seconds, told) in [
        (
            "-9223372036854775808",
            "may not specify a duration less than 10 minutes",
        ),
        ("0", "may not specify a duration less than 10 minutes"),
        ("599", "may not specify a duration less than 10 minutes"),
        (
            "4294967297",
            "may not specify a duration larger than 2^32 seconds",
        ),
        (
            "9223372036854775807",
            "may not specify a duration larger than 2^32 seconds",
        ),
    ] {
        check(
            seconds,
            &format!("{FIELD}: Invalid value: {seconds}: {told}"),
        );
    }
    check("9223372036854775808", &format!("{FIELD}: {OUT_OF_RANGE}"));
    for seconds in ["600", "4294967296"] {
        check(seconds, "ready to start");
    }
}

#[test]
fn numbers_of_the_configuration_beyond_their_limits_are_named() {
    let desk = Desk::with([]);
    fs::create_dir(desk.path().join("m")).unwrap();
    let hook = |field: &str| format!("onChange: [{{signal: SIGHUP, pods: [a/b], {field}}}]");
    let mut faulty = Vec::new();
    for field in ["syncFrequency", "fileCheckFrequency", "httpCheckFrequency"] {
        for duration in ["-1s", "1e400s", "99999999h", "9223372037s", "0.1ns"] {
            faulty.push((format!("{field}: {duration}"), format!("{field}: ")));
        }
    }
    for number in ["-1", "65536", "18446744073709551616", "1e400", "0.5"] {
        for field in ["kubeAPIQPS", "kubeAPIBurst"] {
            faulty.push((
                format!("{field}: {number}"),
                format!("{field}: expected a number of requests, 0 to 65535"),
            ));
        }
    }
    for number in ["-1", "0", "18446744073709551616", "1e400", "0.5"] {
        for field in ["maxRequestsInFlight", "onChangeParallelism"] {
            faulty.push((
                format!("{field}: {number}"),
                format!("{field}: expected a whole number from 1"),
            ));
        }
    }
    for duration in ["-1s", "1e400s", "99999999h", "9223372037s"] {
        for field in ["debounce", "splay", "timeout"] {
            let told = format!("onChange[0].{field}: expected a duration");
            faulty.push((hook(&format!("{field}: {duration}")), told));
        }
        for field in ["debounce", "retry"] {
            let told = format!("onChange[0].{field}.max: expected a duration");
            faulty.push((
                hook(&format!("{field}: {{min: 1s, max: {duration}}}")),
                told,
            ));
        }
    }
    for number in ["-1", "4294967296", "0.5"] {
        let told = "onChange[0].retry.attempts: expected a whole number".to_owned();
        faulty.push((hook(&format!("retry: {{attempts: {number}}}")), told));
    }
    for (config, told) in faulty {
        fs::write(desk.path().join("agent.yaml"), &config).unwrap();
        let run = desk.run("run --manifests m --root-dir root --config agent.yaml");
        assert_eq!(run.code, 2, "{config}: {}", run.stderr);
        let told = format!("agent.yaml: line 1: {told}");
        assert!(run.stderr.contains(&told), "{config}: {}", run.stderr);
    }
}

#[tokio::test]
async fn agent_works_with_the_largest_numbers_of_its_configuration() {
    const LONGEST: &str = "2562047h47m16s";
    let desk = desk();
    let (address, told) = listen(&desk);
    let config = format!(
        "syncFrequency: {LONGEST}
fileCheckFrequency: {LONGEST}
httpCheckFrequency: {LONGEST}
kubeAPIQPS: 65535
kubeAPIBurst: 65535
maxRequestsInFlight: 9223372036854775807
onChangeParallelism: 9223372036854775807
onChange:
- {{name: tell, pods: [default/web], http: {{url: 'http://{address}/'}}, debounce: {{min: 0s, max: {LONGEST}}}, timeout: {LONGEST}, retry: {{min: {LONGEST}, max: {LONGEST}, attempts: 4294967295}}}}
- {{name: fail, pods: [default/web], signal: SIGHUP, debounce: 0s, timeout: {LONGEST}, retry: {{min: {LONGEST}, max: {LONGEST}, attempts: 4294967295}}}}
- {{name: wait, pods: [default/web], signal: SIGHUP, debounce: {LONGEST}, splay: {LONGEST}}}
"
    );
    fs::write(desk.path().join("agent.yaml"), config).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_larder"));
    command.env_clear();
    let origin = "--manifests m --node-name n1 --config agent.yaml";
    let mut agent = Agent::spawn(&desk, command, origin);
    agent.summary();
    for value in ["2", "3"] {
        let before = told.lock().len();
        desk.replace(
            "m/app.yaml",
            &config_map("app", &format!("a: '{value}', b: '1'")),
        );
        until("the edit", || {
            key(&desk, "web", "a").as_deref() == Some(value)
        })
        .await;
        until("the hook", || told.lock().len() > before).await;
    }
}

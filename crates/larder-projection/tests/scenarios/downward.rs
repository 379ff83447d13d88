//! Fields of the pod and resources of its containers.

use larder_projection::{containers, unknown_address};
use serde_json::{Value, json};

use super::World;

fn labelled(labels: Value, annotations: Value, path: &str) -> World {
    let mut world = World::new(json!({
        "containers": [{"name": "c", "env": [{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": path}}}]}],
        "volumes": [{"name": "v", "downwardAPI": {"defaultMode": 0o644, "items": [
            {"path": "this//labels", "fieldRef": {"fieldPath": path}}]}}],
    }));
    world.pod.metadata.labels = serde_json::from_value(labels).unwrap();
    world.pod.metadata.annotations = serde_json::from_value(annotations).unwrap();
    world
}

#[test]
fn maps_are_sorted_lines_with_quoted_values() {
    // projection 45, 48
    let labels = json!({"multiline": "c\nb\na", "a1": "value\n"});
    labelled(labels, json!(null), "metadata.labels").check_files(&[(
        "this/labels",
        0o644,
        "a1=\"value\\n\"\nmultiline=\"c\\nb\\na\"",
    )]);
    let annotations = json!({"json": "{\"a\":\"b\"}"});
    labelled(json!(null), annotations, "metadata.annotations").check_files(&[(
        "this/labels",
        0o644,
        r#"json="{\"a\":\"b\"}""#,
    )]);
    labelled(json!(null), json!(null), "metadata.labels").check_files(&[(
        "this/labels",
        0o644,
        "",
    )]);
}

#[test]
fn subscripts_pick_one_value_and_a_missing_one_is_empty() {
    // projection 46, 47
    let world = |path| {
        labelled(
            json!({"app": "web"}),
            json!({"Www.k8s.io/test": "t", "x": "\"q\""}),
            path,
        )
    };
    for (path, value) in [
        ("metadata.labels['app']", "web"),
        ("metadata.labels['none']", ""),
        ("metadata.annotations['Www.k8s.io/test']", "t"),
        ("metadata.annotations['www.k8s.io/test']", ""),
        ("metadata.annotations['x']", "\"q\""),
    ] {
        world(path).check_variables(&[("A", value)]);
        world(path).check_files(&[("this/labels", 0o644, value)]);
    }
    for path in [
        "metadata.labels['']",
        "metadata.labels['Www.k8s.io/test']",
        "metadata.annotations['a b']",
    ] {
        let start = format!("invalid key subscript in {path}: ");
        let volume = world(path).projection().unwrap_err().to_string();
        assert!(volume.starts_with(&start), "{volume}");
        let variable = world(path).environment_of("c").unwrap_err().to_string();
        assert_eq!(volume, variable);
    }
    world("metadata.name['x']")
        .check_volume_fails("fieldPath \"metadata.name['x']\" does not support subscript");
    world("metadata.name['x']")
        .check_environment_fails("field label does not support subscript: metadata.name['x']");
}

#[test]
fn unknown_fields_are_refused() {
    // projection 47
    let world = |path| labelled(json!({}), json!({}), path);
    for path in ["metadata.whoops", "", "spec.volumes"] {
        world(path).check_volume_fails(&format!("unsupported fieldPath: {path}"));
        world(path).check_environment_fails(&format!("field label not supported: {path}"));
    }
    for path in ["spec.restartPolicy", "spec.schedulerName", "status.phase"] {
        world(path).check_environment_fails(&format!("unsupported fieldPath: {path}"));
    }
    for path in ["spec.nodeName", "status.podIP", "status.hostIP"] {
        world(path).check_volume_fails(&format!("unsupported fieldPath: {path}"));
    }
    World::with_env(json!([{"name": "A", "valueFrom": {"fieldRef": {"apiVersion": "v2", "fieldPath": "metadata.name"}}}]))
        .check_environment_fails("unsupported pod version: v2");
}

#[test]
fn a_downward_volume_reports_all_failures_in_order() {
    let item = |path: &str, field: &str| json!({"path": path, "fieldRef": {"fieldPath": field}});
    World::with_volume(json!({"downwardAPI": {"defaultMode": 0o644, "items": [
        item("a", "bad"), item("b", "metadata.name"), item("c", "worse")]}}))
    .check_volume_fails("[unsupported fieldPath: bad, unsupported fieldPath: worse]");
    let mut both = item("a", "metadata.name");
    both["resourceFieldRef"] = json!({"containerName": "none", "resource": "limits.cpu"});
    World::with_volume(json!({"downwardAPI": {"defaultMode": 0o644, "items": [both, item("x//y", "metadata.uid"), item("x/y", "metadata.namespace")]}}))
        .check_files(&[("a", 0o644, "web"), ("x/y", 0o644, "ns")]);
}

fn address_world(pod_ip: Value, pod_ips: &[&str]) -> World {
    let field = |name: &str, path: &str| json!({"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}});
    let mut world = World::with_env(json!([
        field("IP", "status.podIP"),
        field("IPS", "status.podIPs"),
        field("HOST", "status.hostIP"),
        field("HOSTS", "status.hostIPs"),
        field("NODE", "spec.host"),
        field("ACCOUNT", "spec.serviceAccountName"),
    ]));
    let ips: Vec<_> = pod_ips.iter().map(|ip| json!({"ip": ip})).collect();
    world.pod.status = serde_json::from_value(json!({"podIP": pod_ip, "podIPs": ips})).unwrap();
    let spec = world.pod.spec.as_mut().unwrap();
    spec.node_name = Some("node-1".to_owned());
    spec.service_account_name = Some("robot".to_owned());
    world
}

#[test]
fn addresses_are_one_per_family_in_node_order() {
    // projection 51
    let v4_node = [("InternalIP", "10.0.0.1"), ("Hostname", "node-1")];
    let v6_node = [
        ("ExternalIP", "1.2.3.9"),
        ("InternalIP", "fd00::1"),
        ("InternalIP", "10.0.0.1"),
    ];
    for (ips, node, ip, joined) in [
        (
            &["fd00::6", "1.2.3.4"][..],
            &v4_node[..],
            "1.2.3.4",
            "1.2.3.4,fd00::6",
        ),
        (
            &["fd00::6", "1.2.3.4", "1.2.3.4.5"],
            &v4_node,
            "1.2.3.4",
            "1.2.3.4,fd00::6",
        ),
        (
            &["fd00:0:0::0006", "1.2.3.4", "1.2.3.5"],
            &v6_node,
            "fd00::6",
            "fd00::6,1.2.3.4",
        ),
        (&["1.2.3.4"], &v6_node, "1.2.3.4", "1.2.3.4"),
        (&[], &v4_node, "5.6.7.8", "5.6.7.8"),
        (&["nonsense"], &v4_node, "5.6.7.8", ""),
    ] {
        let variables = address_world(json!("5.6.7.8"), ips)
            .node(json!({}), node)
            .variables();
        assert_eq!(
            (variables["IP"].as_str(), variables["IPS"].as_str()),
            (ip, joined),
            "{ips:?}"
        );
        assert_eq!(
            (variables["NODE"].as_str(), variables["ACCOUNT"].as_str()),
            ("node-1", "robot")
        );
    }
}

#[test]
fn host_addresses_are_internal_ones_first() {
    let hosts = |node: &[(&str, &str)]| {
        let mut variables = address_world(json!("1.1.1.1"), &[])
            .node(json!({}), node)
            .variables();
        (
            variables.remove("HOST").unwrap(),
            variables.remove("HOSTS").unwrap(),
        )
    };
    let pair = |host: &str, hosts: &str| (host.to_owned(), hosts.to_owned());
    assert_eq!(
        hosts(&[
            ("ExternalIP", "1.1.1.1"),
            ("InternalIP", "10.0.0.1"),
            ("ExternalIP", "fd00::9")
        ]),
        pair("10.0.0.1", "10.0.0.1,fd00::9")
    );
    assert_eq!(
        hosts(&[("InternalIP", "10.0.0.1"), ("InternalIP", "10.0.0.2")]),
        pair("10.0.0.1", "10.0.0.1")
    );
    address_world(json!("1.1.1.1"), &[])
        .node(json!({}), &[("Hostname", "n")])
        .check_environment_fails("host IP unknown; known addresses: []");
}

#[test]
fn without_a_node_the_status_gives_the_host_address() {
    let mut world = address_world(json!("1.1.1.1"), &[]);
    world.check_environment_fails("host IP unknown; known addresses: []");
    let status = world.pod.status.as_mut().unwrap();
    status.host_ip = Some("10.0.0.7".to_owned());
    assert_eq!(world.variables()["HOSTS"], "10.0.0.7");
}

#[test]
fn a_pod_in_the_network_of_the_node_has_its_addresses() {
    // projection 51
    let mut world = address_world(json!(null), &[]);
    world.pod.spec.as_mut().unwrap().host_network = Some(true);
    let both = [("InternalIP", "10.0.0.1"), ("InternalIP", "fd00::1")];
    let mut world = world.node(json!({}), &both);
    let variables = world.variables();
    assert_eq!(variables["IP"], "10.0.0.1");
    assert_eq!(variables["IPS"], "10.0.0.1,fd00::1");
    // Addresses in the status win.
    world.pod.status.as_mut().unwrap().pod_ip = Some("10.0.0.9".to_owned());
    assert_eq!(world.variables()["IPS"], "10.0.0.9");
}

#[test]
fn unknown_addresses_are_named_in_the_order_of_the_variables() {
    let unknown = |world: &World| {
        let container = containers(&world.pod).next().unwrap();
        unknown_address(&world.pod, container, world.inputs.node.as_deref()).map(str::to_owned)
    };
    let world = address_world(json!(null), &[]);
    assert_eq!(unknown(&world).as_deref(), Some("status.podIP"));
    let world = address_world(json!("10.0.0.9"), &[]);
    assert_eq!(unknown(&world).as_deref(), Some("status.hostIP"));
    let world = world.node(json!({}), &[("InternalIP", "10.0.0.1")]);
    assert_eq!(unknown(&world), None);
    // A variable that reads no address waits for none.
    let name = json!([{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}]);
    assert_eq!(unknown(&World::with_env(name)), None);
}

#[test]
fn files_follow_the_pod_of_the_day() {
    // projection 52: the environment is computed once, at the start of the container.
    let mut world = labelled(json!({"app": "old"}), json!({}), "metadata.labels['app']");
    world.check_files(&[("this/labels", 0o644, "old")]);
    world.pod.metadata.labels = Some([("app".to_owned(), "new".to_owned())].into());
    world.check_files(&[("this/labels", 0o644, "new")]);
}

const FIELDS: [(&str, &str); 4] = [
    ("limits.cpu", "1"),
    ("requests.cpu", "1"),
    ("limits.memory", "1"),
    ("requests.memory", "1"),
];

/// A container with `resources`, and each of `fields` with its divisor as a variable and as a file.
fn resource_world(spec: Value, container: Value, fields: &[(&str, &str)]) -> World {
    let reference =
        |(resource, divisor): &(&str, &str)| json!({"resource": resource, "divisor": divisor});
    let env: Vec<_> = fields
        .iter()
        .enumerate()
        .map(|(index, field)| json!({"name": format!("A{index}"), "valueFrom": {"resourceFieldRef": reference(field)}}))
        .collect();
    let items: Vec<_> = fields
        .iter()
        .enumerate()
        .map(|(index, field)| {
            let mut reference = reference(field);
            reference["containerName"] = json!("c");
            json!({"path": format!("A{index}"), "resourceFieldRef": reference})
        })
        .collect();
    let mut container = container;
    container["name"] = json!("c");
    container["env"] = json!(env);
    let mut spec = spec;
    spec["containers"] = json!([container]);
    spec["volumes"] = json!([{"name": "v", "downwardAPI": {"defaultMode": 0o644, "items": items}}]);
    World::new(spec).node(json!({"cpu": "3920m", "memory": "7Gi", "ephemeral-storage": "50Gi", "hugepages-2Mi": "4Mi"}), &[])
}

impl World {
    #[track_caller]
    fn check_resources(&self, in_variables: &[&str], in_files: &[&str]) {
        let variables: Vec<_> = self.variables().into_values().collect();
        assert_eq!(variables, in_variables, "variables");
        let projection = self.projection().unwrap();
        let files = projection
            .payload
            .values()
            .map(|file| String::from_utf8(file.data.to_vec()).unwrap());
        assert_eq!(files.collect::<Vec<_>>(), in_files, "files");
    }
}

#[test]
fn requests_and_limits_are_rounded_up() {
    // projection 49
    let resources = json!({"resources": {"requests": {"cpu": "250m", "memory": "32Mi"}, "limits": {"cpu": "1250m", "memory": "64Mi"}}});
    let expected = ["2", "1", "67108864", "33554432"];
    resource_world(json!({}), resources.clone(), &FIELDS).check_resources(&expected, &expected);
    let fields = [
        ("limits.cpu", "1m"),
        ("limits.memory", "1Mi"),
        ("requests.memory", "1M"),
        ("limits.memory", "0"),
        ("limits.memory", "1m"),
    ];
    let expected = ["1250", "64", "34", "67108864", "67108864"];
    resource_world(json!({}), resources, &fields).check_resources(&expected, &expected);
}

#[test]
fn missing_and_zero_limits_are_what_the_node_can_allocate() {
    // projection 49
    let expected = ["4", "0", "7516192768", "0"];
    resource_world(json!({}), json!({}), &FIELDS).check_resources(&expected, &expected);
    let zero = json!({"resources": {"limits": {"cpu": "0", "memory": "0"}}});
    resource_world(json!({}), zero, &FIELDS).check_resources(&expected, &expected);
    let fields = [
        ("limits.ephemeral-storage", "1Gi"),
        ("limits.hugepages-2Mi", "1"),
        ("requests.ephemeral-storage", "1"),
        ("requests.hugepages-1Gi", "1"),
    ];
    let expected = ["50", "0", "0", "0"];
    resource_world(json!({}), json!({}), &fields).check_resources(&expected, &expected);
}

#[test]
fn limits_of_the_pod_apply_to_variables_only() {
    // projection 50
    let pod = json!({"resources": {"limits": {"cpu": "1250m", "memory": "64Mi"}}});
    resource_world(pod, json!({}), &FIELDS)
        .check_resources(&["2", "0", "67108864", "0"], &["4", "0", "7516192768", "0"]);
    let pod = json!({"resources": {"limits": {"cpu": "1250m", "memory": "0"}}});
    resource_world(pod, json!({}), &FIELDS).check_resources(
        &["2", "0", "7516192768", "0"],
        &["4", "0", "7516192768", "0"],
    );
    // What the node does not have, the pod cannot limit.
    let pod = json!({"resources": {"limits": {"cpu": "1250m"}}});
    resource_world(pod, json!({}), &[("limits.cpu", "1")])
        .node(json!({}), &[])
        .check_resources(&["0"], &["0"]);
}

#[test]
fn init_containers_named_in_variables_have_no_default_limits() {
    let reference = |name: Value| json!([{"name": "A", "valueFrom": {"resourceFieldRef": {"containerName": name, "resource": "limits.cpu"}}}]);
    let world = World::new(json!({
        "initContainers": [{"name": "init", "env": reference(json!(null))}],
        "containers": [{"name": "c", "env": reference(json!("init"))}],
        "volumes": [{"name": "v", "downwardAPI": {"defaultMode": 0o644, "items": [
            {"path": "a", "resourceFieldRef": {"containerName": "init", "resource": "limits.cpu"}}]}}],
    }))
    .node(json!({"cpu": "4"}), &[]);
    world.check_resources(&["0"], &["4"]);
    let own = world.environment_of("init").unwrap();
    assert_eq!(&*own.get("A").unwrap().value, b"4");
}

#[test]
fn a_resource_without_a_value_is_an_error() {
    let world = |name: &str, resource: &str| {
        let reference = json!({"containerName": name, "resource": resource});
        World::new(json!({
            "containers": [{"name": "c", "env": [{"name": "A", "valueFrom": {"resourceFieldRef": reference}}]}],
            "ephemeralContainers": [{"name": "debug"}],
            "volumes": [{"name": "v", "downwardAPI": {"defaultMode": 0o644, "items": [{"path": "a", "resourceFieldRef": reference}]}}],
        }))
    };
    for (name, resource, text) in [
        ("none", "limits.cpu", "container none not found"),
        ("debug", "limits.cpu", "container debug not found"),
        (
            "c",
            "limits.gpu",
            "unsupported container resource : limits.gpu",
        ),
        ("c", "cpu", "unsupported container resource : cpu"),
        (
            "c",
            "usage.cpu",
            "unsupported container resource : usage.cpu",
        ),
    ] {
        world(name, resource).check_environment_fails(text);
        world(name, resource).check_volume_fails(text);
    }
    world("c", "limits.cpu").check_environment_fails("failed to find node object, expected a node");
    world("c", "limits.cpu").check_volume_fails("error retrieving node: node not found");
    let malformed = json!({"resources": {"limits": {"cpu": "1K"}}});
    let world = resource_world(json!({}), malformed, &[("limits.cpu", "1")]);
    world.check_environment_fails("invalid quantity \"1K\" for limits.cpu");
}

#[test]
fn results_stay_exact_where_floating_point_would_not() {
    let resources = json!({"resources": {"limits": {"memory": "9007199254740993", "cpu": "9007199254740993m"}}});
    let expected = ["9007199254740993", "9007199254740993"];
    resource_world(
        json!({}),
        resources,
        &[("limits.memory", "1"), ("limits.cpu", "1m")],
    )
    .check_resources(&expected, &expected);
}

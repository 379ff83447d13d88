//! Tokens, trust anchors and certificates: content, mode and owner.

use std::sync::Arc;

use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
use larder_objects::SecretBytes;
use larder_projection::{
    PodCertificate, SourceKey, TokenRequest, TrustBundle, TrustBundles, Unavailable, fs_user,
};
use serde_json::{Value, json};

use super::World;

/// A pod with a token of 3600 s in the file `token`.
fn token_world(spec: Value, default_mode: Value) -> World {
    let mut spec = spec;
    spec["volumes"] = json!([{"name": "v", "projected": {"defaultMode": default_mode, "sources": [
        {"serviceAccountToken": {"path": "token", "expirationSeconds": 3600}},
        {"configMap": {"name": "cm"}}]}}]);
    let mut world = World::new(spec).config_map("cm", json!({"k": "1"}));
    let request = TokenRequest {
        audience: None,
        expiration_secs: 3600,
    };
    let token = Arc::new(SecretBytes::new(b"abc".to_vec()));
    world.inputs.tokens.insert(request, Ok(token));
    world
}

#[test]
fn a_token_file_belongs_to_the_user_of_the_pod() {
    // projection 42, 72
    let context = |user: Option<i64>, group: Option<i64>| json!({"securityContext": {"runAsUser": user, "fsGroup": group}});
    for (user, group, mode, owner) in [
        (None, None, 0o644, None),
        (Some(1000), None, 0o600, Some(1000)),
        (None, Some(10000), 0o600, None),
        (Some(1000), Some(10000), 0o600, Some(1000)),
        (Some(0), None, 0o600, Some(0)),
    ] {
        let world = token_world(context(user, group), json!(0o644));
        let projection = world.projection().unwrap();
        let token = &projection.payload["token"];
        assert_eq!(&*token.data, b"abc");
        assert_eq!(
            (token.mode, token.owner),
            (mode, owner),
            "{user:?} {group:?}"
        );
        // Other files keep root and the volume's mode.
        let other = &projection.payload["k"];
        assert_eq!((other.mode, other.owner), (0o644, None));
    }
    for mode in [0o777, 0o400] {
        let world = token_world(context(Some(1000), None), json!(mode));
        assert_eq!(world.projection().unwrap().payload["token"].mode, 0o600);
    }
    token_world(json!({}), Value::Null)
        .check_volume_fails("no defaultMode used, not even the default value for it");
}

#[test]
fn a_named_owner_goes_before_the_user_of_the_pod() {
    // projection 77
    for (run_as, default_user, user, mode, owner) in [
        (Some(1), None, None, 0o600, Some(1)),
        (Some(1), Some(2), None, 0o600, Some(2)),
        (Some(1), Some(2), Some(3), 0o600, Some(3)),
        (Some(1), Some(0), None, 0o600, Some(0)),
        (Some(1), Some(2), Some(0), 0o600, Some(0)),
        // The mode stays the volume's where the pod has no user and no group.
        (None, Some(2), None, 0o644, Some(2)),
        (None, None, Some(3), 0o644, Some(3)),
    ] {
        let context = json!({"securityContext": {"runAsUser": run_as}});
        let mut world = token_world(context, json!(0o644));
        let volumes = world.pod.spec.as_mut().unwrap().volumes.as_mut().unwrap();
        let projected = volumes[0].projected.as_mut().unwrap();
        projected.default_user = default_user;
        let sources = projected.sources.as_mut().unwrap();
        sources[0].service_account_token.as_mut().unwrap().user = user;
        let projection = world.projection().unwrap();
        let token = &projection.payload["token"];
        assert_eq!(
            (token.mode, token.owner),
            (mode, owner),
            "{run_as:?} {default_user:?} {user:?}"
        );
        let other = projection.payload["k"].owner;
        assert_eq!(other, default_user.map(|user| u32::try_from(user).unwrap()));
    }
}

#[test]
fn all_containers_must_agree_on_the_user() {
    // projection 43
    let container =
        |user: Option<i64>| json!({"name": "x", "securityContext": {"runAsUser": user}});
    for (pod, init, regular, ephemeral, expected) in [
        (None, None, None, None, None),
        (None, Some(1), None, Some(1), None),
        (None, Some(1), Some(1), Some(2), None),
        (None, Some(1), Some(1), Some(1), Some(1)),
        (Some(1), None, None, None, Some(1)),
        (Some(2), Some(1), Some(1), Some(1), Some(1)),
        (Some(1), None, Some(2), None, None),
        (None, Some(0), Some(0), Some(0), Some(0)),
    ] {
        let world = World::new(json!({
            "securityContext": {"runAsUser": pod},
            "initContainers": [container(init)],
            "containers": [container(regular)],
            "ephemeralContainers": [container(ephemeral)],
        }));
        assert_eq!(
            fs_user(&world.pod),
            expected,
            "{pod:?} {init:?} {regular:?} {ephemeral:?}"
        );
    }
}

#[test]
fn an_unavailable_token_fails_the_volume_with_its_message() {
    let mut world = token_world(json!({}), json!(0o644));
    for token in world.inputs.tokens.values_mut() {
        *token = Err(Unavailable::failed("failed to fetch token: timeout"));
    }
    world.check_volume_fails("failed to fetch token: timeout");
}

fn pem(content: &str) -> String {
    format!(
        "-----BEGIN CERTIFICATE-----\n{}\n-----END CERTIFICATE-----\n",
        BASE64.encode(content)
    )
}

fn bundle(name: &str, signer: &str, label: &str, certificates: &[&str]) -> TrustBundle {
    TrustBundle {
        name: name.to_owned(),
        signer_name: signer.to_owned(),
        labels: [("l".to_owned(), label.to_owned())].into(),
        trust_bundle: certificates
            .iter()
            .flat_map(|content| ["# not in the file\n".to_owned(), pem(content)])
            .collect(),
    }
}

/// A pod with trust anchors in the file `ca`, among four bundles.
fn trust_world(mut source: Value) -> World {
    source["path"] = json!("ca");
    let mut world = World::with_volume(
        json!({"projected": {"defaultMode": 0o644, "sources": [{"clusterTrustBundle": source}]}}),
    );
    world.inputs.trust_bundles = TrustBundles::Synced(Arc::new([
        bundle("z", "sig/a", "1", &["C", "A"]),
        bundle("b", "sig/a", "1", &["A", "B", "A"]),
        bundle("c", "sig/a", "2", &["D"]),
        bundle("d", "", "1", &["E"]),
    ]));
    world
}

#[test]
fn trust_anchors_of_a_name() {
    // projection 73
    trust_world(json!({"name": "d"})).check_files(&[("ca", 0o644, &pem("E"))]);
    let text = "while getting ClusterTrustBundle: clustertrustbundle.certificates.k8s.io \"gone\" not found";
    trust_world(json!({"name": "gone"})).check_volume_fails(text);
    trust_world(json!({"name": "gone", "optional": true})).check_files(&[("ca", 0o644, "")]);
}

#[test]
fn trust_anchors_are_unique_and_in_a_stable_order() {
    // projection 73
    let all = |certificates: &[&str]| {
        certificates
            .iter()
            .map(|content| pem(content))
            .collect::<String>()
    };
    for (selector, expected) in [
        (json!({"matchLabels": {"l": "1"}}), all(&["A", "B", "C"])),
        (json!({}), all(&["A", "B", "D", "C"])),
        (
            json!({"matchExpressions": [{"key": "l", "operator": "In", "values": ["2", "3"]}]}),
            all(&["D"]),
        ),
        (
            json!({"matchExpressions": [{"key": "l", "operator": "NotIn", "values": ["1"]}]}),
            all(&["D"]),
        ),
        (
            json!({"matchExpressions": [{"key": "l", "operator": "Exists"}, {"key": "m", "operator": "DoesNotExist"}]}),
            all(&["A", "B", "D", "C"]),
        ),
    ] {
        let mut world = trust_world(json!({"signerName": "sig/a", "labelSelector": selector}));
        world.check_files(&[("ca", 0o644, &expected)]);
        // Another order of the list is the same file.
        let TrustBundles::Synced(bundles) = &mut world.inputs.trust_bundles else {
            unreachable!()
        };
        Arc::get_mut(bundles).unwrap().reverse();
        world.check_files(&[("ca", 0o644, &expected)]);
    }
}

#[test]
fn a_selector_that_is_not_there_matches_nothing() {
    // projection 73
    let text = "combination of signerName and labelSelector matched zero ClusterTrustBundles";
    trust_world(json!({"signerName": "sig/a"})).check_volume_fails(text);
    trust_world(json!({"signerName": "sig/x", "labelSelector": {}})).check_volume_fails(text);
    trust_world(json!({"signerName": "sig/a", "optional": true})).check_files(&[("ca", 0o644, "")]);
    let text = "ClusterTrustBundle projection requires either name or signerName to be set";
    trust_world(json!({"optional": true})).check_volume_fails(text);
}

#[test]
fn unknown_trust_bundles_and_excessive_selectors_fail() {
    // projection 73
    let mut world = trust_world(json!({"name": "d", "optional": true}));
    world.inputs.trust_bundles = TrustBundles::NotSynced;
    world.check_volume_fails("ClusterTrustBundle informer has not yet synced");
    world.inputs.trust_bundles = TrustBundles::Unsupported;
    world.check_volume_fails(
        "ClusterTrustBundle projection is not supported in static kubelet mode",
    );
    let selector = |length: usize| json!({"matchLabels": {"k": "x".repeat(length - 2)}});
    let source = |length| json!({"signerName": "sig/a", "labelSelector": selector(length), "optional": true});
    trust_world(source(100 * 1024)).check_files(&[("ca", 0o644, "")]);
    let error = trust_world(source(100 * 1024 + 1))
        .projection()
        .unwrap_err()
        .to_string();
    assert!(error.contains("label selector length"), "{error}");
}

#[test]
fn a_pod_certificate_gives_bundle_key_and_chain() {
    // projection 74
    let mut world = World::with_volume(json!({"projected": {"defaultMode": 0o644, "sources": [
        {},
        {"podCertificate": {"signerName": "s/x", "keyType": "ED25519", "credentialBundlePath": "bundle"}},
        {"podCertificate": {"signerName": "s/x", "keyType": "ED25519", "keyPath": "key", "certificateChainPath": "chain"}},
    ]}}));
    world.check_volume_fails("credential bundle is not issued yet");
    let key = "-----BEGIN PRIVATE KEY-----\nAA==\n-----END PRIVATE KEY-----\n";
    let issued = Arc::new(PodCertificate {
        private_key_pem: SecretBytes::new(key.as_bytes().to_vec()),
        chain_pem: format!("leaf\n{}root\n{}", pem("L"), pem("R")),
    });
    for index in [1, 2] {
        let source = SourceKey {
            volume: "v".to_owned(),
            index,
        };
        world
            .inputs
            .pod_certificates
            .insert(source, Ok(issued.clone()));
    }
    let chain = pem("L") + &pem("R");
    world.check_files(&[
        ("bundle", 0o644, &format!("{key}{chain}")),
        ("chain", 0o644, &chain),
        ("key", 0o644, key),
    ]);
    assert!(!format!("{:?}", world.inputs).contains("PRIVATE"));
}

//! Every text that the kubelet has as well, byte for byte, with its file in kubelet 1.36.
//!
//! Compared with the sources by hand. Texts of larder alone are not listed: limits, NUL bytes, malformed quantities.
//! Those of tokens are in `larder-inputs`, which requests them.

use std::sync::Arc;

use larder_objects::{Kind, ObjectKey};
use larder_projection::{
    EnvFileError, EnvironmentError, FieldRefError, LineProblem, MountError, ObjectError,
    ResourceError, SourceError, TrustBundleError, VolumePathError,
};

fn text(text: &str) -> String {
    text.to_owned()
}

#[track_caller]
fn check<E: std::error::Error>(texts: &[(&str, E, &str)]) {
    for (file, error, expected) in texts {
        assert_eq!(error.to_string(), *expected, "{file}");
    }
}

#[test]
fn texts_of_objects_and_keys_are_the_kubelets() {
    let not_found = |kind| ObjectError::NotFound {
        kind,
        name: text("a"),
    };
    let status = "staging/src/k8s.io/apimachinery/pkg/api/errors/errors.go";
    check(&[
        (
            status,
            not_found(Kind::ConfigMap),
            r#"configmap "a" not found"#,
        ),
        (status, not_found(Kind::Secret), r#"secret "a" not found"#),
        (
            "pkg/kubelet/util/manager/watch_based_manager.go",
            ObjectError::Failed {
                kind: Kind::Secret,
                name: text("a"),
                message: Arc::from(r#"object "n"/"a" not registered"#),
            },
            r#"object "n"/"a" not registered"#,
        ),
    ]);
    let missing = |kind| EnvironmentError::MissingKey {
        kind,
        object: ObjectKey::new("n", "a"),
        key: text("k"),
    };
    let pods = "pkg/kubelet/kubelet_pods.go";
    check(&[
        (
            pods,
            missing(Kind::ConfigMap),
            "couldn't find key k in ConfigMap n/a",
        ),
        (
            pods,
            missing(Kind::Secret),
            "couldn't find key k in Secret n/a",
        ),
        (
            pods,
            EnvironmentError::NoServiceLinks,
            "nil pod.spec.enableServiceLinks encountered, cannot construct envvars",
        ),
        (
            pods,
            EnvironmentError::NoServices,
            "services have not yet been read at least once, cannot construct envvars",
        ),
        (
            pods,
            EnvironmentError::NoVolume(text("v")),
            r#"cannot find the volume "v" referenced by FileKeyRef"#,
        ),
        (
            pods,
            EnvironmentError::MalformedEnvFile(EnvFileError::Unclosed { line: 1 }),
            "couldn't parse env file",
        ),
        (
            pods,
            EnvironmentError::MissingFileKey {
                key: text("k"),
                path: text("/p"),
            },
            r#"environment variable key "k" not found in file "/p""#,
        ),
    ]);
    let missing = |kind| SourceError::MissingKey {
        kind,
        name: text("a"),
        key: text("k"),
    };
    check(&[
        (
            "pkg/volume/configmap/configmap.go",
            missing(Kind::ConfigMap),
            "configmap references non-existent config key: k",
        ),
        (
            "pkg/volume/secret/secret.go",
            missing(Kind::Secret),
            "references non-existent secret key: k",
        ),
        (
            "pkg/volume/projected/projected.go",
            SourceError::NoDefaultMode,
            "no defaultMode used, not even the default value for it",
        ),
    ]);
}

#[test]
fn texts_of_paths_and_mounts_are_the_kubelets() {
    let writer = "pkg/volume/util/atomic_writer.go";
    check(&[
        (
            writer,
            VolumePathError::Empty,
            r#"invalid path: must not be empty: """#,
        ),
        (
            writer,
            VolumePathError::Absolute(text("/a")),
            "invalid path: must be relative path: /a",
        ),
        (
            writer,
            VolumePathError::TooLong,
            "invalid path: must be less than or equal to 4096 characters",
        ),
        (
            writer,
            VolumePathError::Parent(text("a/..")),
            "invalid path: must not contain '..': a/..",
        ),
        (
            writer,
            VolumePathError::ElementTooLong,
            "invalid path: filenames must be less than or equal to 255 characters",
        ),
        (
            writer,
            VolumePathError::Reserved(text("..a")),
            "invalid path: must not start with '..': ..a",
        ),
    ]);
    let pods = "pkg/kubelet/kubelet_pods.go";
    let recursive = "failed to resolve recursive read-only mode: ";
    check(&[
        (
            pods,
            MountError::NoVolume {
                volume: text("v"),
                container: text("c"),
            },
            r#"cannot find volume "v" to mount into container "c""#,
        ),
        (
            pods,
            MountError::Absolute(text("/a")),
            "error SubPath `/a` must not be an absolute path",
        ),
        (
            "pkg/volume/validation/pv_validation.go",
            MountError::Parent(text("../a")),
            "unable to provision SubPath `../a`: must not contain '..'",
        ),
        (
            "pkg/kubelet/container/helpers.go",
            MountError::MissingValue(text("A, B")),
            "missing value for A, B",
        ),
        (
            pods,
            MountError::Propagation(text("x")),
            r#"invalid MountPropagation mode: "x""#,
        ),
        (
            pods,
            MountError::NotReadOnly(text("v")),
            &format!(
                r#"{recursive}volume "v" requested recursive read-only mode, but it is not read-only"#
            ),
        ),
        (
            pods,
            MountError::ReadOnlyPropagation {
                volume: text("v"),
                propagation: text("Bidirectional"),
            },
            &format!(
                r#"{recursive}volume "v" requested recursive read-only mode, but it is not compatible with propagation "Bidirectional""#
            ),
        ),
        (
            pods,
            MountError::ReadOnlyUnsupported(text("v")),
            &format!(
                r#"{recursive}volume "v" requested recursive read-only mode, but it is not supported by the runtime"#
            ),
        ),
        (
            pods,
            MountError::ReadOnlyMode(text("x")),
            &format!(r#"{recursive}unknown recursive read-only mode "x""#),
        ),
    ]);
}

#[test]
fn texts_of_fields_and_env_files_are_the_kubelets() {
    let conversion = "pkg/apis/core/pods/helpers.go";
    check(&[
        (
            conversion,
            FieldRefError::Version(text("v2")),
            "unsupported pod version: v2",
        ),
        (
            conversion,
            FieldRefError::Label(text("spec.x")),
            "field label not supported: spec.x",
        ),
        (
            conversion,
            FieldRefError::LabelSubscript(text("spec.x['a']")),
            "field label does not support subscript: spec.x['a']",
        ),
        (
            "pkg/fieldpath/fieldpath.go",
            FieldRefError::Path(text("spec.x")),
            "unsupported fieldPath: spec.x",
        ),
        (
            "pkg/fieldpath/fieldpath.go",
            FieldRefError::PathSubscript(text("metadata.name")),
            r#"fieldPath "metadata.name" does not support subscript"#,
        ),
        (
            "pkg/fieldpath/fieldpath.go",
            FieldRefError::Subscript {
                path: text("metadata.labels['']"),
                reasons: text("why"),
            },
            "invalid key subscript in metadata.labels['']: why",
        ),
        (
            "pkg/util/node/node.go",
            FieldRefError::HostIp,
            "host IP unknown; known addresses: []",
        ),
    ]);
    check(&[
        (
            "pkg/api/v1/resource/helpers.go",
            ResourceError::Unsupported(text("limits.x")),
            "unsupported container resource : limits.x",
        ),
        (
            "pkg/api/v1/resource/helpers.go",
            ResourceError::NoContainer(text("c")),
            "container c not found",
        ),
        (
            "pkg/kubelet/kubelet_resources.go",
            ResourceError::NoNode,
            "failed to find node object, expected a node",
        ),
        (
            "pkg/kubelet/volume_host.go",
            ResourceError::NoNodeForVolume,
            "error retrieving node: node not found",
        ),
    ]);
    let env = "pkg/kubelet/util/env/env_util.go";
    for (problem, expected) in [
        (LineProblem::NoEquals, "missing '='"),
        (LineProblem::NoName, "empty variable name"),
        (
            LineProblem::BlankBeforeEquals,
            "whitespace before '=' is not allowed",
        ),
        (
            LineProblem::NotQuoted,
            "value must be enclosed in single quotes",
        ),
        (
            LineProblem::AfterQuote,
            "unexpected content after closing quote",
        ),
    ] {
        let expected = format!("invalid environment variable format at line 3: {expected}");
        check(&[(env, EnvFileError::Line { line: 3, problem }, &expected)]);
    }
    check(&[(
        env,
        EnvFileError::Unclosed { line: 3 },
        "invalid environment variable format starting at line 3: unclosed single quote",
    )]);
}

#[test]
fn texts_of_issued_content_are_the_kubelets() {
    let bundles = "pkg/kubelet/clustertrustbundle/clustertrustbundle_manager.go";
    check(&[
        (
            bundles,
            TrustBundleError::Unsupported,
            "ClusterTrustBundle projection is not supported in static kubelet mode",
        ),
        (
            bundles,
            TrustBundleError::NotSynced,
            "ClusterTrustBundle informer has not yet synced",
        ),
        (
            "pkg/volume/projected/projected.go",
            TrustBundleError::NoSelection,
            "ClusterTrustBundle projection requires either name or signerName to be set",
        ),
        (
            bundles,
            TrustBundleError::NotFound(text("a")),
            r#"while getting ClusterTrustBundle: clustertrustbundle.certificates.k8s.io "a" not found"#,
        ),
        (
            bundles,
            TrustBundleError::NoMatch,
            "combination of signerName and labelSelector matched zero ClusterTrustBundles",
        ),
        (
            bundles,
            TrustBundleError::SelectorTooLong(102_401),
            "label selector length (102401) is larger than 102400",
        ),
        (
            "staging/src/k8s.io/apimachinery/pkg/apis/meta/v1/helpers.go",
            TrustBundleError::Operator(text("Near")),
            r#"while parsing label selector: "Near" is not a valid label selector operator"#,
        ),
    ]);
}

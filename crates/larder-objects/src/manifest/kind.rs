//! The known kinds, and larder's handling of each.

/// What a pair of `apiVersion` and `kind` denotes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ObjectKind {
    Pod,
    ConfigMap,
    Secret,
    Service,
    Node,
    Namespace,
    ServiceAccount,
    ClusterTrustBundle,
    /// Has a pod template at this path.
    Workload(&'static str),
    /// A list of objects of any kind, or of the kind named.
    List,
    /// Of no use to larder.
    Other,
    /// No such kind in an API group that Kubernetes itself defines in full.
    Unknown,
}

/// The kinds that larder reads, with their versions: also what a misspelt one may mean.
pub(super) const KINDS: [(&str, &str, ObjectKind); 15] = [
    ("v1", "Pod", ObjectKind::Pod),
    ("v1", "ConfigMap", ObjectKind::ConfigMap),
    ("v1", "Secret", ObjectKind::Secret),
    ("v1", "Service", ObjectKind::Service),
    ("v1", "Node", ObjectKind::Node),
    ("v1", "Namespace", ObjectKind::Namespace),
    ("v1", "ServiceAccount", ObjectKind::ServiceAccount),
    ("v1", "List", ObjectKind::List),
    ("v1", "ReplicationController", WORKLOAD),
    ("apps/v1", "Deployment", WORKLOAD),
    ("apps/v1", "StatefulSet", WORKLOAD),
    ("apps/v1", "DaemonSet", WORKLOAD),
    ("apps/v1", "ReplicaSet", WORKLOAD),
    ("batch/v1", "Job", WORKLOAD),
    ("batch/v1", "CronJob", CRON_JOB),
];
const WORKLOAD: ObjectKind = ObjectKind::Workload("spec.template");
const CRON_JOB: ObjectKind = ObjectKind::Workload("spec.jobTemplate.spec.template");

/// The kinds of the core group that larder has no use for.
const OTHER_CORE: [&str; 9] = [
    "Binding",
    "ComponentStatus",
    "Endpoints",
    "Event",
    "LimitRange",
    "PersistentVolume",
    "PersistentVolumeClaim",
    "PodTemplate",
    "ResourceQuota",
];

impl ObjectKind {
    pub(super) fn of(api_version: &str, kind: &str) -> Self {
        // As Go reads `/v1`.
        let api_version = api_version.strip_prefix('/').unwrap_or(api_version);
        let mut known = KINDS.into_iter();
        if let Some((.., known)) = known.find(|known| (known.0, known.1) == (api_version, kind)) {
            return known;
        }
        let (group, version) = api_version.rsplit_once('/').unwrap_or(("", api_version));
        match (group, version, kind) {
            ("", "v1", kind) if OTHER_CORE.contains(&kind) => Self::Other,
            ("apps", "v1", "ControllerRevision") => Self::Other,
            ("certificates.k8s.io", _, "ClusterTrustBundle") => Self::ClusterTrustBundle,
            (_, _, kind) => match kind.strip_suffix("List") {
                Some(item) if Self::of(api_version, item) != Self::Unknown => Self::List,
                _ if is_known_in_full(api_version) => Self::Unknown,
                _ => Self::Other,
            },
        }
    }

    /// Whether objects of this kind live in a namespace.
    pub(super) fn is_namespaced(self) -> bool {
        !matches!(
            self,
            Self::Node | Self::Namespace | Self::ClusterTrustBundle
        )
    }
}

/// Whether all kinds of the group are known: a `…List` of it is no kind of its own. `extensions` once held workloads and
/// is gone since 1.22.
pub(super) fn is_known_in_full(api_version: &str) -> bool {
    let group = api_version.rsplit_once('/').map_or("", |(group, _)| group);
    matches!(group, "" | "apps" | "batch" | "extensions")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_of_kubernetes_own_groups_are_known_in_full() {
        let of = ObjectKind::of;
        assert_eq!(of("v1", "Pod"), ObjectKind::Pod);
        assert_eq!(of("v1", "ConfigMapList"), ObjectKind::List);
        assert_eq!(of("apps/v1", "DeploymentList"), ObjectKind::List);
        assert_eq!(of("v1", "PersistentVolumeClaim"), ObjectKind::Other);
        for (api_version, kind) in [
            ("v1", "Deployment"),
            ("v1", "Configmap"),
            ("v2", "Pod"),
            ("apps/v1beta1", "Deployment"),
            ("extensions/v1beta1", "Deployment"),
            ("batch/v1beta1", "CronJob"),
            ("v1", "FooList"),
        ] {
            assert_eq!(
                of(api_version, kind),
                ObjectKind::Unknown,
                "{api_version} {kind}"
            );
        }
    }

    #[test]
    fn kinds_of_other_groups_are_ignored() {
        let of = ObjectKind::of;
        assert_eq!(
            of("rbac.authorization.k8s.io/v1", "ClusterRole"),
            ObjectKind::Other
        );
        assert_eq!(of("argoproj.io/v1alpha1", "AppProject"), ObjectKind::Other);
        assert_eq!(of("example.com/v1", "Pod"), ObjectKind::Other);
    }
}

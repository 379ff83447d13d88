//! The volume with a token of the pod's service account that the API server adds to containers (kubernetes v1.36,
//! `plugin/pkg/admission/serviceaccount`).

use larder_projection::{ContainerKind, ContainerView, Mount, MountTable, fs_group, fs_user};

use super::pod::RenderedPod;

/// Where it is mounted.
pub(crate) const TOKEN_PATH: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
/// Its name; the API server adds five random characters.
pub(crate) const TOKEN_VOLUME: &str = "kube-api-access";

/// A mount that a container has.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ShownMount<'r> {
    /// Of its `volumeMounts`.
    Own(&'r Mount<'r>),
    /// A token.
    Token(TokenMount<'r>),
}

/// The token of a service account, and to whom its file belongs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct TokenMount<'r> {
    pub(crate) account: &'r str,
    pub(crate) owner: Option<u32>,
    pub(crate) group: Option<u32>,
}

impl<'r> ShownMount<'r> {
    pub(crate) fn path(self) -> &'r str {
        match self {
            Self::Own(mount) => &mount.mount_path,
            Self::Token(_) => TOKEN_PATH,
        }
    }
}

impl<'a> RenderedPod<'a> {
    /// The service account of the pod.
    pub(crate) fn account(&self) -> &'a str {
        self.pod
            .spec
            .as_ref()
            .and_then(|spec| spec.service_account_name.as_deref())
            .filter(|name| !name.is_empty())
            .unwrap_or("default")
    }

    /// All mounts of a container, in the order of the pod, the one that the API server adds last.
    pub(crate) fn all_mounts<'r>(
        &'r self,
        container: &ContainerView<'_>,
        own: &'r MountTable<'r>,
    ) -> Vec<ShownMount<'r>> {
        let of_pod = self
            .pod
            .spec
            .as_ref()
            .and_then(|spec| spec.automount_service_account_token);
        let of_account = || self.offline.mounts_token(self.namespace(), self.account());
        let has_token = container.kind != ContainerKind::Ephemeral
            && of_pod.or_else(of_account) != Some(false)
            && own.iter().all(|mount| mount.mount_path != TOKEN_PATH);
        let added = has_token.then(|| {
            ShownMount::Token(TokenMount {
                account: self.account(),
                owner: fs_user(self.pod),
                group: fs_group(self.pod),
            })
        });
        own.iter().map(ShownMount::Own).chain(added).collect()
    }
}

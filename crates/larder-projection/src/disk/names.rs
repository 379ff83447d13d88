//! `by-name/<namespace>/<pod>`: links to the directories of pods, for people and for programs that know no UIDs.
//!
//! Pods share the directories of their namespaces and the temporary link in them, so one thread at a time changes them.

use std::{collections::HashMap, os::fd::AsFd};

use larder_files::sys;
use rustix::{fs::FileType, io::Errno};

use super::{
    DiskError, VolumeHost,
    directory::Directory,
    layout::{self, element},
};

/// Mode of the directories: what the links lead to is protected by itself, and names of pods are not listed.
const MODE: u32 = layout::PASSAGE;
/// A link that is about to replace another one. No pod is called so.
const LINK_TMP: &str = "..link_tmp";

impl VolumeHost {
    /// Makes `by-name/<namespace>/<pod>` lead to the directory of the pod, in one step; returns whether it did not.
    ///
    /// # Errors
    ///
    /// The first step that failed.
    pub fn link_pod(&self, namespace: &str, pod: &str, uid: &str) -> Result<bool, DiskError> {
        let target = target(element(uid)?);
        let (namespace, pod) = (element(namespace)?, element(pod)?);
        let _alone = self.names.lock();
        let directory = self
            .root()
            .ensure(layout::BY_NAME, MODE)?
            .ensure(namespace, MODE)?;
        if pod_of(&directory, pod)?.as_deref() == Some(uid) {
            return Ok(false);
        }
        let failed = directory.failed("create link", pod);
        directory.remove(LINK_TMP)?;
        sys::link(&*target, directory.as_fd(), LINK_TMP).map_err(&failed)?;
        sys::rename(directory.as_fd(), LINK_TMP, pod).map_err(&failed)?;
        Ok(true)
    }

    /// Removes `by-name/<namespace>/<pod>`, unless it leads to another pod by now. It may be gone already.
    ///
    /// # Errors
    ///
    /// The first step that failed.
    pub fn unlink_pod(&self, namespace: &str, pod: &str, uid: &str) -> Result<(), DiskError> {
        let (namespace, pod) = (element(namespace)?, element(pod)?);
        let uid = element(uid)?;
        let _alone = self.names.lock();
        let Some(by_name) = self.root().child(layout::BY_NAME)? else {
            return Ok(());
        };
        if let Some(directory) = by_name.child(namespace)?
            && pod_of(&directory, pod)?.as_deref() == Some(uid)
        {
            directory.remove(pod)?;
        }
        by_name.remove_if_empty(namespace).map(drop)
    }

    /// Removes the links that lead to no pod, and what a crash left beside them.
    ///
    /// # Errors
    ///
    /// The first step that failed.
    pub fn prune_names(&self) -> Result<(), DiskError> {
        let _alone = self.names.lock();
        self.visit_names(|_, directory, name, uid| {
            let leads = match uid {
                Some(uid) => self.pod(&uid)?.is_some(),
                None => false,
            };
            if leads {
                Ok(())
            } else {
                directory.remove(name)
            }
        })?;
        self.remove_empty_namespaces()
    }

    /// Removes all links that lead to pods, and the directories of links and pods if nothing else is in them.
    ///
    /// # Errors
    ///
    /// The first step that failed.
    pub fn remove_names(&self) -> Result<(), DiskError> {
        let _alone = self.names.lock();
        self.visit_names(|_, directory, name, uid| match uid {
            None if name != LINK_TMP => Ok(()),
            _ => directory.remove(name),
        })?;
        self.remove_empty_namespaces()?;
        self.root().remove_if_empty(layout::BY_NAME)?;
        self.root().remove_if_empty(layout::PODS).map(drop)
    }

    /// The names of the pods that links lead to, by UID.
    pub(super) fn names_by_uid(&self) -> Result<HashMap<String, (String, String)>, DiskError> {
        let _alone = self.names.lock();
        let mut names = HashMap::new();
        self.visit_names(|namespace, _, name, uid| {
            let found = uid.map(|uid| (uid, (namespace.to_owned(), name.to_owned())));
            names.extend(found);
            Ok(())
        })?;
        Ok(names)
    }

    /// Visits every link: the namespace and its directory, the name, and the UID of the pod that it leads to, if it has
    /// the form of ours and is not about to be renamed.
    fn visit_names(
        &self,
        mut visit: impl FnMut(&str, &Directory, &str, Option<String>) -> Result<(), DiskError>,
    ) -> Result<(), DiskError> {
        let Some(by_name) = self.root().child(layout::BY_NAME)? else {
            return Ok(());
        };
        for child in by_name.children()? {
            let (namespace, directory) = child?;
            let entries = directory.entries()?.into_iter();
            for (name, _) in entries.filter(|&(_, kind)| kind == FileType::Symlink) {
                let uid = pod_of(&directory, &name)?.filter(|_| name != LINK_TMP);
                visit(&namespace, &directory, &name, uid)?;
            }
        }
        Ok(())
    }

    fn remove_empty_namespaces(&self) -> Result<(), DiskError> {
        if let Some(by_name) = self.root().child(layout::BY_NAME)? {
            for namespace in by_name.directories()? {
                by_name.remove_if_empty(&namespace)?;
            }
        }
        Ok(())
    }
}

/// The target of a pod's link.
fn target(uid: &str) -> String {
    format!("../../{}/{uid}", layout::PODS)
}

/// The pod that the link `name` leads to; `None` if it is no link, or has another form than [`target`].
fn pod_of(directory: &Directory, name: &str) -> Result<Option<String>, DiskError> {
    let found = match sys::read_link(directory.as_fd(), name) {
        Ok(found) => found,
        Err(Errno::INVAL | Errno::NOENT) => return Ok(None),
        Err(errno) => return Err(directory.failed("read link", name)(errno)),
    };
    let uid = found
        .to_str()
        .ok()
        .and_then(|link| link.strip_prefix(&target("")));
    Ok(uid.filter(|uid| element(uid).is_ok()).map(str::to_owned))
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::symlink};

    use expect_test::expect;
    use tempfile::TempDir;

    use super::*;
    use crate::disk::testing::show;

    #[test]
    fn links_by_name_come_and_go_with_their_pods() {
        let root = TempDir::new().unwrap();
        let host = VolumeHost::open_without_mounts(root.path()).unwrap();
        for uid in ["u1", "u2"] {
            host.ensure_pod(uid).unwrap();
        }
        assert!(host.link_pod("prod", "web", "u1").unwrap());
        assert!(!host.link_pod("prod", "web", "u1").unwrap());
        assert!(host.link_pod("test", "web", "u2").unwrap());
        // The pod was replaced by one of the same name.
        assert!(host.link_pod("prod", "web", "u2").unwrap());
        expect![[r"
            by-name/ 0711
            by-name/prod/ 0711
            by-name/prod/web -> ../../pods/u2
            by-name/test/ 0711
            by-name/test/web -> ../../pods/u2
            pods/ 0711
            pods/u1/ 0750
            pods/u2/ 0750
        "]]
        .assert_eq(&show(root.path()));
        assert_eq!(
            host.scan()
                .unwrap()
                .into_iter()
                .map(|pod| pod.name.is_some())
                .collect::<Vec<_>>(),
            [false, true]
        );
        // The replaced pod takes nothing with it.
        host.unlink_pod("prod", "web", "u1").unwrap();
        assert!(root.path().join("by-name/prod/web").is_symlink());
        for namespace in ["prod", "test", "test", "none"] {
            host.unlink_pod(namespace, "web", "u2").unwrap();
        }
        host.remove_pod("u1").unwrap();
        host.remove_pod("u2").unwrap();
        expect![[r"
            by-name/ 0711
            pods/ 0711
        "]]
        .assert_eq(&show(root.path()));
    }

    #[test]
    fn links_that_lead_nowhere_are_pruned() {
        let root = TempDir::new().unwrap();
        let host = VolumeHost::open_without_mounts(root.path()).unwrap();
        host.ensure_pod("u1").unwrap();
        host.link_pod("prod", "web", "u1").unwrap();
        let prod = root.path().join("by-name/prod");
        symlink("../../pods/gone", prod.join("db")).unwrap();
        symlink("/etc", prod.join("hostile")).unwrap();
        symlink("../../pods/u1", prod.join(LINK_TMP)).unwrap();
        fs::create_dir(root.path().join("by-name/empty")).unwrap();
        host.prune_names().unwrap();
        expect![[r"
            by-name/ 0711
            by-name/prod/ 0711
            by-name/prod/web -> ../../pods/u1
            pods/ 0711
            pods/u1/ 0750
        "]]
        .assert_eq(&show(root.path()));
    }

    #[test]
    fn concurrent_links_of_pods_do_not_interfere() {
        let root = TempDir::new().unwrap();
        let host = VolumeHost::open_without_mounts(root.path()).unwrap();
        std::thread::scope(|scope| {
            for pod in 0..8 {
                let host = &host;
                scope.spawn(move || {
                    let (name, uid) = (format!("p{pod}"), format!("u{pod}"));
                    for _ in 0..100 {
                        assert!(host.link_pod("prod", &name, &uid).unwrap());
                        host.unlink_pod("prod", &name, &uid).unwrap();
                    }
                    host.link_pod("prod", &name, &uid).unwrap();
                });
            }
        });
        for pod in 0..8 {
            let link = fs::read_link(root.path().join(format!("by-name/prod/p{pod}"))).unwrap();
            assert_eq!(link.to_str(), Some(&*format!("../../pods/u{pod}")));
        }
    }

    #[test]
    fn hostile_names_are_refused() {
        let root = TempDir::new().unwrap();
        let host = VolumeHost::open_without_mounts(root.path()).unwrap();
        for name in ["", ".", "..", "../x", "a/b", "a\0b"] {
            assert!(host.link_pod(name, "web", "u1").is_err(), "{name:?}");
            assert!(host.link_pod("prod", name, "u1").is_err(), "{name:?}");
            assert!(host.link_pod("prod", "web", name).is_err(), "{name:?}");
            assert!(host.unlink_pod(name, "web", "u1").is_err(), "{name:?}");
            assert!(host.unlink_pod("prod", name, "u1").is_err(), "{name:?}");
            assert!(host.unlink_pod("prod", "web", name).is_err(), "{name:?}");
        }
        expect![""].assert_eq(&show(root.path()));
    }
}

//! Mounts of containers whose runtime binds what the kubelet has bound, and what a program sees that watches a file.

use std::mem::MaybeUninit;

use rustix::fs::inotify;

use super::*;

/// What the kubelet has bound: the file of the volume, of a container's start.
struct KubeletsMount(String);

impl KubeletsMount {
    fn of(node: &Node) -> Self {
        let path = node.root().join("pods/1/volume-subpaths/v/web/0");
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, "").unwrap();
        let bound = Self(path.to_str().unwrap().to_owned());
        bound.bind(node);
        bound
    }

    fn bind(&self, node: &Node) {
        let source = node.volume("v").join("key").canonicalize().unwrap();
        container::run("mount", &["--bind", source.to_str().unwrap(), &self.0]);
    }

    fn unbind(&self) {
        container::run("umount", &[&self.0]);
    }
}

impl Drop for KubeletsMount {
    fn drop(&mut self) {
        // The test may have removed it.
        let _ = rustix::mount::unmount(&*self.0, rustix::mount::UnmountFlags::DETACH);
    }
}

/// The mounts of a container whose runtime binds what the kubelet has bound.
fn of_kubelet() -> String {
    KEY.replace("volumes/v/key", "volume-subpaths/v/web/0")
}

/// A pod whose key is `1`, and what the kubelet has bound for it.
fn kubelets_pod() -> Option<(Pod, KubeletsMount)> {
    let node = may_contain().then(Node::new)?;
    node.write("v", &[("key", "1")]);
    let bound = KubeletsMount::of(&node);
    let pod = Pod::of(node, &of_kubelet(), &[("/etc/app.conf", "key")]);
    Some((pod, bound))
}

// subpath 18
#[tokio::test]
async fn mounts_of_the_kubelet_stay_as_they_are_and_nothing_is_left_of_a_pod() {
    let Some((mut pod, bound)) = kubelets_pod() else {
        return;
    };
    for (first, second) in [("1", "2"), ("3", "4")] {
        let before = pod.node.mounts_of_machine();
        assert_eq!(before.len(), 1, "{before:?}");
        assert_eq!(pod.sees(), first);
        pod.write(second);
        pod.check_live(second).await;
        // The old file is no longer there, but bound.
        let after = pod.node.mounts_of_machine().into_iter();
        let after: Vec<_> = after.map(|line| line.replace("//deleted", "")).collect();
        assert_eq!(after, before);
        // The container is started again, with what is there by then.
        pod.web.end();
        bound.unbind();
        pod.write("3");
        bound.bind(&pod.node);
        pod.web = Container::start(&pod.node, &of_kubelet());
    }
    pod.web.end();
    bound.unbind();
    assert_eq!(pod.node.mounts_of_machine(), [""; 0]);
    // Nothing is mounted below it anywhere, or it would be busy.
    fs::remove_dir_all(pod.node.root().join("pods/1")).unwrap();
}

#[tokio::test]
async fn failure_that_was_reported_is_not_reported_again_when_the_container_has_ended() {
    let Some(mut pod) = Pod::new() else { return };
    assert_eq!(pod.web.run("mount --make-rshared /"), "");
    pod.write("two");
    assert_eq!(pod.reported(3).await, [0, 0, 1]);
    pod.web.end();
    assert_eq!(pod.reported(2).await, [0, 0]);
    let status = &pod.sub_paths.statuses()[0];
    assert_eq!(status.state, MountState::Unknown);
}

// subpath 19
#[tokio::test]
async fn open_file_keeps_the_old_bytes_and_a_watch_learns_of_its_end() {
    let Some(mut pod) = Pod::new() else { return };
    pod.web.run("exec 5< /etc/app.conf");
    let watch = Watch::of(&pod.web);
    pod.write("two");
    assert_eq!(watch.events(), inotify::ReadFlags::ATTRIB);
    assert_eq!(pod.state().await, MountState::Live);
    assert_eq!(watch.events(), inotify::ReadFlags::empty());
    let both = pod.web.run("cat <&5; cat /etc/app.conf; exec 5<&-");
    assert_eq!(both, "onetwo");
    assert!(watch.events().contains(inotify::ReadFlags::DELETE_SELF));
}

/// The events of a file that a program in the container watches.
struct Watch(OwnedFd);

impl Watch {
    fn of(web: &Container) -> Self {
        let watch = inotify::init(inotify::CreateFlags::NONBLOCK).unwrap();
        let flags = inotify::WatchFlags::ALL_EVENTS
            - inotify::WatchFlags::ACCESS
            - inotify::WatchFlags::OPEN
            - inotify::WatchFlags::CLOSE_NOWRITE;
        inotify::add_watch(&watch, web.path("/etc/app.conf"), flags).unwrap();
        Self(watch)
    }

    /// Those since the last call.
    fn events(&self) -> inotify::ReadFlags {
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut reader = inotify::Reader::new(&self.0, &mut buffer);
        let mut seen = inotify::ReadFlags::empty();
        while let Ok(event) = reader.next() {
            seen |= event.events();
        }
        seen
    }
}

// subpath 19: why docs/subpath.md names a hook
#[tokio::test]
async fn watch_from_the_start_of_the_container_sees_no_end_of_the_file_that_the_kubelet_mounts() {
    let Some((mut pod, _bound)) = kubelets_pod() else {
        return;
    };
    let watch = Watch::of(&pod.web);
    pod.write("2");
    assert_eq!(watch.events(), inotify::ReadFlags::ATTRIB);
    pod.check_live("2").await;
    assert_eq!(watch.events(), inotify::ReadFlags::empty());
    // One that is set on a file that larder has mounted does.
    let watch = Watch::of(&pod.web);
    pod.write("3");
    pod.check_live("3").await;
    assert!(watch.events().contains(inotify::ReadFlags::DELETE_SELF));
}

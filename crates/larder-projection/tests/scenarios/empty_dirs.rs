//! `emptyDir` volumes on disk: shared while the pod is there, and removed with it.

use std::{fs, path::PathBuf};

use k8s_openapi::api::core::v1::EmptyDirVolumeSource;
use larder_projection::disk::{VolumeHost, empty_dir_path, share_empty_dir};
use tempfile::TempDir;

/// A root directory with the pod `u1`, and the directory of that pod.
fn pod() -> (TempDir, VolumeHost, PathBuf) {
    let root = tempfile::tempdir().unwrap();
    let host = VolumeHost::open_without_mounts(root.path()).unwrap();
    let pod = host.path().join("pods/u1");
    fs::create_dir_all(&pod).unwrap();
    (root, host, pod)
}

fn share(pod: &std::path::Path) -> PathBuf {
    let source = EmptyDirVolumeSource::default();
    share_empty_dir(pod, "scratch", &source, None, &[]).unwrap()
}

#[test]
fn empty_dir_is_shared_and_goes_with_its_pod() {
    let (_root, host, pod) = pod();
    let path = share(&pod);
    assert_eq!(path, empty_dir_path(&pod, "scratch"));
    fs::create_dir_all(path.join("a/b")).unwrap();
    fs::write(path.join("a/b/c"), "kept").unwrap();
    assert_eq!(share(&pod), path);
    assert_eq!(fs::read_to_string(path.join("a/b/c")).unwrap(), "kept");
    host.remove_pod("u1").unwrap();
    assert!(!pod.exists());
    // No command brings the directory of a pod back that is gone.
    let source = EmptyDirVolumeSource::default();
    share_empty_dir(&pod, "scratch", &source, None, &[]).unwrap_err();
    assert!(!pod.exists());
}

#[test]
fn empty_dir_of_a_pod_that_a_kubelet_runs_is_left_to_it() {
    for marker in ["etc-hosts", "containers/web/0a1b2c3d"] {
        let (_root, host, pod) = pod();
        let path = share(&pod);
        fs::write(path.join("data"), "of the kubelet").unwrap();
        fs::create_dir_all(pod.join(marker).parent().unwrap()).unwrap();
        fs::write(pod.join(marker), "").unwrap();
        host.remove_pod("u1").unwrap();
        let kept = fs::read_to_string(path.join("data"));
        assert_eq!(kept.unwrap(), "of the kubelet", "{marker}");
    }
}

#[test]
fn name_of_a_volume_that_leads_out_of_the_pod_is_rejected() {
    let (root, _host, pod) = pod();
    for name in ["..", "../../x", "/etc", ""] {
        let source = EmptyDirVolumeSource::default();
        share_empty_dir(&pod, name, &source, None, &[]).unwrap_err();
    }
    assert!(!root.path().join("pods/x").exists());
}

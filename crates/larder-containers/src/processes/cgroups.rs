//! The processes of a pod's containers, found by the IDs that their runtime has given them (beside-kubelet 12).
//!
//! A runtime puts the processes of a container into control groups named after its ID, which the status of the pod
//! shows. So finding the container of a process needs neither the runtime, nor its mounts, nor permission to trace it.
//!
//! Invariants:
//! 1. In the path of a control group, the outermost name of a container decides. So a container that creates control
//!    groups of its own cannot pose as another one. Names with which the path of larder's own control group begins, too,
//!    are those of the node: one that is a container itself (kind, k3d, minikube) has its own ID in every path.
//! 2. Below the control group that systemd delegates to a user (`user@UID.service`), the user chooses the names, so
//!    nothing there is a container.
//! 3. A runtime's helper does not count as a process of the container, although the name of its control group ends in
//!    the ID.

use std::{collections::BTreeMap, io, sync::Arc};

use smol_str::SmolStr;

use super::{FoundContainer, FoundProcess, Owner, Processes};

/// Names of control groups that systemd makes for containers, before the ID.
const SCOPES: [&str; 4] = ["cri-containerd-", "crio-", "docker-", "libpod-"];
/// Fewest and most hexadecimal digits of an ID. Runtimes use 64.
const DIGITS: std::ops::RangeInclusive<usize> = 32..=128;

/// The ID of a container, as its runtime names it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ContainerId(Arc<str>);

impl ContainerId {
    /// Reads the `containerID` of a container's status: `RUNTIME://ID`. `None` if it has another form.
    pub fn of_status(text: &str) -> Option<Self> {
        let (_, id) = text.split_once("://")?;
        is_id(id).then(|| Self(id.into()))
    }

    /// The container that a control group belongs to, by its names below the node's.
    fn of_names<'a>(names: impl Iterator<Item = &'a str>) -> Option<Self> {
        let mut names = names.take_while(|name| !name.starts_with("user@"));
        names.find_map(|name| {
            let id = match name.strip_suffix(".scope") {
                Some(scope) => SCOPES.iter().find_map(|start| scope.strip_prefix(*start))?,
                None => name,
            };
            is_id(id).then(|| Self(id.into()))
        })
    }

    /// The container of a process, by the lines of its `/proc/PID/cgroup`, and those of this process.
    fn of_lines(text: &str, own: &OwnGroups) -> Option<Self> {
        let mut groups = text.lines().filter_map(Group::parse);
        groups.find_map(|group| Self::of_names(own.below_node(&group)))
    }
}

/// A line of `/proc/PID/cgroup`: `0::PATH` in version 2, and one for each hierarchy in version 1.
struct Group<'a> {
    hierarchy: &'a str,
    path: &'a str,
}

impl<'a> Group<'a> {
    fn parse(line: &'a str) -> Option<Self> {
        let (hierarchy, rest) = line.split_once(':')?;
        let (_, path) = rest.split_once(':')?;
        Some(Self { hierarchy, path })
    }
}

/// The lines of this process: where the node's control groups end and those of containers begin.
#[derive(Debug, Default)]
pub(super) struct OwnGroups(String);

impl OwnGroups {
    /// The names in the path of `group`, without those with which this process's path in the same hierarchy begins.
    fn below_node<'a>(&'a self, group: &Group<'a>) -> impl Iterator<Item = &'a str> {
        let mut all = self.0.lines().filter_map(Group::parse);
        let mut own = all
            .find(|own| own.hierarchy == group.hierarchy)
            .map_or("", |own| own.path)
            .split('/');
        group
            .path
            .split('/')
            .skip_while(move |name| own.next() == Some(name))
    }
}

fn is_id(text: &str) -> bool {
    let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    DIGITS.contains(&text.len()) && text.bytes().all(is_digit)
}

impl Processes {
    /// The processes of every container, by its ID.
    pub(super) fn search_by_id(&self) -> io::Result<BTreeMap<ContainerId, Vec<i32>>> {
        let mut found: BTreeMap<_, Vec<i32>> = BTreeMap::new();
        let own = self.own_groups();
        for pid in self.proc().list()? {
            // A process that ends meanwhile is passed over.
            if let Some(id) = self.container_below(&own, pid) {
                found.entry(id).or_default().push(pid);
            }
        }
        Ok(found)
    }

    /// The containers with these IDs.
    pub(super) fn containers_with(
        &self,
        all: &BTreeMap<ContainerId, Vec<i32>>,
        ids: &BTreeMap<SmolStr, ContainerId>,
    ) -> Vec<FoundContainer> {
        let containers = ids.iter().filter_map(|(name, id)| {
            let processes = self.processes(all.get(id)?, &Owner::Container(id.clone()));
            // With a PID namespace that the containers of the pod share, none has this number.
            let is_first = |process: &FoundProcess| self.is_first(process.pid);
            FoundContainer::new(vec![name.clone()], processes, is_first)
        });
        containers.collect()
    }

    /// The container that a process belongs to now.
    pub(super) fn container_of(&self, pid: i32) -> Option<ContainerId> {
        self.container_below(&self.own_groups(), pid)
    }

    fn container_below(&self, own: &OwnGroups, pid: i32) -> Option<ContainerId> {
        let text = self.proc().read(pid, "cgroup").ok()?;
        ContainerId::of_lines(std::str::from_utf8(&text).ok()?, own)
    }

    /// Where they cannot be read, no name is the node's.
    fn own_groups(&self) -> OwnGroups {
        let text = self.proc().read("self", "cgroup").unwrap_or_default();
        OwnGroups(String::from_utf8(text).unwrap_or_default())
    }

    /// Whether the process has the number 1 in a PID namespace of its own.
    fn is_first(&self, pid: i32) -> bool {
        self.proc()
            .read(pid, "status")
            .is_ok_and(|status| has_number_one(&status).unwrap_or(false))
    }
}

fn has_number_one(status: &[u8]) -> Option<bool> {
    // A process may give itself any name.
    let status = String::from_utf8_lossy(status);
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("NSpid:"))?;
    let numbers: Vec<_> = line.split_ascii_whitespace().collect();
    Some(numbers.len() > 1 && numbers.last() == Some(&"1"))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    const ID: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
    const OTHER: &str = "fedcba9876543210fedcba9876543210fedcba9876543210fedcba9876543210";

    fn id() -> ContainerId {
        ContainerId::of_status(&format!("containerd://{ID}")).unwrap()
    }

    /// A directory as `/proc` is, with processes: number, parent, numbers in PID namespaces, start, control groups.
    fn proc(processes: &[(i32, i32, &str, u64, &str)]) -> tempfile::TempDir {
        let proc = tempfile::tempdir().unwrap();
        for (pid, parent, numbers, start, groups) in processes {
            let directory = proc.path().join(pid.to_string());
            fs::create_dir(&directory).unwrap();
            let stat = format!(
                "{pid} (web) S {parent} 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 {start} 1 1 1 1 1 1 1 1 0 0 0 0"
            );
            fs::write(directory.join("stat"), stat).unwrap();
            fs::write(directory.join("status"), format!("NSpid:\t{numbers}\n")).unwrap();
            fs::write(directory.join("cgroup"), groups).unwrap();
        }
        proc
    }

    fn find(proc: &tempfile::TempDir) -> Vec<FoundContainer> {
        let ids = [("web".into(), id())].into();
        let processes = Processes::new(proc.path(), "/");
        processes.containers_with(&processes.search_by_id().unwrap(), &ids)
    }

    #[test]
    fn user_cannot_name_an_own_control_group_after_a_container() {
        let user = "0::/user.slice/user-1000.slice/user@1000.service";
        let (of_user, of_runtime) = (format!("{user}/{ID}"), format!("0::/kubepods/pod1/{ID}"));
        let own = format!("{of_runtime}/user.slice/user@1000.service");
        let proc = proc(&[
            (10, 1, "10 1", 5, &of_user),
            (20, 1, "20 1", 9, &of_runtime),
            (21, 20, "21 2", 10, &own),
        ]);
        let found = find(&proc);
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].main.pid, 20);
        let pids: Vec<_> = found[0]
            .processes
            .iter()
            .map(|process| process.pid)
            .collect();
        assert_eq!(pids, [20, 21]);
    }

    // beside-kubelet 38
    #[test]
    fn main_process_is_found_with_every_driver_and_version_of_control_groups() {
        let pod = "pod0f3a1c2e-8a7b-4c55-9d0e-7f6a5b4c3d2e";
        let slice =
            "kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod0f3a1c2e_8a7b.slice";
        let forms = [
            format!("0::/kubepods/burstable/{pod}/{ID}\n"),
            format!("0::/{slice}/cri-containerd-{ID}.scope\n"),
            format!("0::/{slice}/crio-{ID}.scope/container\n"),
            format!("0::/../../{pod}/{ID}\n"),
            format!("12:pids:/kubepods/{pod}/{ID}\n1:name=systemd:/kubepods/{pod}/{ID}\n0::/\n"),
            format!("4:memory:/{slice}/docker-{ID}.scope\n"),
            format!("5:cpu,cpuacct:/k8s.io/{ID}\n"),
        ];
        for form in &forms {
            // A command that the runtime runs in the container, its main process, and a child of that.
            let found = find(&proc(&[
                (30, 7, "30 9", 900, form),
                (31, 7, "31 1", 500, form),
                (32, 31, "32 2", 600, form),
                (33, 7, "33", 400, "0::/system.slice/sshd.service\n"),
            ]));
            assert_eq!(found.len(), 1, "{form}");
            assert_eq!(
                (found[0].main.pid, &*found[0].candidate_names),
                (31, &["web".into()][..]),
                "{form}"
            );
            assert_eq!(found[0].processes.len(), 3, "{form}");
        }
    }

    #[test]
    fn main_process_in_a_shared_pid_namespace_is_the_oldest_from_outside() {
        let form = format!("0::/kubepods/pod1/{ID}\n");
        let found = find(&proc(&[
            (40, 7, "40 9", 900, &form),
            (41, 7, "41 12", 500, &form),
            (42, 41, "42 13", 510, &form),
        ]));
        assert_eq!(found[0].main.pid, 41);
    }

    #[test]
    fn helpers_and_containers_within_another_are_not_the_container() {
        let forms = [
            format!("0::/kubepods.slice/crio-conmon-{ID}.scope\n"),
            // A container with the right to make control groups gives one the name of another container.
            format!("0::/kubepods/pod1/{OTHER}/{ID}\n"),
            format!("0::/kubepods/pod1/x{ID}\n"),
            "0::/\n".to_owned(),
        ];
        for form in &forms {
            assert_eq!(find(&proc(&[(50, 7, "50 1", 1, form)])), [], "{form}");
        }
        for text in [
            "",
            ID,
            "containerd://",
            "containerd://../../etc",
            "docker://ABC",
        ] {
            assert_eq!(ContainerId::of_status(text), None, "{text}");
        }
    }

    /// The containers that are found from a larder with these control groups.
    fn found_from(own: &str, processes: &[(i32, i32, &str, u64, &str)]) -> Vec<FoundContainer> {
        let proc = proc(processes);
        fs::create_dir(proc.path().join("self")).unwrap();
        fs::write(proc.path().join("self/cgroup"), own).unwrap();
        find(&proc)
    }

    // beside-kubelet 38
    #[test]
    fn names_of_a_node_that_is_a_container_are_none_of_its_containers() {
        let node = "aa".repeat(32);
        let larder = "bb".repeat(32);
        let pod = "kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod1.slice";
        let forms = [
            // kind, and k3d, as larder in a container or on the node sees them.
            (
                format!("0::/docker/{node}/{pod}/cri-containerd-{larder}.scope"),
                format!("0::/docker/{node}/{pod}/cri-containerd-{ID}.scope"),
            ),
            (
                format!("0::/docker/{node}/system.slice/larder.service"),
                format!("0::/docker/{node}/k8s.io/{ID}"),
            ),
            (
                format!("0::/system.slice/docker-{node}.scope/kubepods/pod2/{larder}"),
                format!("0::/system.slice/docker-{node}.scope/kubepods/pod1/{ID}"),
            ),
            // The hierarchies of version 1 nest in ways of their own.
            (
                format!("4:memory:/lxc/{node}/kubepods/pod2/{larder}\n1:cpu:/\n"),
                format!("1:cpu:/\n4:memory:/lxc/{node}/kubepods/pod1/{ID}\n"),
            ),
        ];
        for (own, container) in &forms {
            let found = found_from(own, &[(30, 7, "30 1", 5, container)]);
            assert_eq!(found.len(), 1, "{own}");
            assert_eq!(found[0].main.pid, 30);
            // Without larder's own place, the outermost name is taken for that of a container.
            assert_eq!(found_from("", &[(30, 7, "30 1", 5, container)]), []);
        }
    }

    #[test]
    fn container_in_a_nested_node_cannot_pose_as_another() {
        let node = format!("0::/docker/{}", "aa".repeat(32));
        let own = format!("{node}/kubepods/pod9/{}", "bb".repeat(32));
        let posing = [
            format!("{node}/kubepods/pod2/{OTHER}/{ID}"),
            // As if it were the node's, or larder's, with its own name in their place.
            format!("{node}/kubepods/pod2/{OTHER}/docker/{ID}"),
            format!("0::/docker/{OTHER}/kubepods/pod1/{ID}"),
            format!("{node}/user.slice/user@0.service/{ID}"),
        ];
        for path in &posing {
            assert_eq!(found_from(&own, &[(50, 7, "50 1", 1, path)]), [], "{path}");
        }
        // The node's own processes are in no container.
        for path in [&node, &format!("{node}/init.scope"), &own] {
            let found = found_from(&own, &[(50, 7, "50 1", 1, path)]);
            assert_eq!(found, [], "{path}");
        }
    }

    #[test]
    fn process_that_has_left_its_container_is_not_opened() {
        let form = format!("0::/kubepods/pod1/{ID}\n");
        let own = i32::try_from(std::process::id()).unwrap();
        let proc = proc(&[(own, 7, "9 1", 500, &form)]);
        let processes = Processes::new(proc.path(), "/");
        let found = find(&proc);
        processes.open(&found[0].main).unwrap();
        // The number was used again, by a process of another container.
        let other = format!("0::/kubepods/pod1/{OTHER}\n");
        fs::write(proc.path().join(format!("{own}/cgroup")), other).unwrap();
        assert!(processes.open(&found[0].main).is_err());
    }
}

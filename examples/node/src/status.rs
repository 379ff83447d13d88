//! The statuses of containers, and that of the pod that follows from them. Pure.

use std::net::IpAddr;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Container;
use larder_agent::clock::Clock;
use serde_json::{Value, json};

/// The time, for statuses.
pub(crate) fn now() -> Timestamp {
    Clock::system().now()
}

/// How far a container is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Progress {
    /// It is not started yet, or not started again yet.
    Waiting,
    Running,
    /// With its exit code. It is over, unless it waits for another run.
    Ended(i32),
}

/// A container as the status of its pod shows it.
#[derive(Clone, Debug)]
pub(crate) struct ContainerSummary {
    is_init: bool,
    progress: Progress,
    /// A `ContainerStatus`.
    status: Value,
}

impl ContainerSummary {
    pub(crate) fn new(container: &Container, is_init: bool) -> Self {
        let mut summary = Self {
            is_init,
            progress: Progress::Waiting,
            status: json!({"name": container.name, "image": container.image, "imageID": "", "restartCount": 0}),
        };
        summary.wait("ContainerCreating", "");
        summary
    }

    pub(crate) fn wait(&mut self, reason: &str, message: &str) {
        let state = json!({"waiting": {"reason": reason, "message": message}});
        self.set(Progress::Waiting, state);
    }

    /// Its run of this number, from 0, has begun.
    pub(crate) fn run(&mut self, number: u32, id: &str, now: Timestamp) {
        self.set(Progress::Running, json!({"running": {"startedAt": now}}));
        self.status["restartCount"] = number.into();
        self.status["containerID"] = format!("larder://{id}").into();
    }

    pub(crate) fn end(&mut self, code: i32, message: &str, now: Timestamp) {
        let reason = if code == 0 { "Completed" } else { "Error" };
        let state = json!({"terminated": {
            "exitCode": code, "reason": reason, "message": message, "finishedAt": now,
            "startedAt": self.status["state"]["running"]["startedAt"],
            "containerID": self.status["containerID"],
        }});
        self.set(Progress::Ended(code), state);
    }

    fn set(&mut self, progress: Progress, state: Value) {
        if matches!(self.progress, Progress::Ended(_)) {
            self.status["lastState"] = self.status["state"].take();
        }
        self.progress = progress;
        self.status["state"] = state;
        self.status["started"] = (progress == Progress::Running).into();
        let is_ready = match progress {
            Progress::Waiting => false,
            Progress::Running => !self.is_init,
            Progress::Ended(code) => self.is_init && code == 0,
        };
        self.status["ready"] = is_ready.into();
    }
}

/// The status of a pod in the network of the node.
pub(crate) fn pod_status(all: &[ContainerSummary], ip: IpAddr, started: Timestamp) -> Value {
    let (init, regular): (Vec<_>, Vec<_>) = all.iter().partition(|one| one.is_init);
    let initialized = init.iter().all(|one| one.progress == Progress::Ended(0));
    let ready = initialized && regular.iter().all(|one| one.progress == Progress::Running);
    let is_over = |one: &&ContainerSummary| matches!(one.progress, Progress::Ended(_));
    let all_over = regular.iter().all(is_over);
    let has_failed = |one: &&ContainerSummary| matches!(one.progress, Progress::Ended(1..));
    let has_begun = |one: &&ContainerSummary| one.status.get("containerID").is_some();
    let phase = match () {
        () if init.iter().any(has_failed) => "Failed",
        () if all_over && regular.iter().any(has_failed) => "Failed",
        () if all_over => "Succeeded",
        () if regular.iter().any(has_begun) => "Running",
        () => "Pending",
    };
    let condition = |name: &str, holds: bool| {
        let status = if holds { "True" } else { "False" };
        json!({"type": name, "status": status})
    };
    let statuses = |containers: Vec<&ContainerSummary>| -> Value {
        containers.iter().map(|one| one.status.clone()).collect()
    };
    json!({
        "phase": phase,
        "conditions": [
            condition("PodScheduled", true), condition("Initialized", initialized),
            condition("ContainersReady", ready), condition("Ready", ready),
        ],
        "hostIP": ip, "hostIPs": [{"ip": ip}], "podIP": ip, "podIPs": [{"ip": ip}],
        "startTime": started,
        "initContainerStatuses": statuses(init),
        "containerStatuses": statuses(regular),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn phase_follows_the_containers() {
        let now = Timestamp::UNIX_EPOCH;
        let new = |is_init| ContainerSummary::new(&Container::default(), is_init);
        let status = |all: &[ContainerSummary]| pod_status(all, [10, 0, 0, 1].into(), now);
        let mut all = [new(true), new(false)];
        all[0].run(0, "a", now);
        assert_eq!(status(&all)["phase"], "Pending");
        // Its end is the last state as soon as it waits for its next run.
        all[0].end(1, "no", now);
        all[0].wait("CrashLoopBackOff", "");
        let shown = status(&all);
        assert_eq!(shown["phase"], "Pending");
        let first = &shown["initContainerStatuses"][0];
        assert_eq!(first["lastState"]["terminated"]["message"], "no");
        all[0].run(1, "b", now);
        all[0].end(0, "", now);
        all[1].run(0, "c", now);
        let shown = status(&all);
        assert_eq!(shown["phase"], "Running");
        assert_eq!(shown["initContainerStatuses"][0]["restartCount"], 1);
        all[1].end(2, "", now);
        all[1].wait("CrashLoopBackOff", "");
        assert_eq!(status(&all)["phase"], "Running");
        all[1].run(1, "d", now);
        all[1].end(2, "", now);
        assert_eq!(status(&all)["phase"], "Failed");
    }
}

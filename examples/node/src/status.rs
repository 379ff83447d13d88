//! The status of a pod, from the states of its containers. Pure.

use std::net::IpAddr;

use jiff::Timestamp;
use k8s_openapi::{
    api::core::v1::{
        ContainerState, ContainerStateRunning, ContainerStateTerminated, ContainerStateWaiting,
        ContainerStatus, HostIP, PodCondition, PodIP, PodStatus,
    },
    apimachinery::pkg::apis::meta::v1::Time,
};

/// The time, for statuses.
pub(crate) fn now() -> Timestamp {
    #[expect(
        clippy::disallowed_methods,
        reason = "the one place that reads the wall clock"
    )]
    Timestamp::now()
}

/// A container as the pod sees it.
#[derive(Clone, Debug)]
pub(crate) struct Slot {
    pub(crate) is_init: bool,
    pub(crate) status: ContainerStatus,
    /// It has ended, and is not started again.
    pub(crate) is_over: bool,
}

impl Slot {
    pub(crate) fn new(name: &str, image: Option<&str>, is_init: bool) -> Self {
        let status = ContainerStatus {
            name: name.to_owned(),
            image: image.unwrap_or_default().to_owned(),
            ..ContainerStatus::default()
        };
        let mut slot = Self {
            is_init,
            status,
            is_over: false,
        };
        slot.wait("ContainerCreating", "");
        slot
    }

    pub(crate) fn wait(&mut self, reason: &str, message: &str) {
        self.keep_end();
        self.status.state = Some(ContainerState {
            waiting: Some(ContainerStateWaiting {
                reason: Some(reason.to_owned()),
                message: Some(message.to_owned()).filter(|message| !message.is_empty()),
            }),
            ..ContainerState::default()
        });
    }

    pub(crate) fn run(&mut self, id: String, now: Timestamp) {
        self.keep_end();
        // Every start but the first one is a restart.
        self.status.restart_count += i32::from(self.status.last_state.is_some());
        self.status.container_id = Some(format!("larder://{id}"));
        self.status.image_id.clone_from(&self.status.image);
        self.status.state = Some(ContainerState {
            running: Some(ContainerStateRunning {
                started_at: Some(Time(now)),
            }),
            ..ContainerState::default()
        });
        (self.status.ready, self.status.started) = (!self.is_init, Some(true));
    }

    /// The end of the last run, while the next one waits or runs.
    fn keep_end(&mut self) {
        if self.exit_code().is_some() {
            self.status.last_state = self.status.state.take();
        }
    }

    pub(crate) fn end(&mut self, exit_code: i32, message: String, now: Timestamp) {
        let running = self.status.state.take().and_then(|state| state.running);
        let terminated = ContainerStateTerminated {
            exit_code,
            reason: Some(if exit_code == 0 { "Completed" } else { "Error" }.to_owned()),
            message: Some(message).filter(|message| !message.is_empty()),
            started_at: running.and_then(|running| running.started_at),
            finished_at: Some(Time(now)),
            container_id: self.status.container_id.clone(),
            signal: None,
        };
        self.status.state = Some(ContainerState {
            terminated: Some(terminated),
            ..ContainerState::default()
        });
        (self.status.ready, self.status.started) = (self.is_init && exit_code == 0, Some(false));
    }

    pub(crate) fn is_running(&self) -> bool {
        self.status
            .state
            .as_ref()
            .is_some_and(|state| state.running.is_some())
    }

    /// The exit code of its last run, unless it has begun another one.
    pub(crate) fn exit_code(&self) -> Option<i32> {
        let state = self.status.state.as_ref()?;
        state
            .terminated
            .as_ref()
            .map(|terminated| terminated.exit_code)
    }
}

/// The status of a pod in the network of the node, whose last published status is `before`.
pub(crate) fn pod_status(
    slots: &[Slot],
    ip: IpAddr,
    before: Option<&PodStatus>,
    now: Timestamp,
) -> PodStatus {
    let (init, regular): (Vec<_>, Vec<_>) = slots.iter().partition(|slot| slot.is_init);
    let initialized = init.iter().all(|slot| slot.exit_code() == Some(0));
    let ready = initialized && regular.iter().all(|slot| slot.is_running());
    let failed = |slots: &[&Slot]| {
        slots
            .iter()
            .any(|slot| slot.is_over && slot.exit_code() != Some(0))
    };
    let all_over = regular.iter().all(|slot| slot.is_over);
    let begun = regular
        .iter()
        .any(|slot| slot.status.container_id.is_some());
    let phase = match () {
        () if failed(&init) || all_over && failed(&regular) => "Failed",
        () if all_over => "Succeeded",
        () if begun => "Running",
        () => "Pending",
    };
    let known = before
        .and_then(|status| status.conditions.as_deref())
        .unwrap_or_default();
    let condition = |name: &str, holds: bool| {
        let status = if holds { "True" } else { "False" };
        let same = known
            .iter()
            .find(|known| known.type_ == name && known.status == status);
        same.cloned().unwrap_or_else(|| PodCondition {
            type_: name.to_owned(),
            status: status.to_owned(),
            last_transition_time: Some(Time(now)),
            ..PodCondition::default()
        })
    };
    let published = |slots: &[&Slot]| Some(slots.iter().map(|slot| slot.status.clone()).collect());
    PodStatus {
        phase: Some(phase.to_owned()),
        conditions: Some(vec![
            condition("PodScheduled", true),
            condition("Initialized", initialized),
            condition("ContainersReady", ready),
            condition("Ready", ready),
        ]),
        host_ip: Some(ip.to_string()),
        host_ips: Some(vec![HostIP { ip: ip.to_string() }]),
        pod_ip: Some(ip.to_string()),
        pod_ips: Some(vec![PodIP { ip: ip.to_string() }]),
        start_time: before
            .and_then(|status| status.start_time.clone())
            .or(Some(Time(now))),
        init_container_statuses: published(&init),
        container_statuses: published(&regular),
        ..PodStatus::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn phase_follows_the_containers() {
        let now = Timestamp::UNIX_EPOCH;
        let phase = |slots: &[Slot]| {
            pod_status(slots, [10, 0, 0, 1].into(), None, now)
                .phase
                .unwrap()
        };
        let mut slots = [
            Slot::new("first", None, true),
            Slot::new("main", None, false),
        ];
        assert_eq!(phase(&slots), "Pending");
        slots[0].run("0".to_owned(), now);
        slots[0].end(1, "no".to_owned(), now);
        assert_eq!(phase(&slots), "Pending");
        slots[0].run("1".to_owned(), now);
        assert_eq!(slots[0].status.restart_count, 1);
        slots[0].end(0, String::new(), now);
        slots[0].is_over = true;
        slots[1].run("0".to_owned(), now);
        assert_eq!(phase(&slots), "Running");
        slots[1].end(2, String::new(), now);
        assert_eq!(phase(&slots), "Running");
        slots[1].is_over = true;
        assert_eq!(phase(&slots), "Failed");
    }
}

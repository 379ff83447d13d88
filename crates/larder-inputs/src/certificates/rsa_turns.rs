//! Turns of making RSA keys, each of which takes a processor for seconds.
//!
//! Invariants:
//! 1. One key is made at a time, also of pods that are gone meanwhile.
//! 2. At most one source of a pod waits for the processor, and the pods that wait get it in order. So a pod waits for
//!    one key of each other pod at most, however many keys that pod asks for.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use larder_projection::SourceKey;
use larder_transport::blocking::blocking_in_turn;
use smol_str::SmolStr;
use tokio::sync::Semaphore;

use super::SourceId;

/// Most sources of one pod that get RSA keys. Others are refused: a pod can use one key in many places.
pub(super) const MAX_RSA_SOURCES: usize = 16;

/// The processor.
static RSA_KEYS: Semaphore = Semaphore::const_new(1);

/// The pods that have asked for RSA keys.
#[derive(Debug, Default)]
pub(super) struct RsaTurns {
    pods: HashMap<SmolStr, (PodTurn, HashSet<SourceKey>)>,
}

/// The right of one source of a pod to wait for the processor.
#[derive(Clone, Debug)]
pub(super) struct PodTurn(Arc<Semaphore>);

impl Default for PodTurn {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(1)))
    }
}

impl RsaTurns {
    /// The turn of the source's pod; `None` if the pod has too many sources with RSA keys.
    pub(super) fn of(&mut self, id: &SourceId) -> Option<PodTurn> {
        let (turn, sources) = self.pods.entry(id.pod_uid.clone()).or_default();
        if sources.len() == MAX_RSA_SOURCES && !sources.contains(&id.key) {
            return None;
        }
        sources.insert(id.key.clone());
        Some(turn.clone())
    }

    pub(super) fn forget(&mut self, pod_uid: &str) {
        self.pods.remove(pod_uid);
    }
}

impl PodTurn {
    /// Runs `make` on a blocking thread when it is the pod's turn.
    pub(super) async fn take<T: Send + 'static>(
        &self,
        make: impl FnOnce() -> T + Send + 'static,
    ) -> T {
        let _turn = self.0.acquire().await.expect("it is never closed");
        blocking_in_turn(&RSA_KEYS, make).await
    }
}

#[cfg(test)]
mod tests {
    use futures::future::join_all;
    use parking_lot::Mutex;

    use super::*;

    fn source(pod_uid: &str, index: usize) -> SourceId {
        SourceId {
            pod_uid: pod_uid.into(),
            key: SourceKey {
                volume: "v".to_owned(),
                index,
            },
        }
    }

    #[tokio::test]
    async fn keys_of_a_pod_delay_another_pod_by_one() {
        let mut turns = RsaTurns::default();
        let greedy = (0..10).map(|index| ("greedy", turns.of(&source("greedy", index)).unwrap()));
        let mut all: Vec<_> = greedy.collect();
        all.push(("modest", turns.of(&source("modest", 0)).unwrap()));
        let made = Arc::new(Mutex::new(Vec::new()));
        let keys = all.iter().map(|(pod, turn)| {
            let (pod, made) = (*pod, Arc::clone(&made));
            turn.take(move || made.lock().push(pod))
        });
        join_all(keys).await;
        let made = made.lock();
        assert_eq!(made.len(), 11);
        assert_eq!(made[..2], ["greedy", "modest"]);
    }

    #[test]
    fn a_pod_gets_a_limited_number_of_keys() {
        let mut turns = RsaTurns::default();
        for index in 0..MAX_RSA_SOURCES {
            assert!(turns.of(&source("a", index)).is_some());
        }
        assert!(turns.of(&source("a", MAX_RSA_SOURCES)).is_none());
        // Another certificate of the same source, and another pod.
        assert!(turns.of(&source("a", 0)).is_some());
        assert!(turns.of(&source("b", 0)).is_some());
        turns.forget("a");
        assert!(turns.of(&source("a", MAX_RSA_SOURCES)).is_some());
    }
}

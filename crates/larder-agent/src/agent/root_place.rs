//! Follows the root directory while the agent runs: whether its path still leads to it, and whether the agent's own files
//! are in it.

use std::{mem, sync::Arc, time::Duration};

use larder_objects::chain;
use larder_transport::blocking::blocking;
use tokio::time::sleep;
use tracing::{error, info, warn};

use crate::{
    delivery::worker::DeliveryNode,
    root_dir::{Place, RootLook, RootLooked},
    tasks::TaskError,
    waits::OwnWork,
};

/// Pause between two looks.
const LOOK_INTERVAL: Duration = Duration::from_secs(5);

/// Publishes what is wrong with the root directory. Ends when it was removed, with that error.
pub(super) async fn follow_root(root: RootLook, node: Arc<DeliveryNode>) -> TaskError {
    loop {
        sleep(LOOK_INTERVAL).await;
        let look = root.clone();
        // A look at a disk that does not answer is the last one until it does.
        let looking = blocking(move || look.look());
        let RootLooked { place, repaired } = node.waits.shown(OwnWork::RootLook, looking).await;
        let mut others = Vec::new();
        match place {
            Place::AtPath => note_place(&node, None),
            Place::Displaced(why) => note_place(&node, Some(why)),
            Place::Unknown(why) => others.push(why),
            Place::Removed => {
                let path = node.host.path().display();
                let reason = format!(
                    "the root directory {path} was removed: a new start creates it and what was in it"
                );
                return TaskError::Failed { reason };
            }
        }
        for file in repaired {
            match file {
                Ok(path) => {
                    warn!(path = %path.display(), "file of the agent was removed, created it again");
                }
                Err(error) => others.push(chain(&error)),
            }
        }
        let known = mem::replace(&mut node.root.lock().others, others.clone());
        for error in others.iter().filter(|error| !known.contains(error)) {
            warn!(
                error,
                "the root directory is not as it should be, will look again"
            );
        }
    }
}

/// Notes that the root directory is not at its path, because of this, or that it is.
fn note_place(node: &DeliveryNode, displaced: Option<String>) {
    {
        let mut problems = node.root.lock();
        let known = problems.displaced.as_ref().map(|(_, why)| why);
        if known == displaced.as_ref() {
            return;
        }
        let since = problems.displaced.as_ref().map(|(since, _)| *since);
        problems.displaced = displaced
            .clone()
            .map(|why| (since.unwrap_or_else(|| node.now()), why));
    }
    if let Some(error) = displaced {
        error!(error, "no pod finds what is delivered");
    } else {
        info!("the root directory is at its path again");
    }
    // Each pod's status is another one now.
    for pod in node.statuses.sorted() {
        node.statuses.note_change(&pod.uid);
    }
}

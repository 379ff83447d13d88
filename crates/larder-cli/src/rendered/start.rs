//! What a container needs to start: its own variables and mounts, and every volume that some container of the pod mounts.

use std::collections::BTreeSet;

use larder_projection::{Question, Unknown};

use super::RenderedPod;

/// What a container needs to start.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Start {
    /// Why it does not start, whatever is not known.
    pub(crate) error: Option<String>,
    /// What must be true, and is not known.
    pub(crate) needs: BTreeSet<Question>,
    /// Values that must be there, and be part of a path.
    pub(crate) values: Vec<Unknown>,
    /// All that is true if it starts, as far as it follows from the needs and the values one by one.
    implied: BTreeSet<Question>,
}

impl Start {
    /// Whether it needs this, too, even if it does not say so: an object of which it needs a key must be there.
    pub(crate) fn needs(&self, need: &Question) -> bool {
        self.implied.contains(need)
    }

    /// All of that.
    pub(crate) fn implied(&self) -> &BTreeSet<Question> {
        &self.implied
    }

    /// Whether it needs something that the other does not need.
    pub(crate) fn needs_more_than(&self, other: &Self) -> bool {
        let (mut needs, mut values) = (self.needs.iter(), self.values.iter());
        needs.any(|need| !other.needs(need)) || values.any(|value| !other.values.contains(value))
    }
}

impl RenderedPod<'_> {
    /// What the container at `index` needs to start; of one that does not, with all that it needs besides.
    pub(crate) fn start(&self, index: usize) -> Start {
        let (_, result) = &self.containers[index];
        let mut start = Start {
            error: result.as_ref().err().map(|error| self.start_error(error)),
            ..Start::default()
        };
        if let Some(view) = self.view(index) {
            start.needs.extend(view.environment.needs().iter().cloned());
            let values = view.mounts.iter().flat_map(|mount| &mount.needs);
            start.values.extend(values.cloned());
        }
        for (volume, filled) in self.volumes.values() {
            if !self.is_used(volume) {
                continue;
            }
            match filled {
                Ok(projection) => start.needs.extend(projection.needs.iter().cloned()),
                Err(error) => {
                    start.needs.extend(error.needs().iter().cloned());
                    let error = format!("volume {}: {}", volume.name, self.volume_error(error));
                    start.error.get_or_insert(error);
                }
            }
        }
        let of_values = start.values.iter().flat_map(Unknown::conditions);
        let implied = start.needs.iter().flat_map(Question::implied);
        start.implied = implied.chain(of_values).collect();
        start
    }
}

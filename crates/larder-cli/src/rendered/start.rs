//! What a container needs to start: its own variables and mounts, those of the init containers that start before it, and
//! every volume that some container of the pod mounts.

use std::{collections::BTreeSet, iter};

use larder_projection::{ContainerKind, Question, Unknown};

use super::{RenderedPod, words::heading};

/// What a container needs to start.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Start {
    /// Why it does not start, whatever is not known.
    pub(crate) error: Option<String>,
    /// What must be true, and is not known.
    pub(crate) needs: BTreeSet<Question>,
    /// Values that must be there, and be part of a path, as they are where all that is implied is true.
    pub(crate) values: Vec<Unknown>,
    /// What must be there besides what larder delivers; only what a side needs alone is said.
    outside: BTreeSet<Question>,
    /// All that is true if it starts, as far as it follows from the needs and the values one by one.
    implied: BTreeSet<Question>,
}

impl Start {
    /// Adds what must be there besides.
    pub(crate) fn add_outside(&mut self, outside: BTreeSet<Question>) {
        self.implied.extend(outside.iter().cloned());
        self.outside = outside;
    }

    /// Whether it needs this, too, even if it does not say so: an object of which it needs a key must be there.
    pub(crate) fn needs(&self, need: &Question) -> bool {
        self.implied.contains(need)
    }

    /// All of that.
    pub(crate) fn implied(&self) -> &BTreeSet<Question> {
        &self.implied
    }

    /// What it needs that the other does not need.
    pub(crate) fn needs_beyond<'s>(
        &'s self,
        other: &'s Self,
    ) -> impl Iterator<Item = &'s Question> {
        let all = self.needs.iter().chain(&self.outside);
        all.filter(|need| !other.needs(need))
    }

    /// Its values that the other does not need.
    pub(crate) fn values_beyond<'s>(
        &'s self,
        other: &'s Self,
    ) -> impl Iterator<Item = &'s Unknown> {
        self.values.iter().filter(|value| {
            let value = value.given(&other.implied);
            may_be_no_path(&value) && !other.values.contains(&value)
        })
    }

    /// Whether it needs something that the other does not need.
    pub(crate) fn needs_more_than(&self, other: &Self) -> bool {
        self.needs_beyond(other).next().is_some() || self.values_beyond(other).next().is_some()
    }
}

/// Whether a value may be absent, or no part of a path: all facts are, if they are there.
fn may_be_no_path(value: &Unknown) -> bool {
    let mut sources = value.sources();
    value.may_be_absent() || sources.any(|source| source.object.is_some())
}

impl RenderedPod<'_> {
    /// What the container at `index` needs to start; of one that does not, with all that it needs besides.
    pub(crate) fn start(&self, index: usize) -> Start {
        let mut start = Start::default();
        let mut values = Vec::new();
        for place in iter::once(index).chain(self.started_before(index)) {
            let (container, result) = &self.containers[place];
            if let Err(error) = result {
                let mut text = self.start_error(error);
                if place != index {
                    text = format!("{}: {text}", heading(container));
                }
                start.error.get_or_insert(text);
            }
            if let Some(view) = self.view(place) {
                start.needs.extend(view.environment.needs().iter().cloned());
                values.extend(view.mounts.iter().flat_map(|mount| &mount.needs));
            }
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
        let of_needs: BTreeSet<_> = start.needs.iter().flat_map(Question::implied).collect();
        values.retain(|value| may_be_no_path(&value.given(&of_needs)));
        let of_values = values.iter().flat_map(|value| value.conditions());
        start.implied = of_needs.iter().cloned().chain(of_values).collect();
        // That a fact is there is all that a value of facts needs.
        let facts = start.implied.iter();
        let facts = facts.filter(|question| matches!(question, Question::Fact(_)));
        start.needs.extend(facts.cloned());
        let values = values.iter().map(|value| value.given(&start.implied));
        start.values = values.filter(may_be_no_path).collect();
        start
    }

    /// The init containers that must have started before the container at `index`, in their order.
    fn started_before(&self, index: usize) -> impl Iterator<Item = usize> {
        let is_ephemeral = self.containers[index].0.kind == ContainerKind::Ephemeral;
        let before = self.containers[..index].iter().enumerate();
        before.filter_map(move |(place, (container, _))| {
            (container.kind == ContainerKind::Init && !is_ephemeral).then_some(place)
        })
    }
}

//! The references on one object, and the registration that each began with.
//!
//! Arithmetic is checked: an unknown holder has nothing to drop. (The kubelet's watch store counts it as −1 and keeps
//! the object watched forever.)

use larder_watch::RegistrationSeq;
use smallvec::SmallVec;

use crate::registration::Holder;

/// The references on one object.
#[derive(Debug, Default)]
pub(crate) struct References(SmallVec<[Reference; 1]>);

#[derive(Debug)]
struct Reference {
    holder: Holder,
    count: usize,
    since: RegistrationSeq,
}

impl References {
    /// Adds a reference of `holder`, from the registration `since` on. Returns whether it is the holder's first.
    pub(crate) fn add(&mut self, holder: Holder, since: RegistrationSeq) -> bool {
        match self.position(holder) {
            Ok(at) => {
                self.0[at].count += 1;
                false
            }
            Err(at) => {
                let reference = Reference {
                    holder,
                    count: 1,
                    since,
                };
                self.0.insert(at, reference);
                true
            }
        }
    }

    /// Drops one reference of `holder`, if it has one.
    pub(crate) fn remove(&mut self, holder: Holder) {
        if let Ok(at) = self.position(holder) {
            self.0[at].count -= 1;
            if self.0[at].count == 0 {
                self.0.remove(at);
            }
        }
    }

    /// The registration since which `holder` refers to the object.
    pub(crate) fn since(&self, holder: Holder) -> Option<RegistrationSeq> {
        Some(self.0[self.position(holder).ok()?].since)
    }

    /// All holders.
    pub(crate) fn holders(&self) -> impl Iterator<Item = Holder> {
        self.0.iter().map(|reference| reference.holder)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Holders are numbered in the order of their registration, so that a new one goes to the end.
    fn position(&self, holder: Holder) -> Result<usize, usize> {
        self.0
            .binary_search_by_key(&holder, |reference| reference.holder)
    }
}

#[cfg(test)]
mod tests {
    use larder_watch::SeqCounter;

    use super::*;

    // managers 33, 34
    #[test]
    fn references_are_counted_per_holder_never_below_zero() {
        let (one, two) = (Holder(1), Holder(2));
        let counter = SeqCounter::default();
        let (first, second) = (counter.advance(), counter.advance());
        let mut references = References::default();
        references.remove(one);
        assert!(references.is_empty());
        assert!(references.add(one, first));
        assert!(!references.add(one, second));
        references.remove(one);
        assert!(!references.is_empty());
        references.remove(two);
        assert_eq!(references.since(one), Some(first));
        references.remove(one);
        references.remove(one);
        // B4: the removal by an unknown holder left no −1 behind that would keep the object.
        assert!(references.is_empty());
    }
}

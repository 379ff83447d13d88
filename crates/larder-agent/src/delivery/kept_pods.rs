//! Pods of which an earlier version is served, because their source cannot use the newest one. Usually none.

use std::collections::BTreeMap;

use jiff::Timestamp;
use larder_objects::{ObjectKey, manifest::KeptVersion};
use larder_pods::{PodSource, source::SourceProblem};
use tokio::time::Instant;

/// The pods of which an earlier version is served, by their source.
#[derive(Clone, Debug, Default)]
pub(crate) struct KeptPods(BTreeMap<PodSource, BTreeMap<ObjectKey, KeptVersion>>);

impl KeptPods {
    /// Replaces those of the source, which has these problems now. A pod that stays has been kept since it was first.
    pub(crate) fn replace(
        &mut self,
        source: PodSource,
        problems: &[SourceProblem],
        wall_at: impl Fn(Instant) -> Timestamp,
    ) {
        let before = self.0.remove(&source).unwrap_or_default();
        let mut kept = BTreeMap::<_, KeptVersion>::new();
        for problem in problems {
            for name in &problem.kept {
                let key = ObjectKey::new(name.namespace.clone(), name.name.clone());
                let known = kept.get(&key).or_else(|| before.get(&key));
                let since = wall_at(problem.since);
                let since = known.map_or(since, |known| known.since.min(since));
                let why = problem.to_string();
                kept.insert(key, KeptVersion { since, why });
            }
        }
        if !kept.is_empty() {
            self.0.insert(source, kept);
        }
    }

    /// The earlier version of this pod of a source, by its name in the status, if one is served.
    pub(crate) fn get(&self, source: &str, pod: &ObjectKey) -> Option<&KeptVersion> {
        let mut sources = self.0.iter();
        let (_, kept) = sources.find(|(found, _)| found.as_str() == source)?;
        kept.get(pod)
    }

    /// Whether the newest version of every pod is served.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use std::{io, sync::Arc, time::Duration};

    use larder_pods::FullName;

    use super::*;

    #[test]
    fn a_pod_is_kept_since_the_first_problem_that_kept_it_without_a_pause() {
        let (start, wall) = (Instant::now(), Timestamp::UNIX_EPOCH);
        let problem = |text: &str, names: &[&str], since| SourceProblem {
            subject: "m".to_owned(),
            error: Arc::new(io::Error::other(text.to_owned())),
            kept: names
                .iter()
                .map(|name| FullName {
                    name: (*name).into(),
                    namespace: "n".into(),
                })
                .collect(),
            since: start + Duration::from_secs(since),
        };
        let mut kept = KeptPods::default();
        let mut check = |problems: &[SourceProblem], expected: [Option<(i64, &str)>; 2]| {
            kept.replace(PodSource::File, problems, |then| wall + (then - start));
            for (name, expected) in ["a", "b"].into_iter().zip(expected) {
                let key = ObjectKey::new("n", name);
                let found = kept.get("file", &key);
                let found = found.map(|kept| (kept.since.as_second(), &*kept.why));
                assert_eq!(found, expected, "{name}");
                assert_eq!(kept.get("http", &key), None);
            }
            assert_eq!(kept.is_empty(), expected == [None; 2]);
        };
        check(&[problem("none", &[], 1)], [None; 2]);
        check(&[problem("x", &["a"], 2)], [Some((2, "m: x")), None]);
        let both = [problem("y", &["a", "b"], 3)];
        check(&both, [Some((2, "m: y")), Some((3, "m: y"))]);
        check(&[problem("y", &["b"], 4)], [None, Some((3, "m: y"))]);
        // Of two problems, the last proof counts.
        let two = [problem("y", &["a"], 5), problem("z", &["a"], 4)];
        check(&two, [Some((4, "m: z")), None]);
        check(&[], [None; 2]);
    }
}

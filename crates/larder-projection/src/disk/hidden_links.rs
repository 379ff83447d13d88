//! Links in a volume that Linux lets only one user follow.
//!
//! The root of a volume in memory is sticky, and every user may write to it. Where `fs.protected_symlinks` is set, a link in
//! such a directory is followed for its owner alone, or if the directory has the same owner. The kubelet gives the link of
//! a file to the file's user, so every other user is refused, root included. Behind `..data` the files have no links.

use std::{collections::BTreeMap, fmt};

use crate::{Payload, VolumeKind};

/// The files of one user in a volume, by their links. Displays as advice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HiddenLinks {
    user: u32,
    first: String,
    others: usize,
}

impl HiddenLinks {
    /// The links of a volume of this kind that belong to another user than its root, which is `root_user`'s.
    pub fn of(kind: VolumeKind, payload: &Payload<'_>, root_user: u32) -> Vec<Self> {
        let mut by_user = BTreeMap::<u32, Self>::new();
        if !kind.wants_memory() {
            return Vec::new();
        }
        for (path, file) in payload {
            let Some(user) = file.owner.filter(|user| *user != root_user) else {
                continue;
            };
            by_user
                .entry(user)
                .and_modify(|links| links.others += 1)
                .or_insert_with(|| Self {
                    user,
                    first: path.as_str().to_owned(),
                    others: 0,
                });
        }
        by_user.into_values().collect()
    }
}

impl fmt::Display for HiddenLinks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            user,
            first,
            others,
        } = self;
        write!(f, "{first}")?;
        if *others > 0 {
            write!(f, " and {others} more")?;
        }
        write!(
            f,
            ": only user {user} may follow the link where fs.protected_symlinks is set; all others, root included, find \
             the file in ..data"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{File, Value, VolumePath};

    #[test]
    fn links_of_another_user_than_the_directorys_are_hidden_in_memory() {
        let files = [
            ("a", Some(1000)),
            ("b", Some(1000)),
            ("c", None),
            ("d", Some(0)),
            ("e", Some(7)),
        ];
        let payload: Payload<'_> = files
            .map(|(path, owner)| {
                let data = Value::Borrowed(b"");
                (
                    VolumePath::parse(path).unwrap(),
                    File {
                        data,
                        mode: 0o600,
                        owner,
                    },
                )
            })
            .into();
        let hidden = |kind, root_user| -> Vec<_> {
            let found = HiddenLinks::of(kind, &payload, root_user).into_iter();
            found
                .map(|links| (links.user, links.first, links.others))
                .collect()
        };
        let expected = [(7, "e".to_owned(), 0), (1000, "a".to_owned(), 1)];
        assert_eq!(hidden(VolumeKind::Projected, 0), expected);
        assert_eq!(
            hidden(VolumeKind::Secret, 1000)[..],
            [(0, "d".to_owned(), 0), (7, "e".to_owned(), 0)]
        );
        // Its root is not sticky.
        assert_eq!(hidden(VolumeKind::ConfigMap, 0), []);
    }
}

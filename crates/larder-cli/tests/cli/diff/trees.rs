//! Trees of git that no checkout makes: written by hand, as a hostile repository may have them.

use std::{
    io::Write as _,
    process::{Command, Stdio},
};

use super::{Checkout, FROM};
use crate::Run;

impl Checkout {
    /// Writes an object as it is; returns its ID.
    fn object(&self, kind: &str, content: &[u8]) -> String {
        let mut git = Command::new("git");
        git.args(["hash-object", "-w", "--literally", "--stdin", "-t", kind]);
        let git = git.current_dir(self.path()).stdin(Stdio::piped());
        let mut child = git.stdout(Stdio::piped()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(content).unwrap();
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success());
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    }

    /// A tree of these entries: mode, name, ID.
    fn tree(&self, entries: &[(&str, &str, &str)]) -> String {
        let entries = entries.iter().flat_map(|(mode, name, id)| {
            let mut entry = format!("{mode} {name}\0").into_bytes();
            let digits = (0..id.len()).step_by(2);
            entry.extend(digits.map(|at| u8::from_str_radix(&id[at..at + 2], 16).unwrap()));
            entry
        });
        self.object("tree", &entries.collect::<Vec<_>>())
    }

    /// Compares this tree, as the directory `k8s` of a revision, with itself.
    fn compare(&self, tree: &str) -> Run {
        let root = self.tree(&[("40000", "k8s", tree)]);
        let person = "n <e> 0 +0000";
        let commit = format!("tree {root}\nauthor {person}\ncommitter {person}\n\ntext\n");
        let commit = self.object("commit", commit.as_bytes());
        let from = format!("--from={commit}");
        let run = self.diff(".", &["-R", "-f", "k8s", &from, &format!("--to={commit}")]);
        let text = format!("{}{}", run.stdout, run.stderr);
        assert!(
            !text.contains(|c: char| c.is_control() && c != '\n'),
            "{run:?}"
        );
        assert!(!text.contains("root:"), "{run:?}");
        run
    }
}

#[test]
fn names_and_modes_that_no_file_has_are_only_names() {
    let checkout = Checkout::new();
    let file = checkout.object("blob", FROM.as_bytes());
    let passwd = checkout.object("blob", b"/etc/passwd");
    let up = checkout.object("blob", b"../../../../etc/passwd");
    let below = checkout.tree(&[("100644", "app.yaml", &file)]);
    for (mode, name, id) in [
        ("100644", "/etc/passwd.yaml", &file),
        ("100644", "../../passwd.yaml", &file),
        ("100644", "..", &file),
        ("40000", "..", &below),
        ("40000", ".", &below),
        ("40000", ".git", &below),
        ("40000", "a.yaml", &below),
        ("100644", "a/b.yaml", &file),
        ("100644", "\u{1b}[31m\tred\n.yaml", &file),
        ("100644", "--output=x.yaml", &file),
        ("0", "a.yaml", &file),
        ("177777", "a.yaml", &file),
        ("100644", "a.yaml", &below),
        ("40000", "a", &file),
        ("120000", "a.yaml", &passwd),
        ("120000", "a.yaml", &up),
        ("120000", "a.yaml", &below),
        ("160000", "a.yaml", &file),
        ("100644", "a.yaml", &"1".repeat(40)),
    ] {
        let run = checkout.compare(&checkout.tree(&[(mode, name, id)]));
        assert!(matches!(run.code, 0 | 2), "{mode} {name:?}: {run:?}");
    }
    let twice = [("100644", "a.yaml", &*file), ("100644", "a.yaml", &*file)];
    assert_eq!(checkout.compare(&checkout.tree(&twice)).code, 0);
}

#[test]
fn tree_of_billions_of_files_is_an_error() {
    let checkout = Checkout::new();
    let file = checkout.object("blob", b"");
    let mut tree = checkout.tree(&[("100644", "a.yaml", &file)]);
    for _ in 0..32 {
        tree = checkout.tree(&[("40000", "a", &tree), ("40000", "b", &tree)]);
    }
    let run = checkout.compare(&tree);
    assert_eq!(run.code, 2, "{run:?}");
    assert!(run.stderr.contains("cannot list the files"), "{run:?}");
}

#[test]
fn links_that_lead_through_many_directories_are_not_followed_for_hours() {
    let checkout = Checkout::new();
    let file = checkout.object("blob", FROM.as_bytes());
    let below = checkout.tree(&[("100644", "app.yaml", &file)]);
    let long = checkout.object(
        "blob",
        format!("{}d/app.yaml", "d/../".repeat(800)).as_bytes(),
    );
    let names: Vec<_> = (0..2000)
        .map(|number| format!("link-{number:04}.yaml"))
        .collect();
    let mut entries: Vec<_> = vec![("40000", "d", &*below)];
    entries.extend(names.iter().map(|name| ("120000", &**name, &*long)));
    let run = checkout.compare(&checkout.tree(&entries));
    assert_eq!(run.code, 2, "{run:?}");
    assert!(run.stderr.contains("too many directories"), "{run:?}");
}

#[test]
fn links_in_a_circle_lead_nowhere() {
    let checkout = Checkout::new();
    let own = checkout.object("blob", b"a.yaml");
    let other = checkout.object("blob", b"../k8s/b.yaml");
    let tree = checkout.tree(&[("120000", "a.yaml", &own), ("120000", "b.yaml", &other)]);
    assert_eq!(checkout.compare(&tree).code, 2);
}

#[test]
fn file_under_very_many_names_is_an_error_and_not_read_for_each() {
    let checkout = Checkout::new();
    let file = checkout.object("blob", b"kind: ConfigMap\n");
    let names: Vec<_> = (0..1000)
        .map(|number| format!("{number:04}.yaml"))
        .collect();
    let files: Vec<_> = names
        .iter()
        .map(|name| ("100644", &**name, &*file))
        .collect();
    let below = checkout.tree(&files);
    let names: Vec<_> = (0..60).map(|number| format!("{number:02}")).collect();
    let trees: Vec<_> = names
        .iter()
        .map(|name| ("40000", &**name, &*below))
        .collect();
    let run = checkout.compare(&checkout.tree(&trees));
    assert_eq!((run.code, &*run.stdout), (2, ""), "{}", run.stderr);
    assert!(run.stderr.contains("more than 50000 manifests"), "{run:?}");
}

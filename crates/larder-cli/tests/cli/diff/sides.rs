//! The files of both sides: what kubectl reads is read or named, and no tree chooses another repository.

use std::{
    ffi::OsStr,
    fs,
    os::unix::{ffi::OsStrExt as _, fs::symlink},
};

use serde_json::{Value, json};

use super::{Checkout, FROM, POD};

fn map(name: &str, value: &str) -> String {
    format!(
        "{{apiVersion: v1, kind: ConfigMap, metadata: {{name: {name}}}, data: {{k: {value}}}}}\n"
    )
}

/// The names of changed objects, and the paths that were not read.
fn report(checkout: &Checkout, args: &[&str], code: i32) -> (Vec<String>, Vec<String>) {
    let run = checkout.diff(".", &[args, &["-o", "json"]].concat());
    assert_eq!(run.code, code, "{run:?}");
    let report: Value = serde_json::from_str(&run.stdout).expect(&run.stderr);
    let texts = |list: &str, field: &str| -> Vec<String> {
        let items = report[list].as_array().into_iter().flatten();
        items
            .map(|item| item[field].as_str().unwrap().to_owned())
            .collect()
    };
    (texts("unreferenced", "name"), texts("notRead", "path"))
}

#[test]
fn files_that_kubectl_reads_are_compared() {
    let checkout = Checkout::new();
    let write = |value: &str| {
        // As `kubectl create --dry-run=client -R -f` names them.
        for (name, path) in [
            ("hidden", &b"k8s/.hidden.yaml"[..]),
            ("bare", b"k8s/.yaml"),
            ("directory", b"k8s/.directory/a.yaml"),
            ("dots", b"k8s/..dots/a.json"),
            ("bytes", b"k8s/a\xff.yml"),
        ] {
            let path = checkout.path().join(OsStr::from_bytes(path));
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, map(name, value)).unwrap();
        }
        checkout.write("k8s/upper.YAML", &map("upper", value));
    };
    write("a");
    checkout.commit("a");
    write("b");
    let shallow = ["bare", "bytes", "hidden"].map(str::to_owned).to_vec();
    let all = ["bare", "bytes", "directory", "dots", "hidden"]
        .map(str::to_owned)
        .to_vec();
    let none = Vec::new();
    assert_eq!(
        report(&checkout, &["-f", "k8s", "--from", "a"], 1),
        (shallow, none.clone())
    );
    assert_eq!(
        report(&checkout, &["-R", "-f", "k8s", "--from", "a"], 1),
        (all.clone(), none.clone())
    );
    checkout.commit("b");
    let revisions = ["-R", "-f", "k8s", "--from", "a", "--to", "b"];
    assert_eq!(report(&checkout, &revisions, 1), (all, none));
}

#[test]
fn links_are_followed_below_the_directory_and_others_are_named() {
    let checkout = Checkout::new();
    let path = |name: &str| checkout.path().join(name);
    checkout.write("outside.yaml", "password: hunter2: [");
    fs::create_dir(path("k8s/sub")).unwrap();
    checkout.write("k8s/sub/target.txt", &map("linked", "a"));
    symlink("sub/target.txt", path("k8s/in.yaml")).unwrap();
    symlink("../outside.yaml", path("k8s/out.yaml")).unwrap();
    symlink("/etc/passwd", path("k8s/absolute.yaml")).unwrap();
    symlink("sub", path("k8s/ignored")).unwrap();
    checkout.commit("a");
    checkout.write("k8s/sub/target.txt", &map("linked", "b"));
    let named = vec!["k8s/absolute.yaml".to_owned(), "k8s/out.yaml".to_owned()];
    let expected = (vec!["linked".to_owned()], named);
    assert_eq!(
        report(&checkout, &["-f", "k8s", "--from", "a"], 2),
        expected
    );
    checkout.commit("b");
    let revisions = ["-f", "k8s", "--from", "a", "--to", "b"];
    assert_eq!(report(&checkout, &revisions, 2), expected);
    let run = checkout.diff(".", &["-f", "k8s", "--from", "a", "-o", "markdown"]);
    assert!(run.stdout.contains("not read: k8s/out.yaml"), "{run:?}");
    assert!(
        !run.stdout.contains("hunter2") && !run.stderr.contains("hunter2"),
        "{run:?}"
    );
}

#[test]
fn a_directory_that_is_a_link_is_another_one_in_another_revision() {
    let checkout = Checkout::new();
    for (directory, value) in [("one", "a"), ("two", "b")] {
        fs::create_dir(checkout.path().join(directory)).unwrap();
        checkout.write(&format!("{directory}/map.yaml"), &map("m", value));
    }
    let link = checkout.path().join("live");
    symlink("one", &link).unwrap();
    checkout.commit("a");
    fs::remove_file(&link).unwrap();
    symlink("two", &link).unwrap();
    let expected = (vec!["m".to_owned()], Vec::new());
    assert_eq!(
        report(&checkout, &["-f", "live", "--from", "a"], 1),
        expected
    );
}

/// The names of the pods that differ, and how.
fn changed_pods(checkout: &Checkout, args: &[&str], code: i32) -> Vec<Value> {
    let run = checkout.diff(".", &[args, &["-o", "json"]].concat());
    assert_eq!(run.code, code, "{run:?}");
    let report: Value = serde_json::from_str(&run.stdout).expect(&run.stderr);
    let pods = report["pods"].as_array().unwrap().iter();
    pods.map(|pod| json!([pod["name"], pod["change"]]))
        .collect()
}

#[test]
fn path_that_one_side_lacks_comes_or_goes() {
    let checkout = Checkout::new();
    fs::remove_file(checkout.path().join("k8s/app.yaml")).unwrap();
    let args = ["-f", "k8s/app.yaml", "--from", "first"];
    assert_eq!(
        changed_pods(&checkout, &args, 1),
        [json!(["web", "removed"])]
    );
    checkout.commit("empty");
    let args = ["-f", "k8s/app.yaml", "--from", "empty", "--to", "first"];
    assert_eq!(changed_pods(&checkout, &args, 1), [json!(["web", "added"])]);
}

#[test]
fn path_that_neither_side_has_is_named() {
    let checkout = Checkout::new();
    checkout.write("k8s/app.yaml", FROM);
    for to in [&["--to", "first"][..], &[]] {
        let args = [&["-f", "k8s", "typo", "--from", "first"], to].concat();
        let expected = (Vec::new(), vec!["typo".to_owned()]);
        assert_eq!(report(&checkout, &args, 2), expected);
        for format in ["tree", "markdown", "html"] {
            let run = checkout.diff(".", &[&*args, &["-o", format]].concat());
            assert!(run.stdout.contains("typo: neither side has it"), "{run:?}");
        }
    }
}

#[test]
fn pods_that_could_not_be_read_are_neither_removed_nor_added() {
    let checkout = Checkout::new();
    checkout.write("k8s/app.yaml", FROM);
    checkout.write(
        "k8s/gone.yaml",
        &POD.replace("name: web, n", "name: gone, n"),
    );
    checkout.commit("good");
    fs::remove_file(checkout.path().join("k8s/gone.yaml")).unwrap();
    let without_image = FROM.replacen("        image: i\n", "", 1);
    for (tag, text) in [
        ("rejected", &*without_image),
        ("broken", "kind: ["),
        ("bytes", "\0"),
    ] {
        checkout.write("k8s/app.yaml", text);
        let args = ["-f", "k8s", "--from", "good"];
        assert_eq!(
            changed_pods(&checkout, &args, 2),
            [json!(["gone", "removed"])],
            "{tag}"
        );
        checkout.commit(tag);
        let args = ["-f", "k8s", "--from", tag, "--to", "good"];
        assert_eq!(
            changed_pods(&checkout, &args, 2),
            [json!(["gone", "added"])],
            "{tag}"
        );
    }
    // Files have other names on both sides.
    checkout.write("good.yaml", FROM);
    let args = ["--from-file", "good.yaml", "--to-file", "k8s/app.yaml"];
    assert_eq!(changed_pods(&checkout, &args, 2), [Value::Null; 0]);
}

#[test]
fn submodules_are_named() {
    let checkout = Checkout::new();
    checkout.git(
        "update-index --add --cacheinfo 160000,1111111111111111111111111111111111111111,k8s/module",
    );
    let commit = "-c user.name=n -c user.email=e -c commit.gpgsign=false commit -q -m text";
    checkout.git(commit);
    checkout.git("tag module");
    let (_, named) = report(&checkout, &["-R", "-f", "k8s", "--from", "module"], 2);
    assert_eq!(named, ["k8s/module"]);
    let run = checkout.diff(".", &["-f", "k8s", "--from", "module", "--to", "module"]);
    assert_eq!(run.code, 0, "{run:?}");
}

#[test]
fn a_repository_in_the_compared_directory_is_only_files() {
    let checkout = Checkout::new();
    let path = |name: &str| checkout.path().join(name);
    checkout.commit("base");
    // A bare repository, whose own objects are those of the outer one, and whose settings run a command.
    for directory in ["k8s/refs/heads", "k8s/refs/tags", "k8s/objects/info"] {
        fs::create_dir_all(path(directory)).unwrap();
    }
    checkout.write("k8s/HEAD", "ref: refs/heads/main\n");
    let pwned = path("pwned");
    let run = format!("touch {}", pwned.display());
    checkout.write(
        "k8s/config",
        &format!(
            "[core]\n\trepositoryformatversion = 1\n\tbare = false\n\tworktree = .\n\tfsmonitor = {run}\n\tsshCommand = {run}\n\
             [extensions]\n\tpartialClone = origin\n[remote \"origin\"]\n\turl = ext::sh -c {run}\n\tpromisor = true\n\
             [protocol]\n\tallow = always\n"
        ),
    );
    checkout.write("k8s/objects/info/alternates", "../../.git/objects\n");
    checkout.commit("hostile");
    let head = fs::read_to_string(path(".git/refs/heads/main")).unwrap();
    checkout.write("k8s/refs/heads/main", &head);
    checkout.write("k8s/refs/tags/base", &head);
    checkout.write("k8s/app.yaml", FROM);
    for git in ["/usr/bin", "/usr/local/bin"] {
        if !std::path::Path::new(git).join("git").exists() {
            continue;
        }
        for revision in ["base", "main"] {
            let run = checkout.diff_with(git, ".", &["-f", "k8s", "--from", revision]);
            assert_eq!(run.code, 1, "{git} {revision}: {run:?}");
            let run = checkout.diff_with(git, "k8s", &["-f", ".", "--from", revision]);
            assert_eq!(run.code, 1, "{git} {revision}: {run:?}");
        }
    }
    assert!(!pwned.exists());
}

#[test]
fn git_that_complains_at_length_delays_nothing() {
    let checkout = Checkout::new();
    // A line of git's for each, more than a pipe holds.
    let dead = "/nowhere/objects\n".repeat(5000);
    checkout.write(".git/objects/info/alternates", &dead);
    let run = checkout.diff(".", &["-f", "k8s", "--from", "first"]);
    assert_eq!(run.code, 1, "{run:?}");
}

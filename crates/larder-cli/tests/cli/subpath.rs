//! `larder exec`: files and directories that are mounted by subPath follow their volume.

use std::{fs, path::Path};

use crate::{
    Desk,
    exec::{Running, may_mount},
};

const UPDATES: u32 = 1000;

/// A pod with a file and a directory by subPath, one of them by subPathExpr.
fn manifest(number: u32) -> String {
    // Longer and shorter in turn, so that a mixture shows.
    let content = format!("{number} ").repeat(1 + (number as usize % 7) * 300);
    format!(
        "{{apiVersion: v1, kind: ConfigMap, metadata: {{name: app}}, data: {{key: '{content}', number: '{number}'}}}}
---
apiVersion: v1
kind: Pod
metadata: {{name: web}}
spec:
  containers:
  - name: web
    image: example
    env: [{{name: PART, value: part}}]
    volumeMounts:
    - {{name: config, mountPath: /larder-test/key, subPath: key}}
    - {{name: config, mountPath: /larder-test/part, subPathExpr: $(PART), readOnly: true}}
    - {{name: config, mountPath: /larder-test/config}}
  volumes:
  - name: config
    configMap: {{name: app, items: [{{key: key, path: key}}, {{key: number, path: part/number}}]}}
"
    )
}

fn write(desk: &Desk, number: u32) {
    let next = desk.path().join("app.yaml.next");
    fs::write(&next, manifest(number)).unwrap();
    fs::rename(next, desk.path().join("app.yaml")).unwrap();
}

/// Opens the file in a loop, and checks that all of it is of one update. Prints each number that it sees for the first
/// time.
const READER: &str = r#"
use strict; $| = 1;
sub all { my ($path) = @_; local $/; open(my $file, '<', $path) or die "cannot open $path: $!\n"; return scalar <$file> }
my ($last, $opened) = (0, 0);
open(my $kept, '<', '/larder-test/key') or die "cannot open: $!\n";
print "ready\n";
while ($last < $ARGV[0]) {
    my $text = all('/larder-test/key'); $opened++;
    my ($number) = $text =~ /^(\d+) / or die "empty: '$text'\n";
    die "mixture: $text\n" if $text ne "$number " x (1 + ($number % 7) * 300);
    die "went back from $last to $number\n" if $number < $last;
    print "$number\n" if $number > $last;
    $last = $number;
    my $part = all('/larder-test/part/number');
    die "part is '$part'\n" if $part !~ /^\d+$/;
}
{ local $/; my $text = <$kept>; print "kept $text\n"; }
open(my $writable, '>', '/larder-test/part/number') and die "part can be written\n";
print "done\n";
"#;

#[test]
fn file_by_sub_path_follows_a_thousand_updates() {
    if !may_mount() {
        return;
    }
    let desk = Desk::with([("app.yaml", manifest(0).as_str()), ("read.pl", READER)]);
    let reader = desk.path().join("read.pl");
    let script = format!("exec perl {} {UPDATES}", reader.display());
    let mut running = Running::start(&desk, &[], &script);
    assert_eq!(running.line(), "ready");
    let mut seen = 0;
    for number in 1..=UPDATES {
        write(&desk, number);
        // Each update is waited for, so that there are a thousand of them.
        while seen < number {
            let line = running.line();
            seen = line
                .parse()
                .unwrap_or_else(|_| panic!("after {seen}: {line:?}"));
        }
    }
    let (rest, code) = running.end();
    assert_eq!(rest, "kept 0 \ndone\n");
    assert_eq!(code, Some(0));
    assert!(!Path::new("/larder-test").exists());
}

#[test]
fn hook_fires_when_the_sub_path_has_the_new_file() {
    if !may_mount() {
        return;
    }
    let desk = Desk::with([("app.yaml", manifest(1).as_str())]);
    let script = "trap 'cat /larder-test/key /larder-test/part/number; echo' HUP; trap 'exit 0' TERM; echo ready
        while :; do sleep 100 & wait $!; done";
    let mut running = Running::start(&desk, &["--on-change", "signal:HUP"], script);
    assert_eq!(running.line(), "ready");
    for number in [7, 14, 21] {
        write(&desk, number);
        assert_eq!(running.line(), format!("{number} {number}"));
    }
    running.signal(rustix::process::Signal::TERM);
    assert_eq!(running.end(), (String::new(), Some(0)));
}

#[test]
fn sub_path_that_is_gone_keeps_its_content() {
    if !may_mount() {
        return;
    }
    let desk = Desk::with([("app.yaml", manifest(7).as_str())]);
    let script = "trap 'cat /larder-test/key' HUP; trap 'exit 0' TERM; echo ready
        while :; do sleep 100 & wait $!; done";
    let mut running = Running::with_errors(&desk, &["--on-change", "signal:HUP"], script);
    assert_eq!(running.line(), "ready");
    let without = manifest(8).replace("{key: key, path: key}, ", "");
    fs::write(desk.path().join("app.yaml"), without).unwrap();
    assert_eq!(
        running.error_line(),
        "larder: /larder-test/key keeps its content until a restart: volume config has no key anymore"
    );
    running.signal(rustix::process::Signal::TERM);
    assert_eq!(running.end(), ("7 ".to_owned(), Some(0)));
}

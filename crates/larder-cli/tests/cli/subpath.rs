//! Files and directories that are mounted by subPath follow their volume: of `larder exec`, and of an agent's pods.

use std::{collections::BTreeMap, path::Path, process::Command};

use larder_e2e::rounds;

use crate::{
    Desk,
    containers::{self, Container},
    exec::{Running, may_mount, web_pod},
    run::{Agent, config_map, desk, put, status, until, volume},
};

/// Times `LARDER_ROUNDS`.
const UPDATES: usize = 20;

/// The content of the file: longer and shorter in turn, so that a mixture shows.
fn content(number: u32) -> String {
    format!("{number} ").repeat(1 + (number as usize % 7) * 300)
}

/// A pod with a file and a directory by subPath, one of them by subPathExpr.
fn manifest(number: u32) -> String {
    let content = content(number);
    format!(
        "{{apiVersion: v1, kind: ConfigMap, metadata: {{name: app}}, data: {{key: '{content}', number: '{number}'}}}}
---
{}",
        web_pod(
            "env: [{name: PART, value: part}], volumeMounts: [
    {name: config, mountPath: /larder-test/key, subPath: key},
    {name: config, mountPath: /larder-test/part, subPathExpr: $(PART), readOnly: true},
    {name: config, mountPath: /larder-test/config}]",
            "{name: config, configMap: {
    name: app, items: [{key: key, path: key}, {key: number, path: part/number}]}}",
        )
    )
}

fn write(desk: &Desk, number: u32) {
    desk.replace("app.yaml", &manifest(number));
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
fn file_by_sub_path_follows_each_of_many_updates() {
    if !may_mount() {
        return;
    }
    let updates = rounds(UPDATES).try_into().unwrap();
    let desk = Desk::with([("app.yaml", manifest(0).as_str()), ("read.pl", READER)]);
    let reader = desk.path().join("read.pl");
    let script = format!("exec perl {} {updates}", reader.display());
    let mut running = Running::start(&desk, &[], &script);
    assert_eq!(running.line(), "ready");
    let mut seen = 0;
    for number in 1..=updates {
        write(&desk, number);
        // Each update is waited for, so that the reader sees every one.
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
    desk.replace("app.yaml", &without);
    assert_eq!(
        running.error_line(),
        "larder: /larder-test/key keeps its content until a restart: volume config has no key anymore"
    );
    running.signal(rustix::process::Signal::TERM);
    assert_eq!(running.end(), ("7 ".to_owned(), Some(0)));
}

/// Runs a command under a filter that lets `move_mount` beneath another mount fail as on a kernel before Linux 6.5:
/// with EINVAL, as for any flag that it does not know.
const OLD_KERNEL: &str = r#"
use strict;
chomp(my $machine = `uname -m`);
my %prctl = (x86_64 => 157, aarch64 => 167);
my $prctl = $prctl{$machine} or die "unknown machine $machine\n";
my ($move_mount, $beneath, $einval) = (429, 0x200, 22);
# Instructions: load, jump if equal, jump if a bit is set, return.
my @filter = (
    [0x20, 0, 0, 0],
    [0x15, 0, 3, $move_mount],
    [0x20, 0, 0, 16 + 4 * 8],
    [0x45, 0, 1, $beneath],
    [0x06, 0, 0, 0x00050000 | $einval],
    [0x06, 0, 0, 0x7fff0000],
);
my $code = join '', map { pack('S C C L', @$_) } @filter;
my $program = pack('S x6 P', scalar @filter, $code);
my ($no_new_privileges, $seccomp, $mode_filter) = (38, 22, 2);
syscall($prctl, $no_new_privileges, 1, 0, 0, 0) == 0 or die "no_new_privs: $!\n";
syscall($prctl, $seccomp, $mode_filter, $program, 0, 0) == 0 or die "seccomp: $!\n";
exec @ARGV or die "exec: $!\n";
"#;

// subpath 15
#[test]
fn old_kernel_keeps_the_file_and_one_line_says_so_while_hooks_fire() {
    if !may_mount() || !cfg!(any(target_arch = "x86_64", target_arch = "aarch64")) {
        return;
    }
    let desk = Desk::with([("app.yaml", manifest(1).as_str()), ("old.pl", OLD_KERNEL)]);
    let script = "trap 'cat /larder-test/config/part/number /larder-test/part/number; cat /larder-test/key; echo' HUP
        trap 'exit 0' TERM; echo ready; while :; do sleep 100 & wait $!; done";
    let mut running = Running::under(
        &["perl", "old.pl"],
        &desk,
        &["-f", "app.yaml", "--on-change", "signal:HUP"],
        script,
    );
    assert_eq!(running.line(), "ready");
    let old = content(1);
    for number in [7, 14, 21] {
        write(&desk, number);
        // The volume has the new content, what is mounted by subPath the old one.
        assert_eq!(running.line(), format!("{number}1{}", old.trim_end()));
    }
    running.signal(rustix::process::Signal::TERM);
    let expected = "larder: /larder-test/key keeps its content until a restart: replacing a mount needs Linux 6.5 or later\n";
    assert_eq!(running.errors(), expected, "one line in all");
}

// subpath 15
#[tokio::test]
async fn agent_on_an_old_kernel_says_why_the_mount_keeps_its_content() {
    if !containers::permitted() || !cfg!(any(target_arch = "x86_64", target_arch = "aarch64")) {
        return;
    }
    let desk = desk();
    desk.replace("old.pl", OLD_KERNEL);
    let web = "apiVersion: v1
kind: Pod
metadata: {name: web, annotations: {larder.dev/subpath-updates: 'true'}}
spec:
  volumes: [{name: cfg, configMap: {name: app, items: [{key: a, path: d/a}]}}]
  containers: [{name: main, image: i, volumeMounts: [{name: cfg, mountPath: /etc/larder-test, subPath: d}]}]
";
    put(&desk, "web.yaml", web);
    let mut command = Command::new("perl");
    command
        .env_clear()
        .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
        .args(["old.pl", env!("CARGO_BIN_EXE_larder")]);
    let mut agent = Agent::spawn(&desk, command, "--manifests m --node-name n1");
    agent.summary();
    let directory = volume(&desk, "web").join("d");
    let command = "sh -c 'echo ready; exec sleep 1000'";
    let mounts = [(&*directory, "/etc/larder-test")];
    let mut container = Container::start(&mounts, &BTreeMap::new(), command);
    assert_eq!(container.line(), "ready");
    desk.replace("m/app.yaml", &config_map("app", "a: '2', b: '2'"));
    until("the reason", || {
        let mount = &status(&desk)["pods"][0]["volumes"][0]["subPaths"][0];
        mount["state"] == "pinned"
            && mount["reason"] == "replacing a mount needs Linux 6.5 or later"
    })
    .await;
}

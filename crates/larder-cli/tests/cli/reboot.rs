//! The recipes for services of a machine, under systemd as process 1, across a reboot.
//!
//! The machine is a set of namespaces: it shares `/usr` with this one, and has an `/etc` and a `/var` of its own that
//! outlive a boot, and a `/run` that does not. A reboot is what a power failure is: process 1 is killed.

use std::{
    fs::{self, File},
    io::Write as _,
    path::Path,
    process::{Child, Command, Output, Stdio},
    time::Duration,
};

use larder_e2e::ScratchDir;
use rustix::process::{Pid, Signal, kill_process};

use crate::{
    machines,
    recipes::{Blocks, has_nginx},
};

const BOOT: &str = include_str!("reboot/boot.sh");
const PACKAGING: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../packaging");
const INSTALL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/install.md");

/// Where this machine keeps its control groups for systemd, if it has none of version 2.
const HIERARCHY: &str = "/sys/fs/cgroup/systemd";

/// Longest wait for a machine to be in a state.
const PATIENCE: Duration = Duration::from_mins(1);

/// A machine with the package installed. Dropped, it is gone.
struct Machine {
    folder: ScratchDir,
    /// The control group around it, below [`HIERARCHY`].
    group: String,
    power: Option<Power>,
}

/// A running machine.
struct Power {
    /// The parent of its first process.
    around: Child,
    /// systemd, as this machine sees it.
    init: Pid,
}

impl Machine {
    fn new() -> Self {
        let folder = ScratchDir::with_prefix("larder-reboot-").unwrap();
        fs::write(folder.path().join("boot"), BOOT).unwrap();
        let group = folder
            .path()
            .file_name()
            .unwrap()
            .to_str()
            .unwrap()
            .to_owned();
        let mut machine = Self {
            folder,
            group,
            power: None,
        };
        // Of what this machine has installed, only nginx shall run there.
        machine.write("/etc/machine-id", "0123456789abcdef0123456789abcdef\n");
        let upper = machine.folder.path().join("etc.upper");
        for directory in ["multi-user", "timers", "getty", "sysinit", "network-online"] {
            let hidden = upper.join(format!("systemd/system/{directory}.target.wants"));
            fs::create_dir_all(&hidden).unwrap();
            rustix::fs::setxattr(
                &hidden,
                "trusted.overlay.opaque",
                b"y",
                rustix::fs::XattrFlags::empty(),
            )
            .unwrap();
        }
        for unit in ["larder", "nginx"] {
            let link = upper.join(format!(
                "systemd/system/multi-user.target.wants/{unit}.service"
            ));
            std::os::unix::fs::symlink(format!("/usr/lib/systemd/system/{unit}.service"), link)
                .unwrap();
        }
        fs::create_dir_all(upper.join("larder/manifests")).unwrap();
        fs::copy(
            Path::new(PACKAGING).join("agent.yaml"),
            upper.join("larder/agent.yaml"),
        )
        .unwrap();
        machine.boot();
        machine
    }

    /// A file of the stopped machine.
    fn write(&self, path: &str, text: &str) {
        let (directory, rest) = path.trim_start_matches('/').split_once('/').unwrap();
        let path = self
            .folder
            .path()
            .join(format!("{directory}.upper"))
            .join(rest);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn boot(&mut self) {
        let group = Path::new(HIERARCHY).join(&self.group);
        let enter = if Path::new(HIERARCHY).exists() {
            fs::create_dir_all(&group).unwrap();
            format!("echo $$ > '{}/cgroup.procs'; ", group.display())
        } else {
            String::new()
        };
        let line = format!(
            "{enter}exec unshare --mount --pid --fork --kill-child --uts --ipc --net --cgroup bash \"$here/boot\""
        );
        let log = File::create(self.folder.path().join("log")).unwrap();
        let around = Command::new("bash")
            .args(["-c", &line])
            .env_clear()
            .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
            .env("here", self.folder.path())
            .env("larder", env!("CARGO_BIN_EXE_larder"))
            .env("packaging", PACKAGING)
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap();
        let parent = around.id();
        let init = self.until("the machine boots", || child(parent, "systemd"));
        let init = Pid::from_raw(init.cast_signed()).unwrap();
        self.power = Some(Power { around, init });
        self.until("systemd answers", || {
            let state = self.execute("systemctl is-system-running --wait");
            matches!(state.stdout.trim_ascii(), b"running" | b"degraded").then_some(())
        });
    }

    /// Everything in memory is lost.
    fn cut_power(&mut self) {
        let Some(mut power) = self.power.take() else {
            return;
        };
        let _ = kill_process(power.init, Signal::KILL);
        let _ = power.around.wait();
    }

    fn execute(&self, command: &str) -> Output {
        let init = self.power.as_ref().unwrap().init;
        Command::new("nsenter")
            .arg(format!("--target={init}"))
            .args([
                "--mount", "--pid", "--uts", "--ipc", "--net", "--root", "--wd", "bash", "-c",
                command,
            ])
            .env_clear()
            .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
            .env("HOME", "/root")
            .output()
            .unwrap()
    }

    #[track_caller]
    fn run(&self, command: &str) {
        let output = self.execute(command);
        assert!(
            output.status.success(),
            "{command}: {output:?}\n{}",
            self.log()
        );
    }

    /// Adds the text to the file at this absolute path.
    fn add(&self, path: &str, text: &str) {
        let init = self.power.as_ref().unwrap().init;
        let mut child = Command::new("nsenter")
            .arg(format!("--target={init}"))
            .args(["--mount", "--root", "--wd", "bash", "-c"])
            .arg(format!(
                "mkdir -p \"$(dirname '{path}')\" && cat >> '{path}'"
            ))
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        child
            .stdin
            .take()
            .unwrap()
            .write_all(text.as_bytes())
            .unwrap();
        assert!(child.wait().unwrap().success(), "{path}");
    }

    fn until_runs(&self, command: &str) {
        self.until(command, || {
            self.execute(command).status.success().then_some(())
        });
    }

    #[track_caller]
    fn until<T>(&self, what: &str, mut ready: impl FnMut() -> Option<T>) -> T {
        let start = tokio::time::Instant::now();
        loop {
            if let Some(found) = ready() {
                return found;
            }
            assert!(start.elapsed() < PATIENCE, "{what}\n{}", self.log());
            pause();
        }
    }

    fn log(&self) -> String {
        let mut log = fs::read_to_string(self.folder.path().join("log")).unwrap_or_default();
        if self.power.is_some() {
            let journal = self
                .execute("journalctl --no-pager --unit=larder --unit=nginx --unit=app | tail -30");
            log += &String::from_utf8_lossy(&journal.stdout);
        }
        log
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        self.cut_power();
        let group = Path::new(HIERARCHY).join(&self.group);
        // Below it are those of the units. All are empty by now.
        let _ = Command::new("find")
            .arg(group)
            .args(["-depth", "-type", "d", "-delete"])
            .stderr(Stdio::null())
            .status();
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "a machine is asked again and again until it is ready"
)]
fn pause() {
    std::thread::sleep(Duration::from_millis(50));
}

/// A child of the process that runs this program.
fn child(parent: u32, name: &str) -> Option<u32> {
    let children = fs::read_to_string(format!("/proc/{parent}/task/{parent}/children")).ok()?;
    let mut children = children.split_whitespace();
    let child = children.find(|child| {
        let found = fs::read_to_string(format!("/proc/{child}/comm"));
        found.is_ok_and(|found| found.trim_end() == name)
    });
    child?.parse().ok()
}

/// Whether machines can be made here: as root, with systemd. CI must be able to where it is root.
fn permitted() -> bool {
    let has = |path| Path::new(path).exists();
    let is_root = rustix::process::geteuid().is_root();
    is_root
        && has("/lib/systemd/systemd")
        && has("/lib/systemd/system/nginx.service")
        && has_nginx()
}

#[test]
fn service_with_its_files_from_larder_survives_a_reboot() {
    if !permitted() {
        return;
    }
    let recipe = Blocks::of("nginx over TLS under systemd");
    let mut machine = Machine::new();
    for (path, text) in &recipe.files {
        machine.add(path, text);
    }
    machine.run(&format!("cd /var; {}", recipe.commands[0]));
    machine.until_runs("larder status --wait web/nginx --timeout 1s");
    machine.run("systemctl start nginx");
    machine.run(&recipe.commands[1]);
    let served = |file: &str| {
        format!(
            "openssl s_client -connect 127.0.0.1:{} </dev/null | openssl x509 | cmp - '{file}'",
            recipe.port
        )
    };
    machine.until_runs(&served("/var/tls.crt"));
    machine.cut_power();
    machine.boot();
    machine.run("systemctl is-active nginx larder");
    machine.run(&served("/var/tls.crt"));
    // The second call: a renewal after the reboot, and one while nginx is stopped, with which it then starts.
    machine.run(&format!("cd /var; {}", recipe.commands[0]));
    machine.until_runs(&served("/var/tls.crt"));
    machine.run("systemctl stop nginx");
    machine.run(&format!("cd /var; {}", recipe.commands[0]));
    machine.run("systemctl start nginx");
    machine.until_runs(&served("/var/tls.crt"));
}

#[test]
fn larder_exec_runs_a_service_across_a_reboot() {
    if !permitted() {
        return;
    }
    let recipe = Blocks::in_page(
        INSTALL,
        "A service that reads variables, or that restarts by itself",
    );
    let mut machine = Machine::new();
    let (path, unit) = &recipe.files[0];
    machine.add(path, unit);
    machine.add(
        "/usr/local/bin/app",
        "#!/bin/sh\necho \"$LEVEL $(id -u) $(cat /etc/app/key)\" > /tmp/seen; exec sleep infinity\n",
    );
    machine.run("chmod 755 /usr/local/bin/app");
    machine
        .run("systemctl daemon-reload && systemctl enable app && systemctl start --no-block app");
    machine.until_runs("systemctl list-jobs | grep -q 'larder-wait@web-app.service .* running'");
    machine.add(
        "/etc/larder/manifests/app.yaml",
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: app, namespace: web}\ndata: {LEVEL: info, key: one}\n---\n\
         apiVersion: v1\nkind: Pod\nmetadata: {name: app, namespace: web}\nspec:\n  securityContext: {runAsUser: 33}\n  \
         containers:\n  - {name: app, image: none, envFrom: [{configMapRef: {name: app}}], volumeMounts: [{name: app, mountPath: /etc/app}]}\n  \
         volumes: [{name: app, configMap: {name: app}}]\n",
    );
    machine.until_runs("grep -qx 'info 33 one' /tmp/seen");
    machine.run(
        "sed -i 's/LEVEL: info, key: one/LEVEL: debug, key: two/' /etc/larder/manifests/app.yaml",
    );
    machine.until_runs("grep -qx 'debug 33 two' /tmp/seen");
    machine.cut_power();
    machine.boot();
    machine.until_runs("systemctl is-active app");
    machine.run("runuser -u www-data -- larder status 2>&1 | grep 'answers root only'");
    machine.run("systemctl show larder --property=StartLimitIntervalUSec | grep -x '.*=0'");
}

const LOGIN: &str = "apiVersion: v1\nkind: Secret\nmetadata: {name: login}\nstringData: {a: one}\n---\n\
    apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec:\n  containers: [{name: web, image: none, volumeMounts: [{name: login, mountPath: /login}]}]\n  \
    volumes: [{name: login, secret: {secretName: login}}]\n";

#[test]
fn manifest_is_a_credential_of_the_service() {
    if !permitted() {
        return;
    }
    let recipe = Blocks::in_page(
        machines::PAGE,
        "Secrets as encrypted credentials of systemd",
    );
    let mut machine = Machine::new();
    machine.add("/var/login.yaml", LOGIN);
    let commands =
        recipe.commands[0].replace("systemctl edit larder\n", "systemctl daemon-reload\n");
    assert_ne!(commands, recipe.commands[0]);
    // In place of an editor.
    let drop_in = "/etc/systemd/system/larder.service.d/override.conf";
    machine.add(drop_in, &recipe.others[0]);
    machine.run(&format!(
        "set -e; cd /var; {commands} systemctl restart larder"
    ));
    let delivered = |value: &str| {
        format!(
            "grep -qx {value} /run/larder/by-name/default/web/volumes/kubernetes.io~secret/login/a"
        )
    };
    machine.run(&delivered("one"));
    // A reload does not see the credential, and a broken manifest is not its matter. A broken configuration is.
    machine.add("/etc/larder/manifests/broken.yaml", "kind: [");
    machine.run("systemctl reload larder");
    machine
        .run("rm /etc/larder/manifests/broken.yaml; echo 'onChnage: []' >> /etc/larder/agent.yaml");
    machine.run("! systemctl reload larder; sed -i /onChnage/d /etc/larder/agent.yaml");
    machine.add("/var/login.yaml", &LOGIN.replace("one", "two"));
    let encrypt = commands
        .lines()
        .find(|line| line.starts_with("systemd-creds"));
    machine.run(&format!(
        "cd /var; {} && systemctl restart larder",
        encrypt.unwrap()
    ));
    machine.run(&delivered("two"));
    machine.cut_power();
    machine.boot();
    machine.run(&delivered("two"));
}

#[test]
fn checkout_is_pulled_by_a_timer() {
    if !permitted() {
        return;
    }
    let recipe = Blocks::in_page(machines::PAGE, "A git checkout that each machine pulls");
    let mut machine = Machine::new();
    for (path, text) in &recipe.files {
        machine.add(path, text);
    }
    let git = "git -C /var/upstream -c user.name=n -c user.email=e";
    machine.run("git init -qb main /var/upstream");
    machine.add("/var/upstream/login.yaml", LOGIN);
    machine.run(&format!(
        "cd /var/upstream; git add . && {git} commit -qm one"
    ));
    let clone = recipe.commands[0].replace("/srv/manifests.git", "/var/upstream");
    machine.run(&clone);
    machine.run(&recipe.commands[1]);
    machine.until_runs("larder status --wait default/web --timeout 1s");
    let timed = "systemctl show larder-manifests.timer --property=NextElapseUSecMonotonic | grep -v infinity";
    machine.run(timed);
    machine.run(&format!(
        "sed -i s/one/two/ /var/upstream/login.yaml; {git} commit -qam two"
    ));
    // As the timer does.
    machine.run("systemctl start larder-manifests");
    machine.until_runs(
        "grep -qx two /run/larder/by-name/default/web/volumes/kubernetes.io~secret/login/a",
    );
    machine.cut_power();
    machine.boot();
    machine.run(timed);
}

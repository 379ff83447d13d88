//! `larder ui`: access to the page, and its updates. `tests/browser` tests the page itself.

use std::{
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::TcpStream,
    process::{Child, Command, Stdio},
};

use rustix::process::Signal;

use crate::{
    Desk,
    run::{Agent, desk, pod, put},
};

/// A page that is ended with the test.
struct Ui {
    child: Child,
    /// `127.0.0.1:PORT`
    host: String,
    /// `/?token=…`
    path: String,
}

impl Ui {
    fn start(desk: &Desk) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_larder"))
            .args(["ui", "--root-dir", "root"])
            .current_dir(desk.path())
            .env_clear()
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut url = String::new();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        stdout.read_line(&mut url).unwrap();
        let rest = url.trim().strip_prefix("http://").unwrap();
        let (host, path) = rest.split_once('/').unwrap();
        Self {
            child,
            host: host.to_owned(),
            path: format!("/{path}"),
        }
    }

    fn send(&self, request: &str, headers: &str) -> TcpStream {
        let mut stream = TcpStream::connect(&self.host).unwrap();
        let text = format!("{request} HTTP/1.1\r\nconnection: close\r\n{headers}\r\n");
        stream.write_all(text.as_bytes()).unwrap();
        stream
    }

    /// The answer to a request with the page's own host.
    fn ask(&self, request: &str, headers: &str) -> String {
        self.ask_host(&self.host, request, headers)
    }

    fn ask_host(&self, host: &str, request: &str, headers: &str) -> String {
        let mut answer = String::new();
        let headers = format!("host: {host}\r\n{headers}");
        let mut stream = self.send(request, &headers);
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    /// Uses up the token; returns the path of the page, and the header with the cookie.
    fn session(&self) -> (String, String) {
        let answer = self.ask(&format!("GET {}", self.path), "");
        let (_, cookie) = answer.split_once("set-cookie: ").expect(&answer);
        let (cookie, attributes) = cookie.split_once(';').unwrap();
        let attributes = attributes.lines().next().unwrap();
        let home = attributes.strip_prefix(" HttpOnly; SameSite=Strict; Path=");
        assert!(
            answer.contains(&format!("data-live=\"{}\"", home.unwrap())),
            "{answer}"
        );
        (home.unwrap().to_owned(), format!("cookie: {cookie}\r\n"))
    }

    /// The events of the page.
    fn events(&self, (home, session): &(String, String)) -> impl Iterator<Item = String> + use<> {
        let headers = format!("host: {}\r\n{session}", self.host);
        let stream = self.send(&format!("GET {home}events"), &headers);
        let lines = BufReader::new(stream).lines().map(Result::unwrap);
        lines.filter_map(|line| Some(line.split_once("data: ")?.1.to_owned()))
    }
}

impl Drop for Ui {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[track_caller]
fn check_status(answer: &str, status: &str) {
    assert!(
        answer.starts_with(&format!("HTTP/1.1 {status} ")),
        "{answer}"
    );
    // Every answer, also a refusal.
    for header in [
        "content-security-policy: default-src 'none'; connect-src 'self'; style-src 'sha256-",
        "x-content-type-options: nosniff",
        "referrer-policy: no-referrer",
        "cache-control: no-store",
        "frame-ancestors 'none'",
    ] {
        assert!(answer.contains(header), "{header}: {answer}");
    }
    assert!(!answer.contains("unsafe-inline"));
}

#[test]
fn only_the_first_browser_with_the_token_gets_in() {
    let desk = Desk::with([]);
    let ui = Ui::start(&desk);
    check_status(&ui.ask("GET /", ""), "401");
    check_status(&ui.ask("GET /?token=", ""), "401");
    check_status(&ui.ask("GET /events", ""), "401");
    let with_token = format!("GET {}", ui.path);
    check_status(&ui.ask_host("evil.example", &with_token, ""), "403");
    let foreign = "origin: http://evil.example\r\n";
    check_status(&ui.ask(&with_token, foreign), "403");
    check_status(&ui.ask(&with_token.replace("GET", "POST"), ""), "405");
    // None of these has used it up.
    let (home, session) = ui.session();
    let page = format!("GET {home}");
    check_status(&ui.ask(&with_token, ""), "401");
    check_status(&ui.ask(&page, &session), "200");
    check_status(&ui.ask(&page, ""), "401");
    check_status(&ui.ask(&page, &format!("{session}{foreign}")), "403");
    for method in ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"] {
        check_status(&ui.ask(&format!("{method} /"), &session), "405");
    }
    for path in ["/status", "/v1/pods", "/log-level", "/../etc/passwd"] {
        check_status(&ui.ask(&format!("GET {path}"), &session), "404");
    }
}

// Attack: a browser sends its cookies to each port of a host, so also to a server of another user of the machine.
#[test]
fn cookie_goes_to_a_path_that_other_servers_do_not_know() {
    let desk = Desk::with([]);
    let (one, other) = (Ui::start(&desk), Ui::start(&desk));
    let (home, session) = one.session();
    // 128 bits, and no other secret.
    assert_eq!(home.len(), 34, "{home}");
    assert!(
        !session.contains(home.trim_matches('/')) && !one.path.contains(home.trim_matches('/'))
    );
    assert_ne!(home, other.session().0);
    check_status(&one.ask(&format!("GET {home}events"), ""), "401");
}

#[test]
fn events_follow_the_agent_and_its_restart() {
    let desk = desk();
    let ui = Ui::start(&desk);
    let mut events = ui.events(&ui.session());
    let mut until = |words: &[&str]| {
        let is_wanted = |event: &String| words.iter().all(|word| event.contains(word));
        events.find(is_wanted).unwrap()
    };
    until(&["no agent answers"]);
    let mut agent = Agent::start(&desk);
    agent.summary();
    until(&["node n1: ", "Delivered"]);
    put(&desk, "other.yaml", &pod("other", "app"));
    // Only what has changed comes again.
    let event = until(&["/other"]);
    assert!(event.contains(r#""changed":"#), "{event}");
    agent.signal(Signal::TERM);
    until(&["no agent answers"]);
    drop(agent);
    let mut agent = Agent::start(&desk);
    agent.summary();
    until(&["node n1: "]);
    // A second page gets everything.
    let session = "cookie: none\r\n";
    check_status(&ui.ask("GET /events", session), "401");
}

#[test]
fn page_is_served_on_loopback_only() {
    let desk = Desk::with([]);
    for address in ["0.0.0.0:0", "192.0.2.1:0", ":0", "[::]:0"] {
        let run = desk.run(&format!("ui --root-dir root --listen {address}"));
        assert_eq!(run.code, 2, "{run:?}");
        assert!(run.stderr.contains("loopback"), "{run:?}");
    }
}

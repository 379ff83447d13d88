//! An application that records requests and answers them as it is told.

use std::{collections::BTreeMap, sync::Arc};

use parking_lot::Mutex;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    task::JoinSet,
};

/// One request.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    pub(crate) line: String,
    pub(crate) headers: BTreeMap<String, String>,
    pub(crate) body: String,
}

type Answer = Box<dyn Fn(&Seen) -> Option<Vec<u8>> + Send + Sync>;

/// Listens until it is dropped.
pub(crate) struct Application {
    pub(crate) port: u16,
    seen: Arc<Mutex<Vec<Seen>>>,
    answer: Arc<Mutex<Answer>>,
    _task: JoinSet<()>,
}

impl Application {
    /// Answers 200 to everything.
    pub(crate) async fn start() -> Self {
        Self::start_at(0).await
    }

    pub(crate) async fn start_at(port: u16) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", port)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let seen = Arc::new(Mutex::new(Vec::new()));
        let ok: Answer = Box::new(|_| Some(reply(200, &[], b"")));
        let answer = Arc::new(Mutex::new(ok));
        let mut task = JoinSet::new();
        let (log, reply) = (Arc::clone(&seen), Arc::clone(&answer));
        task.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                connections.spawn(serve(stream, Arc::clone(&log), Arc::clone(&reply)));
            }
        });
        Self {
            port,
            seen,
            answer,
            _task: task,
        }
    }

    /// Answers by `answer` from now on; `None` is no answer.
    pub(crate) fn answers(
        &self,
        answer: impl Fn(&Seen) -> Option<Vec<u8>> + Send + Sync + 'static,
    ) {
        *self.answer.lock() = Box::new(answer);
    }

    pub(crate) fn seen(&self) -> Vec<Seen> {
        self.seen.lock().clone()
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://127.0.0.1:{}{path}", self.port)
    }
}

/// An answer with headers and body.
pub(crate) fn reply(status: u16, headers: &[(&str, &str)], body: &[u8]) -> Vec<u8> {
    let mut head = format!("HTTP/1.1 {status} X\r\nContent-Length: {}\r\n", body.len());
    for (name, value) in headers {
        head = format!("{head}{name}: {value}\r\n");
    }
    head += "Connection: close\r\n\r\n";
    [head.as_bytes(), body].concat()
}

async fn serve(mut stream: TcpStream, seen: Arc<Mutex<Vec<Seen>>>, answer: Arc<Mutex<Answer>>) {
    let mut text = Vec::new();
    let head = loop {
        let mut buffer = [0; 4096];
        match stream.read(&mut buffer).await {
            Ok(0) | Err(_) => return,
            Ok(count) => text.extend_from_slice(&buffer[..count]),
        }
        let whole = String::from_utf8_lossy(&text).into_owned();
        if let Some((head, rest)) = whole.split_once("\r\n\r\n") {
            let length = head.lines().find_map(|line| {
                let (name, value) = line.split_once(": ")?;
                let is_length = name.eq_ignore_ascii_case("content-length");
                is_length.then(|| value.parse::<usize>().unwrap())
            });
            if rest.len() >= length.unwrap_or(0) {
                break (head.to_owned(), rest.to_owned());
            }
        }
    };
    let mut lines = head.0.lines();
    let request = Seen {
        line: lines.next().unwrap_or_default().to_owned(),
        headers: lines
            .filter_map(|line| line.split_once(": "))
            .map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned()))
            .collect(),
        body: head.1,
    };
    seen.lock().push(request.clone());
    let reply = (answer.lock())(&request);
    match reply {
        Some(reply) => {
            let _ = stream.write_all(&reply).await;
            let _ = stream.shutdown().await;
        }
        None => std::future::pending().await,
    }
}

//! Follows the agent: requests its status again after each change that its stream reports.

use std::{
    io,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use anyhow::{Context as _, bail};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncReadExt as _, BufReader},
    net::UnixStream,
    sync::watch,
    task::spawn_blocking,
    time::{sleep, timeout},
};

use super::view::{ChangeFeed, View};
use crate::{agent::AgentClient, output};

/// Time between two requests for the status without a change: ages grow.
const REFRESH: Duration = Duration::from_secs(5);
/// Pause before the agent is tried again.
const RETRY: Duration = Duration::from_millis(250);
/// Longest line of the stream: a change of a pod with thousands of volumes.
const MAX_LINE_BYTES: u64 = 16 << 20;

/// Publishes a view after each change, for as long as it runs.
pub(super) async fn follow(root_dir: PathBuf, views: watch::Sender<Arc<View>>) {
    let mut feed = ChangeFeed::default();
    loop {
        if let Err(error) = follow_once(&root_dir, &mut feed, &views).await {
            views.send_if_modified(|view| {
                let away = view.without_agent(&format!("{error:#}"));
                let is_news = **view != away;
                *view = Arc::new(away);
                is_news
            });
        }
        sleep(RETRY).await;
    }
}

/// Follows one agent until it ends.
async fn follow_once(
    root_dir: &Path,
    feed: &mut ChangeFeed,
    views: &watch::Sender<Arc<View>>,
) -> anyhow::Result<()> {
    let stream = AgentClient::new(root_dir)?.stream("/v1/changes")?;
    stream.set_nonblocking(true)?;
    let mut lines = BufReader::new(UnixStream::from_std(stream)?);
    let status = line(&mut lines).await?;
    if !status.contains(" 200 ") {
        bail!("the agent does not report changes (is it of another version of larder?)");
    }
    while !line(&mut lines).await?.trim_end().is_empty() {}
    loop {
        let root_dir = root_dir.to_owned();
        let asked = spawn_blocking(move || AgentClient::new(&root_dir)?.ask("/status")).await?;
        let status = asked?.context("the agent has no status")?;
        let now = output::now();
        feed.note(&status, now);
        views.send_replace(Arc::new(View::new(&status, feed, now)));
        // A read that is cut by the time is no loss: the line says nothing that the status does not.
        if let Ok(read) = timeout(REFRESH, line(&mut lines)).await {
            read?;
            // Changes that came together are one view.
            while lines.buffer().contains(&b'\n') {
                line(&mut lines).await?;
            }
        }
    }
}

async fn line(lines: &mut BufReader<UnixStream>) -> io::Result<String> {
    let mut line = Vec::new();
    let mut bounded = lines.take(MAX_LINE_BYTES);
    bounded.read_until(b'\n', &mut line).await?;
    if line.last() != Some(&b'\n') {
        let ended = "the agent has ended";
        return Err(io::Error::new(io::ErrorKind::UnexpectedEof, ended));
    }
    Ok(String::from_utf8_lossy(&line).into_owned())
}

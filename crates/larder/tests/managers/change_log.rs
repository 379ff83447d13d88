//! The log of changes names objects and keys, and no value.

use std::{io, sync::Arc, time::Duration};

use larder::{ChangeLog, ConfigMapManager, ManagerConfig, Strategy};
use parking_lot::Mutex;
use tokio::time::sleep;
use tracing::subscriber::set_default;
use tracing_subscriber::fmt::MakeWriter;

use crate::{
    cluster::Cluster,
    scripted::{pod_with, value},
};

/// The log of one test.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl MakeWriter<'_> for Log {
    type Writer = Self;

    fn make_writer(&self) -> Self {
        self.clone()
    }
}

async fn check(strategy: Strategy, change_log: ChangeLog, expected: &[&str]) {
    let log = Log::default();
    let subscriber = tracing_subscriber::fmt().with_ansi(false).without_time();
    // Of this thread, which runs the manager, too.
    let _log = set_default(subscriber.with_writer(log.clone()).finish());
    let cluster = Cluster::new();
    cluster.set("a", "c4n4ry-one", false);
    let config = ManagerConfig::default()
        .strategy(strategy)
        .change_log(change_log);
    let manager = ConfigMapManager::new(cluster.client(), &config).unwrap();
    manager.register_pod(&pod_with("p1", &["a"]));
    assert_eq!(value(&manager, "a").await, "c4n4ry-one");
    cluster.set("a", "c4n4ry-two", false);
    // A copy of the strategy Cache is old by then.
    sleep(Duration::from_mins(2)).await;
    assert_eq!(value(&manager, "a").await, "c4n4ry-two");
    let text = String::from_utf8(log.0.lock().clone()).unwrap();
    let lines: Vec<_> = text
        .lines()
        .filter(|line| line.contains("changed"))
        .collect();
    assert_eq!(lines.len(), expected.len(), "{strategy}: {text}");
    for (line, expected) in lines.iter().zip(expected) {
        assert!(line.ends_with(expected), "{strategy}: {line}");
    }
    assert!(!text.contains("c4n4ry"), "{text}");
}

#[tokio::test(start_paused = true)]
async fn a_change_is_logged_with_its_keys_and_no_value() {
    for strategy in [Strategy::Watch, Strategy::Cache] {
        check(
            strategy,
            ChangeLog::Keys,
            &["changed object=ConfigMap n/a keys=k"],
        )
        .await;
        check(strategy, ChangeLog::Off, &[]).await;
    }
}

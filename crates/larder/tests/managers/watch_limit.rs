//! More objects than any node needs (B11): reads of what is not known yet fail, and say why.

use larder::ConfigMapManager;
use tokio::time::{Duration, sleep};

use crate::{cluster::Cluster, scripted::pod_with};

/// Most objects that a manager watches.
const LIMIT: usize = 50_000;

#[tokio::test(start_paused = true)]
async fn objects_beyond_an_absurd_number_wait_for_others_to_go() {
    let cluster = Cluster::new();
    cluster.set("late", "one", false);
    cluster.set_down(true);
    let manager = ConfigMapManager::watching(cluster.client());
    let names: Vec<_> = (0..LIMIT).map(|number| format!("a{number}")).collect();
    let names: Vec<_> = names.iter().map(String::as_str).collect();
    manager.register_pod(&pod_with("p", &names));
    manager.register_pod(&pod_with("q", &["late"]));
    let error = manager.get("n", "late").await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "cannot watch configmap n/late: more than 50000 are referenced"
    );
    assert!(error.is_retryable());
    cluster.set_down(false);
    manager.unregister_pod(&pod_with("p", &[]));
    sleep(Duration::from_mins(2)).await;
    assert_eq!(manager.get("n", "late").await.unwrap().data["k"], "one");
}

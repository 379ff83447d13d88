//! The embedded API server answers as a real one does.

mod corpus;

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    fs,
    io::{self, Write as _},
    path::Path,
};

use larder_e2e::Server;

const ANSWERS: &str = "testdata/answers.json";

/// Records the answers of a real server: `LARDER_RECORD=1 KUBEBUILDER_ASSETS=… cargo test -p larder-e2e --test
/// conformance`.
#[tokio::test]
async fn answers_match_those_of_a_real_server() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    let yaml = fs::read_to_string(folder.join("testdata/requests.yaml")).unwrap();
    let steps = corpus::requests(&yaml).unwrap();
    let server = Server::start().await.unwrap();
    let got = corpus::play(&server.client().await.unwrap(), &steps).await;

    if std::env::var_os("LARDER_RECORD").is_some() {
        let mut text = serde_json::to_string_pretty(&got).unwrap();
        text.push('\n');
        fs::write(folder.join(ANSWERS), text).unwrap();
        return;
    }

    let recorded = fs::read_to_string(folder.join(ANSWERS)).unwrap();
    let recorded: BTreeMap<String, corpus::Answer> = serde_json::from_str(&recorded).unwrap();
    let mut report = String::new();
    let mut differing = 0;
    let mut without_storage = 0;
    for step in &steps {
        if corpus::lacks_storage(step, &got[&step.name]) {
            without_storage += 1;
            continue;
        }
        let found = match recorded.get(&step.name) {
            Some(answer) => corpus::differences(step, answer, &got[&step.name]),
            None => vec!["was never recorded".to_owned()],
        };
        if !found.is_empty() {
            differing += 1;
            let _ = writeln!(
                report,
                "{} ({})\n  {}",
                step.name,
                step.request,
                found.join("\n  ")
            );
        }
    }
    // Straight to the stream, which no test runner holds back.
    let agreeing = steps.len() - differing - without_storage;
    let mut rate = format!("{agreeing} of {} answers agree\n", steps.len());
    if without_storage > 0 {
        let _ = writeln!(
            rate,
            "{without_storage} are for a newer etcd than this server's"
        );
    }
    io::stderr().write_all(rate.as_bytes()).unwrap();
    assert!(report.is_empty(), "{report}");
}

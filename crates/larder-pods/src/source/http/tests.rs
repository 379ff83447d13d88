//! The source over a transport that answers from a script, with time paused.

use std::{collections::VecDeque, sync::Arc};

use http::{HeaderValue, header};
use http_body_util::{BodyExt as _, Full, StreamBody};
use parking_lot::Mutex;
use tokio_util::task::AbortOnDropHandle;
use tower::service_fn;

use super::*;
use crate::{
    FullName,
    source::{SourceEvent, SourceProblem},
    static_pod::ApiReferences,
};

const URL: &str = "https://user:password@h.example/m/pods.yaml?token=t0ken";

fn manifest(name: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}}}\nspec: {{containers: [{{name: c, image: i}}]}}\n"
    )
}

/// Responses: status, body, and location.
type Answers = Vec<(u16, String, Option<&'static str>)>;

/// Requests: URL, and the header if it was sent.
type Requests = Vec<(String, Option<String>)>;

fn ok(body: impl Into<String>) -> (u16, String, Option<&'static str>) {
    (200, body.into(), None)
}

/// A source that gets scripted answers in turn and then connection errors; its reports and its requests.
struct UrlFixture {
    reports: mpsc::Receiver<SourceReport>,
    requests: Arc<Mutex<Requests>>,
    /// Ends with the fixture.
    _source: AbortOnDropHandle<()>,
}

impl UrlFixture {
    fn new(answers: Answers) -> Self {
        Self::remembering(answers, None)
    }

    fn remembering(answers: Answers, copies: Option<PathBuf>) -> Self {
        let answers = Arc::new(Mutex::new(VecDeque::from(answers)));
        let requests = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&requests);
        let service = service_fn(move |request: Request<Empty<Bytes>>| {
            let header = request.headers().get("x-auth");
            let header = header.map(|value| value.to_str().unwrap().to_owned());
            seen.lock().push((request.uri().to_string(), header));
            let answer = answers.lock().pop_front();
            async move {
                let (code, body, location) = answer.ok_or("connection refused")?;
                let body = Full::new(Bytes::from(body))
                    .map_err(BoxError::from)
                    .boxed_unsync();
                let mut response = Response::new(body);
                *response.status_mut() = StatusCode::from_u16(code).unwrap();
                if let Some(location) = location {
                    response
                        .headers_mut()
                        .insert(header::LOCATION, HeaderValue::from_static(location));
                }
                Ok::<_, BoxError>(response)
            }
        });
        let headers = BTreeMap::from([("X-Auth".to_owned(), vec!["s3cret".to_owned()])]);
        let source = HttpSource::with_service(
            URL,
            &headers,
            Duration::from_secs(20),
            StaticPods::new("n1", ApiReferences::Refuse),
            BoxCloneSyncService::new(service),
        );
        let mut source = source.unwrap();
        if let Some(copies) = copies {
            source = source.remembering(copies);
        }
        let debug = format!("{source:?}");
        assert!(
            !debug.contains("s3cret") && !debug.contains("t0ken"),
            "{debug}"
        );
        let (sender, reports) = mpsc::channel(16);
        #[expect(clippy::disallowed_methods, reason = "the fixture owns the task")]
        let task = tokio::spawn(source.run(sender));
        Self {
            reports,
            requests,
            _source: AbortOnDropHandle::new(task),
        }
    }

    async fn check(&mut self, expected: &[&str]) {
        for expected in expected {
            let report = self.reports.recv().await.unwrap();
            let text = match report.event {
                SourceEvent::Pods(SourcePods::All(pods)) => {
                    let names: Vec<_> = pods
                        .iter()
                        .map(|pod| FullName::of(&pod.metadata).name.to_string())
                        .collect();
                    format!("pods [{}]", names.join(" "))
                }
                SourceEvent::Pods(other) => panic!("{other:?}"),
                SourceEvent::Problems(problems) => match &problems[..] {
                    [] => "well".to_owned(),
                    [problem] => format!("{problem}{}", kept(problem)),
                    more => panic!("{more:?}"),
                },
            };
            assert!(text.contains(expected), "{text:?} lacks {expected:?}");
            for secret in ["password", "t0ken", "s3cret"] {
                assert!(!text.contains(secret), "{text}");
            }
        }
    }
}

/// The pods that the problem keeps, and since when; empty if there are none.
fn kept(problem: &SourceProblem) -> String {
    let names = problem.kept.iter().map(|kept| kept.name.to_string());
    let names: Vec<_> = names.collect();
    if names.is_empty() {
        return String::new();
    }
    let names = names.join(" ");
    format!("; keeps [{names}] since {:?}", problem.since.elapsed())
}

#[tokio::test(start_paused = true)]
async fn pods_are_kept_since_the_last_good_response() {
    let misspelled = manifest("a").replace("image: i", "image: j, comand: [x]");
    let mut fixture = UrlFixture::new(vec![
        ok(manifest("a")),
        ok(manifest("a")),
        (503, String::new(), None),
        ok(manifest("a")),
        ok(misspelled),
        ok(manifest("b")),
        ok("garbage"),
        ok(""),
    ]);
    let expected = [
        "pods [a-n1]",
        "unexpected status 503 Service Unavailable, expected 200 OK; keeps [a-n1] since 20s",
        "well",
        // As it was.
        "pods [a-n1]",
        "; keeps [a-n1] since 20s",
        "pods [b-n1]",
        "well",
        "; keeps [b-n1] since 20s",
        "pods []",
        "the response is empty",
        "no response: connection refused",
    ];
    fixture.check(&expected).await;
}

#[tokio::test(start_paused = true)]
async fn a_refused_request_reports_no_pods() {
    // managers 68
    let mut fixture = UrlFixture::new(vec![]);
    fixture
        .check(&["https://h.example/m/pods.yaml: no response: connection refused"])
        .await;
    // Reported once.
    time::sleep(Duration::from_mins(5)).await;
    assert!(fixture.reports.try_recv().is_err());
}

#[tokio::test(start_paused = true)]
async fn an_unchanged_body_is_one_report_and_headers_are_sent() {
    // managers 68
    let mut fixture = UrlFixture::new(vec![
        ok(manifest("a")),
        ok(manifest("a")),
        ok(manifest("b")),
    ]);
    fixture.check(&["pods [a-n1]", "pods [b-n1]"]).await;
    let requests = fixture.requests.lock().clone();
    assert_eq!(requests.len(), 3);
    let header = Some("s3cret".to_owned());
    assert!(
        requests.iter().all(|request| request.1 == header),
        "{requests:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn after_an_empty_body_the_old_body_brings_pods_back() {
    // managers 68
    let mut fixture = UrlFixture::new(vec![ok(manifest("a")), ok(""), ok(manifest("a"))]);
    let empty = "the response is empty";
    fixture
        .check(&["pods [a-n1]", "pods []", empty, "pods [a-n1]", "well"])
        .await;
}

#[tokio::test(start_paused = true)]
async fn pods_of_an_earlier_run_stay_until_a_good_response() {
    let root = tempfile::TempDir::new().unwrap();
    let start = |answers| UrlFixture::remembering(answers, Some(root.path().join("copies")));
    let list = ok(
        "apiVersion: v1\nkind: PodList\nitems:\n- metadata: {name: a}\n  spec: {containers: [{name: c, image: i}]}\n",
    );
    start(vec![list]).check(&["pods [a-n1]"]).await;
    for entry in std::fs::read_dir(root.path().join("copies")).unwrap() {
        let path = entry.unwrap().path();
        let text = path.display().to_string() + &std::fs::read_to_string(&path).unwrap();
        assert!(
            !text.contains("password") && !text.contains("t0ken"),
            "{text}"
        );
    }
    let mut again = start(vec![
        (503, String::new(), None),
        ok("garbage"),
        ok(manifest("b")),
    ]);
    let trouble = ["unexpected status 503", "holds no static pods"];
    again.check(&["pods [a-n1]", trouble[0], trouble[1]]).await;
    again.check(&["pods [b-n1]", "well"]).await;
    // An empty answer means what it says, now and at the next start.
    start(vec![ok("")])
        .check(&["pods []", "the response is empty"])
        .await;
    let mut silent = start(vec![]);
    silent.check(&["no response"]).await;
    time::sleep(Duration::from_mins(1)).await;
    assert!(silent.reports.try_recv().is_err());
}

#[tokio::test(start_paused = true)]
async fn a_list_gives_all_its_pods_or_none() {
    // managers 68
    let item = |name: &str, more: &str| {
        format!(
            "- metadata: {{name: {name}}}\n  spec: {{containers: [{{name: c, image: i}}]{more}}}\n"
        )
    };
    let list = |items: String| ok(format!("apiVersion: v1\nkind: PodList\nitems:\n{items}"));
    let mut fixture = UrlFixture::new(vec![
        list(item("a", "") + &item("b", "")),
        list(item("a", "") + &item("c", ", serviceAccountName: sa")),
        list(item("a", "")),
    ]);
    let refused = "static pods may not reference serviceaccounts";
    fixture
        .check(&["pods [a-n1 b-n1]", refused, "pods [a-n1]", "well"])
        .await;
}

#[tokio::test(start_paused = true)]
async fn a_bad_response_keeps_the_pods_and_is_reported() {
    let mut fixture = UrlFixture::new(vec![
        ok(manifest("a")),
        ok("garbage"),
        ok("garbage"),
        (404, String::new(), None),
        ok(manifest("a")),
        ok("x".repeat(TOO_LONG)),
    ]);
    fixture
        .check(&[
            "pods [a-n1]",
            "the response holds no static pods",
            "unexpected status 404",
            "well",
            "bytes or more",
        ])
        .await;
}

#[tokio::test(start_paused = true)]
async fn redirects_are_followed_but_headers_stay_with_their_server() {
    let to = |location| (302, String::new(), Some(location));
    let mut fixture = UrlFixture::new(vec![
        to("other.yaml"),
        to("/x/y?next=http://h.example/"),
        to("http://elsewhere.example/z"),
        ok(manifest("a")),
        to("ftp://h.example/"),
    ]);
    fixture
        .check(&["pods [a-n1]", "cannot follow the redirect"])
        .await;
    let requests = fixture.requests.lock();
    let seen: Vec<_> = requests[..4]
        .iter()
        .map(|(url, header)| (url.as_str(), header.is_some()))
        .collect();
    assert_eq!(seen[0].0, URL);
    assert!(seen[1].0.ends_with("@h.example/m/other.yaml") && seen[1].1);
    assert!(seen[2].0.ends_with("@h.example/x/y?next=http://h.example/") && seen[2].1);
    assert_eq!(seen[3], ("http://elsewhere.example/z", false));
}

/// What a source over `service` reports first, which must be problems.
async fn first_problems(service: HttpService) -> Vec<SourceProblem> {
    let source = HttpSource::with_service(
        URL,
        &BTreeMap::new(),
        Duration::from_secs(20),
        StaticPods::new("n1", ApiReferences::Refuse),
        service,
    );
    let (sender, mut reports) = mpsc::channel(16);
    let report = tokio::select! {
        () = source.unwrap().run(sender) => unreachable!("the receiver is here"),
        report = reports.recv() => report.unwrap(),
    };
    let SourceEvent::Problems(problems) = report.event else {
        panic!("{report:?}");
    };
    problems
}

#[tokio::test(start_paused = true)]
async fn a_silent_server_times_out() {
    let service = service_fn(|_: Request<Empty<Bytes>>| async {
        std::future::pending::<Result<Response<UnsyncBoxBody<Bytes, BoxError>>, BoxError>>().await
    });
    let start = time::Instant::now();
    assert_eq!(
        first_problems(BoxCloneSyncService::new(service))
            .await
            .len(),
        1
    );
    assert_eq!(start.elapsed(), TIMEOUT);
}

#[test]
fn unusable_urls_and_headers_are_rejected_without_quoting_secrets() {
    let source = |url: &str, header: (&str, &str)| {
        let headers = BTreeMap::from([(header.0.to_owned(), vec![header.1.to_owned()])]);
        HttpSource::new(
            url,
            &headers,
            Duration::from_secs(20),
            StaticPods::new("n1", ApiReferences::Refuse),
        )
    };
    assert!(matches!(
        source("ftp://h/x", ("a", "b")),
        Err(HttpSourceError::Url)
    ));
    assert!(matches!(
        source("/m/pods.yaml", ("a", "b")),
        Err(HttpSourceError::Url)
    ));
    let error = source("http://h/x", ("X-Auth", "s3c\nret"))
        .unwrap_err()
        .to_string();
    assert_eq!(error, "header x-auth has a value that cannot be sent");
    let error = source("http://h/x", ("X-Auth: s3cret", "b")).unwrap_err();
    assert_eq!(error.to_string(), "invalid header name");
}

/// The decoder of the fixture's URL.
fn bodies() -> Bodies {
    let static_pods = StaticPods::new("n1", ApiReferences::Refuse);
    Bodies::new(URL.to_owned(), static_pods)
}

#[test]
fn a_bad_body_is_decoded_once_until_it_changes() {
    let mut bodies = bodies();
    let first = bodies.decode("garbage").unwrap_err();
    let second = bodies.decode("garbage").unwrap_err();
    assert!(Arc::ptr_eq(&first, &second), "decoded again");
    let other = bodies.decode("other garbage").unwrap_err();
    assert!(!Arc::ptr_eq(&first, &other));
    assert_eq!(bodies.decode(&manifest("a")).unwrap().unwrap().len(), 1);
    // A good body is decoded once too.
    assert!(bodies.decode(&manifest("a")).unwrap().is_none());
}

/// A list of the pods `a` and `b`, of which `a` has this image and these fields.
fn two_pods(image: &str, fields: &str) -> Vec<u8> {
    let pod = |name: &str, image: &str, fields: &str| {
        format!(
            "- metadata: {{name: {name}}}\n  spec: {{containers: [{{name: c, image: {image}{fields}}}]}}\n"
        )
    };
    let (a, b) = (pod("a", image, fields), pod("b", image, ""));
    format!("apiVersion: v1\nkind: PodList\nitems:\n{a}{b}").into_bytes()
}

/// The images of the reported pods, and the problems.
fn images(bodies: &Bodies, outcome: Outcome) -> (Vec<String>, Vec<String>) {
    let pods = outcome.pods.unwrap_or_default();
    let images = pods
        .iter()
        .map(|pod| pod.decode().spec.unwrap().containers[0].image.clone());
    let errors = outcome.error.into_iter();
    let unknown_fields = bodies.unknown_fields.iter();
    let errors = errors.chain(unknown_fields.map(|(error, _)| Arc::clone(error)));
    let problems = errors.map(|error| error.to_string());
    (images.map(Option::unwrap).collect(), problems.collect())
}

#[test]
fn an_unknown_field_never_replaces_a_pod_without_one() {
    let root = tempfile::TempDir::new().unwrap();
    let start = || {
        let static_pods = StaticPods::new("n1", ApiReferences::Refuse);
        Bodies::new(URL.to_owned(), static_pods).recall(Some(root.path().join("copies")))
    };
    let check = |bodies: &mut Bodies, body, images_are: &[&str], problems_are: &[&str]| {
        let outcome = bodies.take(body);
        let (images, problems) = images(bodies, outcome);
        assert_eq!(
            (images, problems),
            (
                images_are.iter().map(ToString::to_string).collect(),
                problems_are.iter().map(ToString::to_string).collect(),
            )
        );
    };
    let (rejected, kept) = (
        "the API server would reject it",
        "keeping its last good version",
    );
    let mut bodies = start();
    // One that is new is served with it.
    let misspelled = ", comand: [x]";
    check(
        &mut bodies,
        Ok(two_pods("v1", misspelled)),
        &["v1", "v1"],
        &[rejected],
    );
    check(&mut bodies, Ok(two_pods("v2", "")), &["v2", "v2"], &[]);
    check(
        &mut bodies,
        Ok(two_pods("v3", misspelled)),
        &["v2", "v3"],
        &[kept],
    );
    // The problem stays as long as the body does.
    check(&mut bodies, Ok(two_pods("v3", misspelled)), &[], &[kept]);
    check(
        &mut bodies,
        Err(HttpSourceError::Timeout),
        &[],
        &["no response within 10s", kept],
    );
    // Also over a restart.
    let mut bodies = start();
    check(
        &mut bodies,
        Ok(two_pods("v3", misspelled)),
        &["v2", "v3"],
        &[kept],
    );
    check(&mut bodies, Ok(two_pods("v4", "")), &["v4", "v4"], &[]);
}

#[tokio::test(start_paused = true)]
async fn bodies_are_decoded_off_the_runtime_thread() {
    crate::testing::mark_runtime_thread();
    let root = tempfile::TempDir::new().unwrap();
    let start = |answers| UrlFixture::remembering(answers, Some(root.path().join("copies")));
    start(vec![ok(manifest("a")), ok("garbage")])
        .check(&["pods [a-n1]", "the response holds no static pods"])
        .await;
    start(vec![]).check(&["pods [a-n1]", "no response"]).await;
}

#[tokio::test(start_paused = true)]
async fn an_endless_body_ends_at_the_limit() {
    let service = service_fn(|_: Request<Empty<Bytes>>| async {
        let chunk = || Ok::<_, BoxError>(http_body::Frame::data(Bytes::from(vec![b'['; 1 << 16])));
        let body = StreamBody::new(futures::stream::repeat_with(chunk));
        Ok::<_, BoxError>(Response::new(body.boxed_unsync()))
    });
    let problems = first_problems(BoxCloneSyncService::new(service)).await;
    assert!(problems[0].to_string().ends_with("bytes or more"));
}

#[tokio::test(start_paused = true)]
async fn redirects_to_files_and_redirect_loops_are_errors() {
    let to = |location| (302, String::new(), Some(location));
    let refused = "cannot follow the redirect";
    for location in ["file:///etc/passwd", "gopher://h.example/", "http://"] {
        let mut fixture = UrlFixture::new(vec![to(location)]);
        fixture.check(&[refused]).await;
        assert_eq!(fixture.requests.lock().len(), 1);
    }
    let mut fixture = UrlFixture::new(vec![to("/again"); 2 * REDIRECTS]);
    fixture.check(&[refused]).await;
    assert_eq!(fixture.requests.lock().len(), REDIRECTS + 1);
}

#[tokio::test(start_paused = true)]
async fn compressed_bodies_are_not_expanded() {
    // No request asks for one. The bytes of a gzip stream are no text.
    let service = service_fn(|request: Request<Empty<Bytes>>| async move {
        assert!(!request.headers().contains_key(header::ACCEPT_ENCODING));
        let body = Full::new(Bytes::from_static(b"\x1f\x8b\x08\x00\xff"));
        let mut response = Response::new(body.map_err(BoxError::from).boxed_unsync());
        let gzip = HeaderValue::from_static("gzip");
        response
            .headers_mut()
            .insert(header::CONTENT_ENCODING, gzip);
        Ok::<_, BoxError>(response)
    });
    let problems = first_problems(BoxCloneSyncService::new(service)).await;
    assert!(problems[0].to_string().ends_with("is not UTF-8 text"));
}

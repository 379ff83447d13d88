//! The variables of the label form, those of k8s-sidecar and our own (docs/spec/sidecar.md, section 4).
//!
//! Every mistake is reported with its variable, all of them at once. Values are not repeated, but for names of objects:
//! some are credentials.

mod environment;

use std::{
    collections::BTreeSet,
    fs,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    path::{Path, PathBuf},
    time::Duration,
};

use larder_files::regular_file::read_regular_text;
use larder_objects::{Kind, PodIdentity, validation::is_label};
use larder_on_change::{Debounce, HttpCall, HttpTarget, HttpUrl};
use larder_sidecar::{
    Credentials, Encoding, HttpSettings, LabelSettings, ObjectName, Places, RequestSettings,
    Selection, UrlCredentials, UrlSettings, selections,
};
use larder_watch::RequestTiming;
use smol_str::SmolStr;
use tracing::Level;

use self::environment::Environment;
use crate::args::{on_change::debounce as parse_debounce, values::octal_mode};

/// The variables of k8s-sidecar that select its form.
pub(crate) const MARKS: [&str; 2] = ["LABEL", "RESOURCE_NAME"];

/// Longest time for the one list of `METHOD=LIST`.
const LIST_TIMEOUT: Duration = Duration::from_mins(1);
/// The longest file of `LOG_CONFIG`.
const MAX_LOG_CONFIG: u64 = 1 << 20;
/// Where a pod finds its namespace.
const NAMESPACE_FILE: &str = "/var/run/secrets/kubernetes.io/serviceaccount/namespace";

/// What the variables of a process say.
#[derive(Debug)]
pub(crate) struct LabelVariables {
    /// The settings of the library.
    pub(crate) settings: LabelSettings,
    /// The log.
    pub(crate) log: LogSettings,
    /// The kubeconfig, if there is one.
    pub(crate) kubeconfig: Option<PathBuf>,
    /// Whether any certificate of the API server is accepted.
    pub(crate) skip_tls_verify: bool,
    /// What the user should know.
    pub(crate) warnings: Vec<String>,
}

/// The log of the label form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LogSettings {
    /// The lowest level.
    pub(crate) level: Level,
    /// Whether lines are JSON objects.
    pub(crate) json: bool,
}

impl LabelVariables {
    /// Those of a process for which `variables` finds a value by its name.
    ///
    /// # Errors
    ///
    /// All mistakes, each with its variable.
    pub(crate) fn read(variables: impl Fn(&str) -> Option<String>) -> Result<Self, Vec<String>> {
        let mut env = Environment {
            variables: &variables,
            errors: Vec::new(),
            warnings: Vec::new(),
        };
        // They change nothing here.
        env.flag("IGNORE_ALREADY_PROCESSED");
        env.flag("DISABLE_X509_STRICT_VERIFICATION");
        let skip_tls_verify = env.flag("SKIP_TLS_VERIFY");
        if skip_tls_verify {
            env.warn("SKIP_TLS_VERIFY: any certificate of the API server is accepted");
        }
        let client = http(&mut env);
        let script_timeout = env
            .duration("LARDER_SCRIPT_TIMEOUT", Duration::from_mins(5))
            .unwrap_or(Duration::MAX);
        let request = request(&mut env, &client);
        let urls = urls(&mut env, client);
        let (timing, once) = timing(&mut env);
        let pod = own_pod(&variables);
        let files = files(&mut env);
        let kubeconfig = kubeconfig(&mut env, &files);
        let settings = LabelSettings {
            selections: selected(&mut env, &pod.namespace),
            timing,
            once,
            files,
            request,
            script: env.path("SCRIPT").map(|path| (path, script_timeout)),
            skip_init: env.flag("REQ_SKIP_INIT"),
            debounce: debounce(&mut env),
            urls,
            listen: listen(&mut env),
            pod,
            state_dir: state_dir(env.path("LARDER_STATE_DIR"), variables("TMPDIR")),
        };
        let read = Self {
            settings,
            log: log(&mut env),
            kubeconfig,
            skip_tls_verify,
            // Last: what is read above warns.
            warnings: env.warnings,
        };
        env.errors.is_empty().then_some(read).ok_or(env.errors)
    }
}

/// The directory of records: the one that is given, or else one in that of temporary files.
pub(crate) fn state_dir(given: Option<PathBuf>, temporary: Option<String>) -> PathBuf {
    given.unwrap_or_else(|| {
        let temporary = temporary.filter(|path| !path.is_empty());
        Path::new(temporary.as_deref().unwrap_or("/tmp")).join("larder-sidecar")
    })
}

/// The pod of this process, as far as that is known.
pub(crate) fn own_pod(variables: impl Fn(&str) -> Option<String>) -> PodIdentity {
    let variable = |name| variables(name).unwrap_or_default().into();
    let namespace = fs::read_to_string(NAMESPACE_FILE).unwrap_or_default();
    let namespace = Some(namespace.trim()).filter(|name| is_label(name));
    PodIdentity {
        namespace: namespace.unwrap_or_default().into(),
        name: variable("HOSTNAME"),
        uid: variable("POD_UID"),
    }
}

fn kubeconfig(env: &mut Environment<'_>, files: &Places) -> Option<PathBuf> {
    if let Some(given) = env.path("KUBECONFIG") {
        return given.exists().then_some(given);
    }
    let path = Path::new(&env.raw("HOME")?).join(".kube/config");
    if path.exists() && files.contains(&path) {
        env.warn("HOME: objects may become files there, so its .kube/config is not used");
        return None;
    }
    path.exists().then_some(path)
}

/// The parts of a list with commas.
fn parts(text: &str) -> impl Iterator<Item = &str> {
    text.split(',')
        .map(str::trim)
        .filter(|part| !part.is_empty())
}

fn selected(env: &mut Environment<'_>, own: &SmolStr) -> BTreeSet<Selection> {
    let expected = "NAME, KIND/NAME or NAMESPACE/KIND/NAME, with configmap or secret";
    let names = |text: &str| parts(text).map(ObjectName::parse).collect();
    let names: Option<Vec<_>> = env.parsed("RESOURCE_NAME", expected, names);
    let both = [Kind::ConfigMap, Kind::Secret];
    let words = [
        ("configmap", &both[..1]),
        ("secret", &both[1..]),
        ("both", &both),
    ];
    let kinds = env.word("RESOURCE", &words);
    let (labels, namespaces) = (labels(env), namespaces(env, own));
    let texts = env.text("RESOURCE_NAME").unwrap_or_default();
    for (text, name) in parts(&texts).zip(names.iter().flatten()) {
        let alone = Some(vec![name.clone()]);
        if selections(kinds, namespaces.clone(), None, alone).is_empty() {
            let excluding = "RESOURCE (default: configmap) or NAMESPACE excludes it";
            env.warn(&format!(
                "RESOURCE_NAME: {text} is not read, as {excluding}"
            ));
        }
    }
    selections(kinds, namespaces, labels, names)
}

fn labels(env: &mut Environment<'_>) -> Option<String> {
    let (label, value) = (env.raw("LABEL"), env.raw("LABEL_VALUE"));
    for (name, text) in [("LABEL", &label), ("LABEL_VALUE", &value)] {
        if text
            .iter()
            .any(|text| text.len() > 4096 || text.contains(char::is_control))
        {
            env.error(name, "expected a label selector");
        }
    }
    let value = value.filter(|value| !value.is_empty());
    match (label, value) {
        (Some(label), Some(value)) => return Some(format!("{label}={value}")),
        (Some(label), None) if !label.is_empty() => return Some(label),
        _ if env.text("RESOURCE_NAME").is_some() => {}
        (None, _) => env.error("LABEL", "is required"),
        (Some(_), None) => env.warn("LABEL is empty: every object is selected"),
    }
    None
}

/// The names of namespaces; `None` for all.
fn namespaces(env: &mut Environment<'_>, own: &SmolStr) -> Option<BTreeSet<SmolStr>> {
    let names = env.parsed("NAMESPACE", "names of namespaces, or ALL", |text| {
        let names: BTreeSet<SmolStr> = parts(text).map(SmolStr::new).collect();
        let is_usable = |name: &SmolStr| is_label(name) || name == "ALL";
        (!names.is_empty() && names.iter().all(is_usable)).then_some(names)
    });
    if env.text("NAMESPACE").is_none() && own.is_empty() {
        let problem = format!("is not set, and {NAMESPACE_FILE} names none");
        env.error("NAMESPACE", &problem);
    }
    let names = names.unwrap_or_else(|| BTreeSet::from([own.clone()]));
    (!names.contains("ALL")).then_some(names)
}

/// How objects are followed; within which time, if only once.
fn timing(env: &mut Environment<'_>) -> (RequestTiming, Option<Duration>) {
    let mut seconds = |name, default: u32| Duration::from_secs(env.number(name, default).into());
    let pause = seconds("SLEEP_TIME", 60);
    let silence = seconds("WATCH_CLIENT_TIMEOUT", 120);
    let method = env.text("METHOD").map(|word| word.to_ascii_uppercase());
    let (poll, max_silence, once) = match method.as_deref() {
        Some("LIST") => (Some(Duration::MAX), Some(silence), Some(LIST_TIMEOUT)),
        // The silence follows from the pause.
        Some("SLEEP") => (Some(pause), None, None),
        None | Some("WATCH") => (None, Some(silence), None),
        Some(_) => {
            env.warn("METHOD: expected LIST, SLEEP or WATCH, taken as WATCH");
            (None, Some(silence), None)
        }
    };
    let timing = RequestTiming {
        poll,
        watch_timeout: env.seconds("WATCH_SERVER_TIMEOUT"),
        max_silence,
        min_pause: env.seconds("ERROR_THROTTLE_SLEEP").unwrap_or_default(),
    };
    (timing, once)
}

fn files(env: &mut Environment<'_>) -> Places {
    if env.text("FOLDER").is_none() {
        env.error("FOLDER", "is required");
    }
    let folder = env.parsed("FOLDER", "a path", |text| std::path::absolute(text).ok());
    let roots = |text: &str| {
        let roots: Vec<_> = text
            .split(':')
            .filter(|root| !root.is_empty())
            .map(PathBuf::from)
            .collect();
        roots.iter().all(|root| root.is_absolute()).then_some(roots)
    };
    let roots = env.parsed("LARDER_FOLDER_ROOTS", "absolute paths", roots);
    // After an error, any path will do.
    let folder = folder.unwrap_or_else(|| "/".into());
    let mut files =
        Places::new(&folder, &roots.unwrap_or_default()).expect("the paths are absolute");
    files.annotation = env.text("FOLDER_ANNOTATION").unwrap_or(files.annotation);
    files.unique_names = env.flag("UNIQUE_FILENAMES");
    let expected = "an octal mode, such as 0440";
    let mode = |digits: &str| octal_mode(digits).ok();
    files.mode = env.parsed("DEFAULT_FILE_MODE", expected, mode);
    files
}

fn http(env: &mut Environment<'_>) -> HttpSettings {
    let encoding = |text: &str| {
        let word = text.to_ascii_lowercase().replace(['-', '_'], "");
        match word.as_str() {
            "latin1" | "iso88591" => Some(Encoding::Latin1),
            "utf8" => Some(Encoding::Utf8),
            "ascii" | "usascii" => Some(Encoding::Ascii),
            _ => None,
        }
    };
    let timeout = |text: &str| {
        let seconds = text.parse().ok().filter(|seconds| *seconds > 0.0)?;
        Some(Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX))
    };
    let factor = |text: &str| text.parse().ok().filter(|f| (0.0..=f64::MAX).contains(f));
    let expected = "latin1, utf-8 or ascii";
    let encoding = env.parsed("REQ_BASIC_AUTH_ENCODING", expected, encoding);
    let timeout = env.parsed("REQ_TIMEOUT", "a number of seconds above 0", timeout);
    let factor = env.parsed("REQ_RETRY_BACKOFF_FACTOR", "a number from 0 on", factor);
    let bundle = env.text("REQUESTS_CA_BUNDLE");
    let mut http = HttpSettings::default();
    http.timeout = timeout.unwrap_or(http.timeout);
    http.retries.total = env.number("REQ_RETRY_TOTAL", http.retries.total);
    http.retries.connect = env.number("REQ_RETRY_CONNECT", http.retries.connect);
    http.retries.read = env.number("REQ_RETRY_READ", http.retries.read);
    http.retries.factor = factor.unwrap_or(http.retries.factor);
    http.credentials = Credentials {
        username: env.raw("REQ_USERNAME").unwrap_or_default(),
        password: env.raw("REQ_PASSWORD").unwrap_or_default(),
        username_file: env.path("REQ_USERNAME_FILE"),
        password_file: env.path("REQ_PASSWORD_FILE"),
        encoding: encoding.unwrap_or_default(),
    };
    http.tls.ca = bundle.or_else(|| env.text("SSL_CERT_FILE"));
    http.tls.insecure_skip_verify = env.flag("REQ_SKIP_TLS_VERIFY");
    http.enable_5xx = env.flag("ENABLE_5XX");
    http
}

fn request(env: &mut Environment<'_>, client: &HttpSettings) -> Option<RequestSettings> {
    let methods = ["GET", "POST", "PUT"].map(|word| (word, word));
    let method = env.word("REQ_METHOD", &methods);
    let payload = env.text("REQ_PAYLOAD").map(|text| {
        serde_json::from_str(&text)
            .unwrap_or(serde_json::Value::String(text))
            .to_string()
    });
    let url = HttpUrl::parse(&env.text("REQ_URL")?).map_err(|error| env.error("REQ_URL", error));
    let mut call = HttpCall::post(HttpTarget::Url(url.ok()?));
    call.method = method;
    // As theirs, a GET has no body.
    if let Some(payload) = payload.filter(|_| method != "GET") {
        call.headers = vec![("content-type".into(), "application/json".into())];
        call.body = payload;
    }
    Some(RequestSettings {
        call,
        client: client.clone(),
    })
}

fn urls(env: &mut Environment<'_>, client: HttpSettings) -> Option<UrlSettings> {
    let is_fetched = env.word("LARDER_URL_KEYS", &[("Fetch", true), ("Ignore", false)]);
    for name in ["HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"] {
        let is_set = |name: &str| env.text(name).is_some();
        if is_fetched && (is_set(name) || is_set(&name.to_ascii_lowercase())) {
            env.warn(&format!("{name}: *.url keys are fetched without a proxy, which could reach what larder refuses"));
        }
    }
    let credentials = |text: &str| match &*text.to_ascii_lowercase() {
        "never" => Some(UrlCredentials::Never),
        "always" => Some(UrlCredentials::Always),
        _ => {
            let urls: Result<_, _> = parts(text).map(HttpUrl::parse).collect();
            Some(UrlCredentials::Below(urls.ok()?))
        }
    };
    let expected = "Never, Always, or URLs";
    let credentials = env.parsed("LARDER_URL_CREDENTIALS", expected, credentials);
    let settings = UrlSettings {
        refresh: env.duration("LARDER_URL_REFRESH", Duration::from_mins(5)),
        credentials: credentials.unwrap_or_default(),
        client,
    };
    is_fetched.then_some(settings)
}

fn debounce(env: &mut Environment<'_>) -> Debounce {
    let expected = "MIN or MIN:MAX, such as 500ms:5s";
    env.parsed("LARDER_DEBOUNCE", expected, |text| {
        parse_debounce(text).ok()
    })
    .unwrap_or(Debounce {
        min: Duration::from_millis(500),
        max: Duration::from_secs(5),
    })
}

fn listen(env: &mut Environment<'_>) -> Vec<SocketAddr> {
    let host = env.parsed("HEALTH_HOST", "an IP address", |text| match text {
        "localhost" => Some(Ipv4Addr::LOCALHOST.into()),
        text => text.parse().ok(),
    });
    let is_off = env.raw("HEALTH_PORT").is_some_and(|port| port.is_empty());
    let port = |text: &str| text.parse().ok();
    let port = env
        .parsed("HEALTH_PORT", "a port, or 0 for none", port)
        .unwrap_or(if is_off { 0 } else { 8080 });
    // Where there is IPv6, the first means both versions.
    let all: [IpAddr; 2] = [Ipv6Addr::UNSPECIFIED.into(), Ipv4Addr::UNSPECIFIED.into()];
    host.map_or(all.to_vec(), |host| vec![host])
        .into_iter()
        .map(|host| SocketAddr::new(host, port))
        .filter(|_| port != 0)
        .collect()
}

fn log(env: &mut Environment<'_>) -> LogSettings {
    let levels = "DEBUG, INFO, WARNING, ERROR or CRITICAL";
    let mut level = env.parsed("LOG_LEVEL", levels, python_level);
    if let Some(path) = env.text("LOG_CONFIG") {
        env.warn("LOG_CONFIG: only the level of root is read");
        let text = read_regular_text(Path::new(&path), MAX_LOG_CONFIG).unwrap_or_default();
        level = root_level(&text).and_then(python_level).or(level);
    }
    let is_local = env.word("LOG_TZ", &[("LOCAL", true), ("UTC", false)]);
    if is_local && env.text("LOG_TZ").is_some() {
        env.warn("LOG_TZ: times are in UTC, for larder has no data of time zones");
    }
    LogSettings {
        level: level.unwrap_or(Level::INFO),
        json: env.word("LOG_FORMAT", &[("JSON", true), ("LOGFMT", false)]),
    }
}

fn python_level(word: &str) -> Option<Level> {
    match &*word.to_ascii_uppercase() {
        "NOTSET" | "DEBUG" => Some(Level::DEBUG),
        "INFO" => Some(Level::INFO),
        "WARN" | "WARNING" => Some(Level::WARN),
        "ERROR" | "CRITICAL" | "FATAL" => Some(Level::ERROR),
        _ => None,
    }
}

/// The level of `root` in a configuration of Python's logging: its line below the line `root:`.
fn root_level(text: &str) -> Option<&str> {
    let mut lines = text.lines().skip_while(|line| line.trim_end() != "root:");
    lines.next()?;
    let mut own = lines.take_while(|line| line.starts_with([' ', '\t']) || line.trim().is_empty());
    let level = own.find_map(|line| line.trim().strip_prefix("level:"))?;
    Some(level.trim().trim_matches(['"', '\'']))
}

#[cfg(test)]
mod tests;

//! The settings of the label form, from the variables of k8s-sidecar and our own.
//!
//! Every mistake is reported with its variable, all of them at once. Values are not repeated: some are credentials.

mod environment;

use std::{
    collections::BTreeSet,
    fmt, fs,
    net::IpAddr,
    path::{Path, PathBuf},
    time::Duration,
};

use larder_objects::{Kind, go_duration, validation::is_label};
use larder_on_change::{Debounce, HttpUrl};
use smol_str::SmolStr;

use self::environment::Environment;
use crate::selection::{Namespaces, ObjectName, Selector};

/// The variables of k8s-sidecar that select its form.
pub const MARKS: [&str; 2] = ["LABEL", "RESOURCE_NAME"];

/// Where a pod finds its namespace.
const NAMESPACE_FILE: &str = "/var/run/secrets/kubernetes.io/serviceaccount/namespace";
/// Silence after which a watch is opened anew.
pub const MAX_SILENCE: Duration = Duration::from_mins(2);
/// The longest time that a setting can give.
const MAX_TIME: Duration = Duration::from_hours(365 * 24);

/// The settings of the label form.
#[derive(Clone, Debug)]
pub struct LabelSettings {
    /// The objects.
    pub selector: Selector,
    /// How they are followed.
    pub method: Method,
    /// How watches and polls behave.
    pub timing: WatchTiming,
    /// Where their files go.
    pub files: FileSettings,
    /// The request after a change.
    pub request: Option<RequestSettings>,
    /// The script after a change, and its longest time.
    pub script: Option<(PathBuf, Duration)>,
    /// No request after the first sync.
    pub skip_init: bool,
    /// The quiet period before script and request.
    pub debounce: Debounce,
    /// `*.url` keys; `None` if they are files like any other.
    pub urls: Option<UrlSettings>,
    /// Host and port of `/healthz`.
    pub health: Option<(Option<IpAddr>, u16)>,
    /// The log.
    pub log: LogSettings,
    /// Directory of the index.
    pub state_dir: PathBuf,
    /// The kubeconfig, if there is one.
    pub kubeconfig: Option<PathBuf>,
    /// Whether any certificate of the API server is accepted.
    pub skip_tls_verify: bool,
    /// What the user should know.
    pub warnings: Vec<String>,
}

/// How objects are followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// Listed once.
    List,
    /// Listed again after this time.
    Sleep(Duration),
    /// Watched.
    Watch,
}

/// How watches behave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WatchTiming {
    /// How long the API server keeps a watch open; `None` for the default.
    pub timeout: Option<Duration>,
    /// Silence after which a watch is opened anew.
    pub max_silence: Duration,
    /// The shortest pause after an error.
    pub min_pause: Duration,
}

impl Default for WatchTiming {
    fn default() -> Self {
        Self {
            timeout: None,
            max_silence: MAX_SILENCE,
            min_pause: Duration::ZERO,
        }
    }
}

/// Where the files of objects go.
#[derive(Clone, Debug)]
pub struct FileSettings {
    /// The directory.
    pub folder: PathBuf,
    /// The annotation that names another directory.
    pub annotation: String,
    /// Where annotations may lead, besides the directory itself.
    pub roots: Vec<PathBuf>,
    /// Whether a file name has namespace, kind and name of its object.
    pub unique_names: bool,
    /// The mode of files; `None` for the umask.
    pub mode: Option<u32>,
    /// Whether `*.url` keys are fetched.
    pub fetch_urls: bool,
}

/// A request after a change.
#[derive(Clone, Debug)]
pub struct RequestSettings {
    /// The URL.
    pub url: HttpUrl,
    /// `GET`, `POST` or `PUT`.
    pub method: &'static str,
    /// The body, in JSON.
    pub payload: Option<Payload>,
    /// The first and last status of success.
    pub expect: (u16, u16),
    /// How it is sent.
    pub client: HttpSettings,
}

/// How requests are sent.
#[derive(Clone, Debug)]
pub struct HttpSettings {
    /// Time for one attempt.
    pub timeout: Duration,
    /// Fast retries.
    pub retries: Retries,
    /// User and password.
    pub credentials: Credentials,
    /// Whether any certificate is accepted.
    pub skip_tls_verify: bool,
    /// File with authorities, in place of the system's.
    pub authorities: Option<String>,
    /// Whether the answer of a server that fails counts.
    pub enable_5xx: bool,
}

/// Fast retries of a request.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Retries {
    /// Of any kind.
    pub total: u32,
    /// After no connection.
    pub connect: u32,
    /// After no answer.
    pub read: u32,
    /// The factor of the pauses.
    pub factor: f64,
}

impl Retries {
    /// The longest pause.
    const MAX_PAUSE: f64 = 120.0;

    /// The pause before retry number `retry`, from 1.
    pub fn pause(&self, retry: u32) -> Duration {
        if retry <= 1 {
            return Duration::ZERO;
        }
        let pause = self.factor * f64::from(retry - 1).exp2();
        Duration::from_secs_f64(pause.clamp(0.0, Self::MAX_PAUSE))
    }
}

/// User and password of requests. `Debug` shows neither.
#[derive(Clone, Default)]
pub struct Credentials {
    pub(crate) username: Option<String>,
    pub(crate) password: Option<String>,
    pub(crate) username_file: Option<PathBuf>,
    pub(crate) password_file: Option<PathBuf>,
    pub(crate) encoding: Encoding,
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Credentials")
    }
}

/// The body of a request. `Debug` does not show it.
#[derive(Clone, PartialEq, Eq)]
pub struct Payload(pub(crate) String);

impl fmt::Debug for Payload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Payload")
    }
}

/// Encoding of credentials.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Encoding {
    /// ISO 8859-1.
    #[default]
    Latin1,
    /// UTF-8.
    Utf8,
    /// ASCII.
    Ascii,
}

/// `*.url` keys.
#[derive(Clone, Debug)]
pub struct UrlSettings {
    /// Time between two fetches; `None` if only a change of the object causes one.
    pub refresh: Option<Duration>,
    /// Whether credentials go to any host.
    pub credentials_always: bool,
    /// The only place that credentials go to otherwise.
    pub origin: Option<HttpUrl>,
    /// How they are fetched.
    pub client: HttpSettings,
}

/// The log of the label form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogSettings {
    /// The lowest level.
    pub level: tracing::Level,
    /// Whether lines are JSON objects.
    pub json: bool,
    /// Whether times are in UTC.
    pub utc: bool,
}

/// The flags of k8s-sidecar.
#[derive(Clone, Debug, Default)]
pub struct CredentialFlags {
    /// `--req-username-file`.
    pub username_file: Option<PathBuf>,
    /// `--req-password-file`.
    pub password_file: Option<PathBuf>,
}

/// Settings that cannot be used: one line for each mistake.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", .0.join("\n"))]
pub struct SettingsError(pub Vec<String>);

impl LabelSettings {
    /// The settings of a process with these variables.
    ///
    /// # Errors
    ///
    /// All mistakes, each with its variable.
    pub fn from_variables(
        variables: impl Fn(&str) -> Option<String>,
        flags: CredentialFlags,
    ) -> Result<Self, SettingsError> {
        let mut env = Environment::new(&variables);
        let names = names(&mut env);
        let labels = labels(&mut env, names.is_some());
        let selector = Selector {
            labels,
            kinds: kinds(&mut env),
            namespaces: namespaces(&mut env),
            names,
        };
        let client = http(&mut env, flags);
        let request = request(&mut env, &client);
        let urls = urls(&mut env, &client, request.as_ref());
        let script_timeout = env.duration("LARDER_SCRIPT_TIMEOUT", Duration::from_mins(5));
        let script_timeout = script_timeout.unwrap_or(MAX_TIME);
        let method = method(&mut env);
        let settings = Self {
            selector,
            timing: timing(&mut env, method),
            method,
            files: files(&mut env, urls.is_some()),
            request,
            script: env
                .text("SCRIPT")
                .map(|path| (PathBuf::from(path), script_timeout)),
            skip_init: env.flag("REQ_SKIP_INIT"),
            debounce: debounce(&mut env),
            urls,
            health: health(&mut env),
            log: log(&mut env),
            state_dir: env
                .text("LARDER_STATE_DIR")
                .map_or_else(|| default_state_dir(variables("TMPDIR")), PathBuf::from),
            kubeconfig: kubeconfig(&variables),
            skip_tls_verify: env.flag("SKIP_TLS_VERIFY"),
            warnings: Vec::new(),
        };
        // They change nothing here.
        env.flag("IGNORE_ALREADY_PROCESSED");
        env.flag("DISABLE_X509_STRICT_VERIFICATION");
        if settings.skip_tls_verify {
            env.warn("SKIP_TLS_VERIFY: any certificate of the API server is accepted");
        }
        let warnings = env.finish()?;
        Ok(Self {
            warnings,
            ..settings
        })
    }
}

/// The directory of the index where none is given.
pub fn default_state_dir(temporary: Option<String>) -> PathBuf {
    let temporary = temporary.filter(|path| !path.is_empty());
    PathBuf::from(temporary.as_deref().unwrap_or("/tmp")).join("larder-sidecar")
}

/// The namespace of this pod.
pub fn own_namespace() -> Option<SmolStr> {
    let text = fs::read_to_string(NAMESPACE_FILE).ok()?;
    let name = text.trim();
    is_label(name).then(|| name.into())
}

fn kubeconfig(variables: &dyn Fn(&str) -> Option<String>) -> Option<PathBuf> {
    let named = variables("KUBECONFIG").filter(|path| !path.is_empty());
    let home = || Some(Path::new(&variables("HOME")?).join(".kube/config"));
    let path = named.map(PathBuf::from).or_else(home)?;
    path.exists().then_some(path)
}

fn labels(env: &mut Environment<'_>, is_named: bool) -> Option<String> {
    let Some(label) = env.raw("LABEL") else {
        if !is_named {
            env.error("LABEL", "is required");
        }
        return None;
    };
    let value = env.raw("LABEL_VALUE").unwrap_or_default();
    let is_usable = |text: &str| text.len() <= 4096 && !text.chars().any(char::is_control);
    for (name, text) in [("LABEL", &label), ("LABEL_VALUE", &value)] {
        if !is_usable(text) {
            env.error(name, "expected a label selector");
        }
    }
    if label.is_empty() && value.is_empty() {
        if !is_named {
            env.warn("LABEL is empty: every object is selected");
        }
        return None;
    }
    if value.is_empty() {
        return Some(label);
    }
    Some(format!("{label}={value}"))
}

fn kinds(env: &mut Environment<'_>) -> BTreeSet<Kind> {
    let kinds: &[Kind] = match env.text("RESOURCE").as_deref() {
        None | Some("configmap") => &[Kind::ConfigMap],
        Some("secret") => &[Kind::Secret],
        Some("both") => &[Kind::ConfigMap, Kind::Secret],
        Some(_) => {
            env.error("RESOURCE", "expected configmap, secret or both");
            &[]
        }
    };
    kinds.iter().copied().collect()
}

fn namespaces(env: &mut Environment<'_>) -> Namespaces {
    let Some(text) = env.text("NAMESPACE") else {
        if let Some(name) = own_namespace() {
            return Namespaces::Named(BTreeSet::from([name]));
        }
        let problem = format!("is not set, and {NAMESPACE_FILE} names none");
        env.error("NAMESPACE", &problem);
        return Namespaces::All;
    };
    let names = text.split(',').map(str::trim);
    let names: BTreeSet<SmolStr> = names
        .filter(|name| !name.is_empty())
        .map(SmolStr::new)
        .collect();
    if names.contains("ALL") {
        return Namespaces::All;
    }
    if names.is_empty() || !names.iter().all(|name| is_label(name)) {
        env.error("NAMESPACE", "expected names of namespaces, or ALL");
    }
    Namespaces::Named(names)
}

fn names(env: &mut Environment<'_>) -> Option<Vec<ObjectName>> {
    let text = env.text("RESOURCE_NAME")?;
    let parts = text.split(',').map(str::trim);
    let names: Option<Vec<_>> = parts
        .filter(|name| !name.is_empty())
        .map(ObjectName::parse)
        .collect();
    if names.is_none() {
        let expected = "expected NAME, KIND/NAME or NAMESPACE/KIND/NAME, with configmap or secret";
        env.error("RESOURCE_NAME", expected);
    }
    names
}

fn method(env: &mut Environment<'_>) -> Method {
    let pause = env.seconds("SLEEP_TIME", Duration::from_mins(1));
    let word = env.text("METHOD").map(|word| word.to_ascii_uppercase());
    match word.as_deref() {
        Some("LIST") => Method::List,
        // Nothing may ask without a pause.
        Some("SLEEP") => Method::Sleep(pause.max(Duration::from_secs(1))),
        None | Some("WATCH") => Method::Watch,
        Some(_) => {
            env.warn("METHOD: expected LIST, SLEEP or WATCH, taken as WATCH");
            Method::Watch
        }
    }
}

fn timing(env: &mut Environment<'_>, method: Method) -> WatchTiming {
    let timeout = env.seconds("WATCH_SERVER_TIMEOUT", Duration::ZERO);
    let silence = env.seconds("WATCH_CLIENT_TIMEOUT", MAX_SILENCE);
    let max_silence = match method {
        Method::Sleep(pause) => 2 * pause + Duration::from_mins(1),
        Method::Watch | Method::List => silence.max(Duration::from_secs(10)),
    };
    WatchTiming {
        timeout: (!timeout.is_zero()).then_some(timeout),
        max_silence,
        min_pause: env.seconds("ERROR_THROTTLE_SLEEP", Duration::ZERO),
    }
}

fn files(env: &mut Environment<'_>, fetch_urls: bool) -> FileSettings {
    let folder = env.path("FOLDER").unwrap_or_else(|| {
        env.error("FOLDER", "is required");
        PathBuf::new()
    });
    let mode = env.text("DEFAULT_FILE_MODE").and_then(|digits| {
        let mode = u32::from_str_radix(digits.trim_start_matches("0o"), 8).ok();
        let mode = mode.filter(|mode| *mode <= 0o777);
        if mode.is_none() {
            env.error("DEFAULT_FILE_MODE", "expected an octal mode, such as 0440");
        }
        mode
    });
    let roots = env.text("LARDER_FOLDER_ROOTS").unwrap_or_default();
    let roots: Vec<_> = roots
        .split(':')
        .filter(|root| !root.is_empty())
        .map(PathBuf::from)
        .collect();
    if roots.iter().any(|root| !root.is_absolute()) {
        env.error("LARDER_FOLDER_ROOTS", "expected absolute paths");
    }
    FileSettings {
        folder,
        annotation: env
            .text("FOLDER_ANNOTATION")
            .unwrap_or_else(|| "k8s-sidecar-target-directory".to_owned()),
        roots,
        unique_names: env.flag("UNIQUE_FILENAMES"),
        mode,
        fetch_urls,
    }
}

fn http(env: &mut Environment<'_>, flags: CredentialFlags) -> HttpSettings {
    let encoding = env.text("REQ_BASIC_AUTH_ENCODING").unwrap_or_default();
    let encoding = match encoding
        .to_ascii_lowercase()
        .replace(['-', '_'], "")
        .as_str()
    {
        "" | "latin1" | "iso88591" => Encoding::Latin1,
        "utf8" => Encoding::Utf8,
        "ascii" | "usascii" => Encoding::Ascii,
        _ => {
            env.error("REQ_BASIC_AUTH_ENCODING", "expected latin1, utf-8 or ascii");
            Encoding::Latin1
        }
    };
    let credentials = Credentials {
        username: env.raw("REQ_USERNAME"),
        password: env.raw("REQ_PASSWORD"),
        username_file: flags
            .username_file
            .or_else(|| env.path("REQ_USERNAME_FILE")),
        password_file: flags
            .password_file
            .or_else(|| env.path("REQ_PASSWORD_FILE")),
        encoding,
    };
    let retries = Retries {
        total: env.number("REQ_RETRY_TOTAL", 5),
        connect: env.number("REQ_RETRY_CONNECT", 10),
        read: env.number("REQ_RETRY_READ", 5),
        factor: env.decimal("REQ_RETRY_BACKOFF_FACTOR", 1.1),
    };
    let timeout = env.decimal("REQ_TIMEOUT", 10.0);
    if timeout == 0.0 {
        env.error("REQ_TIMEOUT", "expected a number of seconds above 0");
    }
    let bundle = env.text("REQUESTS_CA_BUNDLE");
    HttpSettings {
        timeout: Duration::try_from_secs_f64(timeout).map_or(MAX_TIME, |time| time.min(MAX_TIME)),
        retries,
        credentials,
        skip_tls_verify: env.flag("REQ_SKIP_TLS_VERIFY"),
        authorities: bundle.or_else(|| env.text("SSL_CERT_FILE")),
        enable_5xx: env.flag("ENABLE_5XX"),
    }
}

fn request(env: &mut Environment<'_>, client: &HttpSettings) -> Option<RequestSettings> {
    let word = env.text("REQ_METHOD").unwrap_or_default();
    let method = match word.to_ascii_uppercase().as_str() {
        "" | "GET" => "GET",
        "POST" => "POST",
        "PUT" => "PUT",
        _ => {
            env.error("REQ_METHOD", "expected GET, POST or PUT");
            "GET"
        }
    };
    let payload = env.text("REQ_PAYLOAD").map(|text| {
        let value = serde_json::from_str(&text);
        Payload(value.unwrap_or(serde_json::Value::String(text)).to_string())
    });
    let url = env.text("REQ_URL")?;
    match HttpUrl::parse(&url) {
        Ok(url) => Some(RequestSettings {
            url,
            method,
            payload,
            expect: (200, 299),
            client: client.clone(),
        }),
        Err(error) => {
            env.error("REQ_URL", &error.to_string());
            None
        }
    }
}

fn urls(
    env: &mut Environment<'_>,
    client: &HttpSettings,
    request: Option<&RequestSettings>,
) -> Option<UrlSettings> {
    let is_fetched = env.word("LARDER_URL_KEYS", ["Fetch", "Ignore"]) == 0;
    let refresh = env.duration("LARDER_URL_REFRESH", Duration::from_mins(5));
    let settings = UrlSettings {
        refresh,
        credentials_always: env.word("LARDER_URL_CREDENTIALS", ["SameOrigin", "Always"]) == 1,
        origin: request.map(|request| request.url.clone()),
        client: client.clone(),
    };
    is_fetched.then_some(settings)
}

fn debounce(env: &mut Environment<'_>) -> Debounce {
    let default = Debounce {
        min: Duration::from_millis(500),
        max: Duration::from_secs(5),
    };
    let Some(text) = env.text("LARDER_DEBOUNCE") else {
        return default;
    };
    let (min, max) = text.split_once(':').unwrap_or((&text, ""));
    let parsed = (|| {
        let min = go_duration::parse(min).ok()?;
        let max = match max {
            "" => min.saturating_mul(4),
            max => go_duration::parse(max).ok()?,
        };
        (min <= max).then_some(Debounce { min, max })
    })();
    parsed.unwrap_or_else(|| {
        env.error(
            "LARDER_DEBOUNCE",
            "expected MIN or MIN:MAX, such as 500ms:5s",
        );
        default
    })
}

fn health(env: &mut Environment<'_>) -> Option<(Option<IpAddr>, u16)> {
    let host = env.text("HEALTH_HOST").and_then(|text| {
        let host = match text.as_str() {
            "localhost" => Some(IpAddr::from([127, 0, 0, 1])),
            text => text.parse().ok(),
        };
        if host.is_none() {
            env.error("HEALTH_HOST", "expected an IP address");
        }
        host
    });
    let port = match env.raw("HEALTH_PORT").as_deref() {
        None => 8080,
        Some("") => 0,
        Some(text) => text.parse().unwrap_or_else(|_| {
            env.error("HEALTH_PORT", "expected a port, or 0 for none");
            0
        }),
    };
    (port != 0).then_some((host, port))
}

fn log(env: &mut Environment<'_>) -> LogSettings {
    let mut level = env.text("LOG_LEVEL");
    if let Some(path) = env.path("LOG_CONFIG") {
        let text = fs::read_to_string(&path).unwrap_or_default();
        env.warn("LOG_CONFIG: only the level of root is read");
        level = root_level(&text).or(level);
    }
    let level = match level.unwrap_or_default().to_ascii_uppercase().as_str() {
        "DEBUG" | "NOTSET" => tracing::Level::DEBUG,
        "" | "INFO" => tracing::Level::INFO,
        "WARN" | "WARNING" => tracing::Level::WARN,
        "ERROR" | "CRITICAL" | "FATAL" => tracing::Level::ERROR,
        _ => {
            let expected = "expected DEBUG, INFO, WARNING, ERROR or CRITICAL";
            env.error("LOG_LEVEL", expected);
            tracing::Level::INFO
        }
    };
    LogSettings {
        level,
        json: env.word("LOG_FORMAT", ["JSON", "LOGFMT"]) == 0,
        utc: env.word("LOG_TZ", ["LOCAL", "UTC"]) == 1,
    }
}

/// The level of `root` in a configuration of Python's logging: its line below the line `root:`.
fn root_level(text: &str) -> Option<String> {
    let mut lines = text.lines().skip_while(|line| line.trim_end() != "root:");
    lines.next()?;
    let mut own = lines.take_while(|line| line.starts_with([' ', '\t']) || line.trim().is_empty());
    let level = own.find_map(|line| line.trim().strip_prefix("level:"))?;
    Some(level.trim().trim_matches(['"', '\'']).to_owned())
}

#[cfg(test)]
mod tests;

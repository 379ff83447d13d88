//! The long form: a list of hooks with fields.

use serde_json::Value;
use smol_str::SmolStr;

use super::{
    Authority, MAX_BODY, default_timing,
    error::{HookError, Problem, at},
    fields::{Field, Fields},
};
use crate::{
    facts::{ContainerFacts, PodFacts},
    hook::{
        Action, Command, Debounce, Hook, HttpAuth, HttpCall, HttpTarget, HttpTls, OnFailure,
        Output, Paths, Port, Restart, Retry, SignalTarget, Timing,
    },
    signal::Signal,
};

/// Reads a list of hooks; one mapping counts as a list of one.
pub(super) fn list(
    value: &Value,
    authority: Authority,
    facts: Option<&PodFacts>,
) -> Result<Vec<Hook>, HookError> {
    match value {
        Value::Array(hooks) => {
            let hooks = hooks.iter().enumerate();
            hooks
                .map(|(position, value)| hook(value, position, authority, facts))
                .collect()
        }
        Value::Object(_) => Ok(vec![hook(value, 0, authority, facts)?]),
        _ => Err(HookError::whole(Problem::Expected("a list of hooks"))),
    }
}

/// Reads the hook at `position` of its list.
pub(super) fn hook(
    value: &Value,
    position: usize,
    authority: Authority,
    facts: Option<&PodFacts>,
) -> Result<Hook, HookError> {
    let path = format!("[{position}]");
    let mut fields = Fields::of(path.clone(), value, "a hook with fields")?;
    let name = fields
        .take("name")
        .map(|field| field.text().map(str::to_owned))
        .transpose()?;
    let volumes = fields
        .take("volumes")
        .map(|field| volumes(&field, facts))
        .transpose()?;
    let paths = fields
        .take("paths")
        .map(|field| paths(&field))
        .transpose()?;
    let environment = fields
        .take("environment")
        .map(|field| field.flag())
        .transpose()?;
    let container = fields
        .take("container")
        .map(|field| container(&field, facts))
        .transpose()?;
    let one = action(&mut fields, authority, container.as_ref(), facts)?;
    let steps = match (one, fields.take("steps")) {
        (Some(one), None) => vec![one],
        (Some(one), Some(_)) => {
            let (one, other) = (one.word(), "steps");
            return Err(at(path, Problem::TwoActions { one, other }));
        }
        (None, Some(field)) => steps(&field, authority, container.as_ref(), facts)?,
        (None, None) => {
            // A misspelled action is reported as an unknown field.
            read_rest(&mut fields);
            fields.finish()?;
            return Err(at(path, Problem::NoAction));
        }
    };
    let timing = timing(&mut fields, default_timing(authority, &steps))?;
    let on_failure = match fields.take("onFailure") {
        None => OnFailure::default(),
        Some(field) => match field.text()? {
            "Retry" => OnFailure::Retry,
            "Ignore" => OnFailure::Ignore,
            "Restart" => OnFailure::Restart,
            _ => return Err(field.error(Problem::Expected("Retry, Ignore or Restart"))),
        },
    };
    if on_failure == OnFailure::Restart {
        let field = format!("{path}.onFailure");
        check_action(
            &field,
            &Action::Restart(Restart::default()),
            authority,
            container.as_ref(),
            facts,
        )?;
    }
    let initial = fields
        .take("initial")
        .map(|field| field.flag())
        .transpose()?;
    fields.finish()?;
    let restarts = steps.iter().any(|step| matches!(step, Action::Restart(_)));
    Ok(Hook {
        name: name.unwrap_or_else(|| format!("{position}-{}", steps[0].word())),
        volumes,
        paths: paths.unwrap_or_default(),
        environment: environment.unwrap_or(restarts),
        container,
        steps,
        timing,
        on_failure,
        initial: initial.unwrap_or(false),
    })
}

/// Marks the fields that follow the action as known.
fn read_rest(fields: &mut Fields<'_>) {
    for name in [
        "debounce",
        "splay",
        "timeout",
        "retry",
        "onFailure",
        "initial",
    ] {
        fields.take(name);
    }
}

fn volumes(field: &Field<'_>, facts: Option<&PodFacts>) -> Result<Vec<SmolStr>, HookError> {
    let names = field.texts()?;
    if let Some(facts) = facts {
        for name in &names {
            check_volume(field, name, facts)?;
        }
    }
    Ok(names.into_iter().map(SmolStr::from).collect())
}

fn check_volume(field: &Field<'_>, name: &str, facts: &PodFacts) -> Result<(), HookError> {
    match facts.volumes.iter().find(|volume| volume.name == name) {
        Some(volume) if volume.is_delivered() => Ok(()),
        Some(volume) => Err(field.error(Problem::OtherVolume {
            name: name.to_owned(),
            kind: volume.kind.to_string(),
        })),
        None => {
            let delivered = facts.volumes.iter().filter(|volume| volume.is_delivered());
            Err(field.error(Problem::UnknownVolume {
                name: name.chars().take(64).collect(),
                known: delivered.map(|volume| volume.name.to_string()).collect(),
            }))
        }
    }
}

fn paths(field: &Field<'_>) -> Result<Paths, HookError> {
    let patterns = field.texts()?.into_iter().map(str::to_owned).collect();
    Paths::new(patterns)
        .map_err(|_| field.error(Problem::Expected("patterns such as *.conf or conf.d/**")))
}

fn container(field: &Field<'_>, facts: Option<&PodFacts>) -> Result<SmolStr, HookError> {
    let name = field.text()?;
    if let Some(facts) = facts {
        let shown = || name.chars().take(64).collect();
        match facts
            .containers
            .iter()
            .find(|container| container.name == name)
        {
            Some(ContainerFacts { is_init: true, .. }) => {
                return Err(field.error(Problem::InitContainer { name: shown() }));
            }
            Some(_) => {}
            None => return Err(field.error(Problem::UnknownContainer { name: shown() })),
        }
    }
    Ok(name.into())
}

fn steps(
    field: &Field<'_>,
    authority: Authority,
    container: Option<&SmolStr>,
    facts: Option<&PodFacts>,
) -> Result<Vec<Action>, HookError> {
    let mut steps = Vec::new();
    for item in field.items()? {
        let mut fields = Fields::of(item.path.clone(), item.value, "a step with one action")?;
        let step = action(&mut fields, authority, container, facts)?;
        fields.finish()?;
        steps.push(step.ok_or_else(|| item.error(Problem::NoAction))?);
    }
    if steps.is_empty() {
        return Err(field.error(Problem::Expected("at least one step")));
    }
    Ok(steps)
}

/// Takes the one action of a hook or step.
fn action(
    fields: &mut Fields<'_>,
    authority: Authority,
    container: Option<&SmolStr>,
    facts: Option<&PodFacts>,
) -> Result<Option<Action>, HookError> {
    let found: Vec<_> = ["signal", "http", "restart", "exec"]
        .into_iter()
        .filter_map(|name| Some((name, fields.take(name)?)))
        .filter(|(name, field)| *name != "restart" || field.value != &Value::Bool(false))
        .collect();
    let (name, field) = match found.as_slice() {
        [] => return Ok(None),
        [one] => one,
        [(one, field), (other, _), ..] => {
            let path = field.path.trim_end_matches(one).trim_end_matches('.');
            return Err(at(path, Problem::TwoActions { one, other }));
        }
    };
    let action = match *name {
        "signal" => Action::Signal(signal(field)?),
        "http" => Action::Http(http(field, authority, facts)?),
        "restart" => Action::Restart(restart(field)?),
        _ => Action::Exec(exec(field, authority)?),
    };
    check_action(&field.path, &action, authority, container, facts)?;
    Ok(Some(action))
}

/// Checks that the hook's source may request the action, and that the action suits the pod.
pub(super) fn check_action(
    field: &str,
    action: &Action,
    authority: Authority,
    container: Option<&SmolStr>,
    facts: Option<&PodFacts>,
) -> Result<(), HookError> {
    if let Authority::Annotation(allowed) = authority
        && !allowed.allows(action)
    {
        let problem = match action {
            Action::Exec(_) => Problem::CommandOfPod,
            Action::Signal(_) | Action::Http(_) | Action::Restart(_) => Problem::NotAllowed,
        };
        return Err(at(field, problem));
    }
    if let (Action::Restart(_), Some(facts)) = (action, facts) {
        let named = facts
            .containers
            .iter()
            .find(|facts| Some(&facts.name) == container);
        let comes_back =
            facts.restart_policy == "Always" || named.is_some_and(|facts| facts.is_sidecar);
        // `larder exec` starts its command again by itself.
        if !comes_back && authority != Authority::CommandLine {
            let policy = facts.restart_policy.to_string();
            return Err(at(field, Problem::NotRestarted { policy }));
        }
    }
    Ok(())
}

fn signal_name(field: &Field<'_>) -> Result<Signal, HookError> {
    if field.value.is_number() {
        return Err(field.error(Problem::Signal(crate::signal::SignalError::Number)));
    }
    field
        .text()?
        .parse()
        .map_err(|error| field.error(Problem::Signal(error)))
}

fn signal(field: &Field<'_>) -> Result<SignalTarget, HookError> {
    if !field.value.is_object() {
        let signal = signal_name(field)?;
        return Ok(SignalTarget {
            signal,
            process: None,
        });
    }
    let mut fields = Fields::of(field.path.clone(), field.value, "a signal")?;
    let name = fields
        .take("name")
        .ok_or_else(|| field.error(Problem::Expected("the field name")))?;
    let signal = signal_name(&name)?;
    let process = fields
        .take("process")
        .map(|field| field.text().map(str::to_owned))
        .transpose()?;
    fields.finish()?;
    Ok(SignalTarget { signal, process })
}

fn restart(field: &Field<'_>) -> Result<Restart, HookError> {
    if field.value == &Value::Bool(true) {
        return Ok(Restart::default());
    }
    let mut fields = Fields::of(
        field.path.clone(),
        field.value,
        "true, or the fields signal and grace",
    )?;
    let signal = fields
        .take("signal")
        .map(|field| signal_name(&field))
        .transpose()?;
    let grace = fields
        .take("grace")
        .map(|field| field.duration())
        .transpose()?;
    fields.finish()?;
    Ok(Restart {
        signal: signal.unwrap_or(Signal::Term),
        grace,
        environment_only: false,
    })
}

fn exec(field: &Field<'_>, authority: Authority) -> Result<Command, HookError> {
    if let Authority::Annotation(_) = authority {
        return Err(field.error(Problem::CommandOfPod));
    }
    let mut command = Command {
        words: Vec::new(),
        user: None,
        working_directory: "/".to_owned(),
        env: Vec::new(),
        output: Output::default(),
    };
    let words = if field.value.is_array() {
        words(field)?
    } else {
        let mut fields = Fields::of(
            field.path.clone(),
            field.value,
            "a list of words, or the field command",
        )?;
        let words_field = fields
            .take("command")
            .ok_or_else(|| field.error(Problem::Expected("the field command")))?;
        if let Some(user) = fields.take("user") {
            if authority == Authority::CommandLine {
                // There a hook's command runs as the user of the main command.
                return Err(user.error(Problem::OnlyFor("the agent's configuration")));
            }
            command.user = Some(user.text()?.to_owned());
        }
        if let Some(directory) = fields.take("workingDirectory") {
            directory.text()?.clone_into(&mut command.working_directory);
            if !command.working_directory.starts_with('/') {
                return Err(directory.error(Problem::Expected("an absolute path")));
            }
        }
        if let Some(env) = fields.take("env") {
            command.env = pairs(&env, "variables with their values")?;
        }
        command.output = match fields.take("output") {
            None => Output::default(),
            Some(output) => match output.text()? {
                "OnFailure" => Output::OnFailure,
                "Always" => Output::Always,
                "Never" => Output::Never,
                _ => return Err(output.error(Problem::Expected("OnFailure, Always or Never"))),
            },
        };
        fields.finish()?;
        words(&words_field)?
    };
    Ok(Command { words, ..command })
}

fn words(field: &Field<'_>) -> Result<Vec<String>, HookError> {
    let words: Vec<_> = field.texts()?.into_iter().map(str::to_owned).collect();
    let usable = words.first().is_some_and(|program| !program.is_empty())
        && !words.iter().any(|word| word.contains('\0'));
    if usable {
        Ok(words)
    } else {
        Err(field.error(Problem::Expected("a program and its arguments")))
    }
}

/// The texts of a mapping, in the order of their names.
fn pairs(field: &Field<'_>, expected: &'static str) -> Result<Vec<(String, String)>, HookError> {
    let Value::Object(fields) = field.value else {
        return Err(field.error(Problem::Expected(expected)));
    };
    let usable = |text: &str| !text.contains(['\0', '\r', '\n']);
    let pair = |(name, value): (&String, &Value)| match value.as_str() {
        Some(value) if usable(name) && !name.is_empty() && usable(value) => {
            Ok((name.clone(), value.to_owned()))
        }
        _ => Err(at(
            format!(
                "{}.{}",
                field.path,
                name.chars().take(64).collect::<String>()
            ),
            Problem::Expected("a text of one line"),
        )),
    };
    fields.iter().map(pair).collect()
}

fn http(
    field: &Field<'_>,
    authority: Authority,
    facts: Option<&PodFacts>,
) -> Result<HttpCall, HookError> {
    if let Some(target) = field.value.as_str() {
        return http_call(&field.path, target, authority, facts);
    }
    let mut fields = Fields::of(
        field.path.clone(),
        field.value,
        "a target such as 9090/-/reload, or fields",
    )?;
    let url = fields.take("url");
    let tls = match fields.take("scheme") {
        None => false,
        Some(scheme) => match scheme.text()? {
            "http" | "HTTP" => false,
            "https" | "HTTPS" => true,
            _ => return Err(scheme.error(Problem::Expected("http or https"))),
        },
    };
    let port = fields
        .take("port")
        .map(|field| port(&field, facts))
        .transpose()?;
    let path = fields
        .take("path")
        .map(|field| request_path(&field))
        .transpose()?;
    let target = match (url, port) {
        (Some(url), None) => url_target(&url.path, url.text()?, authority)?,
        (None, Some(port)) => HttpTarget::Pod {
            port,
            path: path.unwrap_or_else(|| "/".to_owned()),
            tls,
        },
        (Some(url), Some(_)) => {
            return Err(url.error(Problem::Expected("either url, or port and path")));
        }
        (None, None) => return Err(field.error(Problem::Expected("the field port or url"))),
    };
    let mut call = plain(target);
    if let Some(method) = fields.take("method") {
        call.method = match method.text()? {
            "GET" => "GET",
            "PUT" => "PUT",
            "POST" => "POST",
            _ => return Err(method.error(Problem::Expected("GET, PUT or POST"))),
        };
    }
    if let Some(headers) = fields.take("headers") {
        call.headers = pairs(&headers, "headers with their values")?;
        for (name, _) in &call.headers {
            let reserved = ["host", "content-length", "transfer-encoding", "connection"];
            if reserved.contains(&name.to_ascii_lowercase().as_str()) {
                return Err(headers.error(Problem::ReservedHeader { name: name.clone() }));
            }
            let token =
                |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
            if !name.bytes().all(token) {
                return Err(headers.error(Problem::Expected("names of headers")));
            }
        }
    }
    if let Some(body) = fields.take("body") {
        body.text()?.clone_into(&mut call.body);
        if call.body.len() > MAX_BODY {
            return Err(body.error(Problem::Expected("at most 64 KiB")));
        }
    }
    if let Some(expect) = fields.take("expect") {
        call.expect = expect
            .items()?
            .map(|item| statuses(&item))
            .collect::<Result<_, _>>()?;
    }
    call.auth = fields
        .take("auth")
        .map(|field| auth(&field, facts))
        .transpose()?;
    if let Some(tls) = fields.take("tls") {
        call.tls = verification(&tls)?;
    }
    fields.finish()?;
    Ok(call)
}

fn plain(target: HttpTarget) -> HttpCall {
    HttpCall {
        target,
        method: "POST",
        headers: Vec::new(),
        body: String::new(),
        expect: vec![(200, 299)],
        auth: None,
        tls: HttpTls::default(),
    }
}

/// A request in the short form: `PORT/PATH`, or a URL.
pub(super) fn http_call(
    field: &str,
    target: &str,
    authority: Authority,
    facts: Option<&PodFacts>,
) -> Result<HttpCall, HookError> {
    if target.starts_with("http://") || target.starts_with("https://") {
        return Ok(plain(url_target(field, target, authority)?));
    }
    let (port_text, path) = target.split_at(target.find('/').unwrap_or(target.len()));
    let value = match port_text.parse::<u16>() {
        Ok(number) => Value::from(number),
        Err(_) => Value::from(port_text),
    };
    let in_field = |value| Field {
        path: field.to_owned(),
        value,
    };
    let port = port(&in_field(&value), facts)?;
    let path_value = Value::from(if path.is_empty() { "/" } else { path });
    let path = request_path(&in_field(&path_value))?;
    Ok(plain(HttpTarget::Pod {
        port,
        path,
        tls: false,
    }))
}

fn url_target(field: &str, url: &str, authority: Authority) -> Result<HttpTarget, HookError> {
    if let Authority::Annotation(_) = authority {
        return Err(at(field, Problem::UrlOfPod));
    }
    let host = url.split_once("://").map_or("", |(_, rest)| rest);
    let usable = (url.starts_with("http://") || url.starts_with("https://"))
        && !host.is_empty()
        && !host.starts_with('/');
    if usable && url.bytes().all(|byte| byte.is_ascii_graphic()) {
        Ok(HttpTarget::Url(url.to_owned()))
    } else {
        Err(at(
            field,
            Problem::Expected("a URL that begins with http:// or https://"),
        ))
    }
}

fn port(field: &Field<'_>, facts: Option<&PodFacts>) -> Result<Port, HookError> {
    let expected = || {
        field.error(Problem::Expected(
            "a port: 1 to 65535, or the name of a container's port",
        ))
    };
    if let Some(number) = field.value.as_u64() {
        let number = u16::try_from(number).ok().filter(|number| *number > 0);
        return number.map(Port::Number).ok_or_else(expected);
    }
    let name = field.value.as_str().ok_or_else(expected)?;
    let is_name = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    // Rule of port names: Kubernetes 1.36, IANA service names of at most 15 characters.
    if name.is_empty()
        || name.len() > 15
        || !name.bytes().all(is_name)
        || name.bytes().all(|byte| byte.is_ascii_digit())
    {
        return Err(expected());
    }
    match facts {
        Some(facts) if facts.port(name).is_none() => Err(field.error(Problem::UnknownPort {
            name: name.to_owned(),
        })),
        _ => Ok(Port::Name(name.to_owned())),
    }
}

fn request_path(field: &Field<'_>) -> Result<String, HookError> {
    let path = field.text()?;
    if path.starts_with('/') && path.bytes().all(|byte| byte.is_ascii_graphic()) {
        Ok(path.to_owned())
    } else {
        Err(field.error(Problem::Expected("a path that begins with /")))
    }
}

fn statuses(field: &Field<'_>) -> Result<(u16, u16), HookError> {
    let expected = || field.error(Problem::Expected("a status such as 204 or 2xx"));
    if let Some(code) = field.value.as_u64() {
        let code = u16::try_from(code)
            .ok()
            .filter(|code| (100..600).contains(code));
        return code.map(|code| (code, code)).ok_or_else(expected);
    }
    match field.value.as_str().map(str::as_bytes) {
        Some([class @ b'1'..=b'5', b'x', b'x']) => {
            let first = u16::from(class - b'0') * 100;
            Ok((first, first + 99))
        }
        _ => Err(expected()),
    }
}

fn auth(field: &Field<'_>, facts: Option<&PodFacts>) -> Result<HttpAuth, HookError> {
    let mut fields = Fields::of(
        field.path.clone(),
        field.value,
        "a volume with username and password, or with bearer",
    )?;
    let expected = || {
        field.error(Problem::Expected(
            "a volume with username and password, or with bearer",
        ))
    };
    let volume_field = fields.take("volume").ok_or_else(expected)?;
    let volume: SmolStr = volume_field.text()?.into();
    if let Some(facts) = facts {
        check_volume(&volume_field, &volume, facts)?;
    }
    let mut file = |name| {
        fields
            .take(name)
            .map(|field| field.text().map(str::to_owned))
            .transpose()
    };
    let files = (file("username")?, file("password")?, file("bearer")?);
    fields.finish()?;
    match files {
        (Some(username), Some(password), None) => Ok(HttpAuth::Basic {
            volume,
            username,
            password,
        }),
        (None, None, Some(path)) => Ok(HttpAuth::Bearer { volume, path }),
        _ => Err(expected()),
    }
}

fn verification(field: &Field<'_>) -> Result<HttpTls, HookError> {
    let mut fields = Fields::of(
        field.path.clone(),
        field.value,
        "fields ca, serverName, insecureSkipVerify",
    )?;
    let ca = fields
        .take("ca")
        .map(|field| field.text().map(str::to_owned))
        .transpose()?;
    let server_name = fields
        .take("serverName")
        .map(|field| field.text().map(str::to_owned))
        .transpose()?;
    let insecure = fields
        .take("insecureSkipVerify")
        .map(|field| field.flag())
        .transpose()?;
    fields.finish()?;
    Ok(HttpTls {
        ca,
        server_name,
        insecure_skip_verify: insecure.unwrap_or(false),
    })
}

fn timing(fields: &mut Fields<'_>, default: Timing) -> Result<Timing, HookError> {
    let mut timing = default;
    if let Some(field) = fields.take("debounce") {
        timing.debounce = debounce(&field)?;
    }
    if let Some(field) = fields.take("splay") {
        timing.splay = field.duration()?;
    }
    if let Some(field) = fields.take("timeout") {
        timing.timeout = Some(field.duration()?);
    }
    if let Some(field) = fields.take("retry") {
        timing.retry = retry(&field)?;
    }
    Ok(timing)
}

fn debounce(field: &Field<'_>) -> Result<Debounce, HookError> {
    if field.value.is_string() {
        let min = field.duration()?;
        return Ok(Debounce {
            min,
            max: min.saturating_mul(4),
        });
    }
    let mut fields = Fields::of(
        field.path.clone(),
        field.value,
        "a duration, or the fields min and max",
    )?;
    let min = fields
        .take("min")
        .ok_or_else(|| field.error(Problem::Expected("the field min")))?
        .duration()?;
    let max = fields
        .take("max")
        .map(|field| field.duration())
        .transpose()?;
    fields.finish()?;
    let max = max.unwrap_or(min.saturating_mul(4));
    if min > max {
        Err(field.error(Problem::MinAboveMax))
    } else {
        Ok(Debounce { min, max })
    }
}

fn retry(field: &Field<'_>) -> Result<Retry, HookError> {
    let mut fields = Fields::of(
        field.path.clone(),
        field.value,
        "the fields min, max and attempts",
    )?;
    let default = Retry::default();
    let min = fields
        .take("min")
        .map(|field| field.duration())
        .transpose()?
        .unwrap_or(default.min);
    let max = fields
        .take("max")
        .map(|field| field.duration())
        .transpose()?
        .unwrap_or(default.max.max(min));
    let attempts = match fields.take("attempts") {
        None => default.attempts,
        Some(attempts) => {
            let number = attempts
                .value
                .as_u64()
                .and_then(|number| u32::try_from(number).ok());
            number.ok_or_else(|| attempts.error(Problem::Expected("a number, 0 for no limit")))?
        }
    };
    fields.finish()?;
    if min > max {
        Err(field.error(Problem::MinAboveMax))
    } else {
        Ok(Retry { min, max, attempts })
    }
}

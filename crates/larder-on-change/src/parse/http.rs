//! The action `http`: a target in the short form, or its fields.

use http::{HeaderName, HeaderValue, Uri};
use rustls_pki_types::ServerName;
use serde_json::Value;
use smol_str::SmolStr;

use super::{
    HookOrigin, MAX_BODY,
    error::{HookError, Problem, at},
    fields::{Field, Fields},
};
use crate::{
    facts::PodFacts,
    hook::{HttpAuth, HttpCall, HttpTarget, HttpTls, HttpUrl, Port},
};

/// Reads the action.
pub(super) fn http(
    field: &Field<'_>,
    origin: HookOrigin,
    facts: Option<&PodFacts>,
) -> Result<HttpCall, HookError> {
    if let Some(target) = field.value.as_str() {
        return http_call(&field.path, target, origin, facts);
    }
    let mut fields = Fields::of(
        field.path.clone(),
        field.value,
        "a target such as 9090/-/reload, or fields",
    )?;
    let url = fields.take("url");
    let scheme = fields.take("scheme");
    let tls = match &scheme {
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
        (Some(url), None) if path.is_none() && scheme.is_none() => {
            url_target(&url.path, url.text()?, origin)?
        }
        (None, Some(port)) => HttpTarget::Pod {
            port,
            path: path.unwrap_or_else(|| "/".to_owned()),
            tls,
        },
        (Some(url), _) => {
            return Err(url.error(Problem::Expected("either url, or port, path and scheme")));
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
        call.headers = headers.pairs("headers with their values")?;
        for (name, value) in &call.headers {
            let reserved = ["host", "content-length", "transfer-encoding", "connection"];
            if reserved.contains(&name.to_ascii_lowercase().as_str()) {
                return Err(headers.error(Problem::ReservedHeader { name: name.clone() }));
            }
            if HeaderName::from_bytes(name.as_bytes()).is_err() {
                return Err(headers.error(Problem::Expected("names of headers")));
            }
            if HeaderValue::from_str(value).is_err() {
                let field = format!("{}.{name}", headers.path);
                return Err(at(field, Problem::Expected("the value of a header")));
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
    origin: HookOrigin,
    facts: Option<&PodFacts>,
) -> Result<HttpCall, HookError> {
    if target.starts_with("http://") || target.starts_with("https://") {
        return Ok(plain(url_target(field, target, origin)?));
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

fn url_target(field: &str, url: &str, origin: HookOrigin) -> Result<HttpTarget, HookError> {
    if let HookOrigin::Annotation(_) = origin {
        return Err(at(field, Problem::UrlOfPod));
    }
    HttpUrl::parse(url)
        .map(HttpTarget::Url)
        .map_err(|error| at(field, Problem::Url(error)))
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
    let uri: Result<Uri, _> = path.parse();
    let is_whole = |uri: Uri| {
        uri.path_and_query()
            .is_some_and(|found| found.as_str() == path)
    };
    let is_printable = path.bytes().all(|byte| byte.is_ascii_graphic());
    if path.starts_with('/') && is_printable && uri.is_ok_and(is_whole) {
        Ok(path.to_owned())
    } else {
        Err(field.error(Problem::Expected(
            "a path that begins with / and has no blanks and no fragment",
        )))
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
        volume_field.check_volume(&volume, facts)?;
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
        .map(|field| server_name(&field))
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

fn server_name(field: &Field<'_>) -> Result<String, HookError> {
    let name = field.text()?;
    match ServerName::try_from(name) {
        Ok(_) => Ok(name.to_owned()),
        Err(_) => Err(field.error(Problem::Expected("the name or the address of a server"))),
    }
}

//! The action `http`: a target in the short form, or its fields.

use http::{HeaderName, HeaderValue, Uri};
use rustls_pki_types::ServerName;
use serde_json::Value;
use smol_str::SmolStr;

use super::{
    MAX_BODY,
    error::{HookError, at},
    fields::{Field, ParseContext},
};
use crate::hook::{HttpAuth, HttpCall, HttpTarget, HttpTls, HttpUrl, Port};

/// Reads the action.
pub(super) fn http(field: &Field<'_>) -> Result<HttpCall, HookError> {
    if let Some(target) = field.value.as_str() {
        return http_call(&field.path, target, field.context);
    }
    let mut fields = field.fields("a target such as 9090/-/reload, or fields")?;
    let url = fields.take("url");
    let tls = fields.read("scheme", |scheme| match scheme.text()? {
        "http" | "HTTP" => Ok(false),
        "https" | "HTTPS" => Ok(true),
        _ => Err(scheme.expected("http or https")),
    })?;
    let port = fields.read("port", port)?;
    let path = fields.read("path", request_path)?;
    let target = match (url, port) {
        (Some(url), None) if path.is_none() && tls.is_none() => {
            url_target(&url.path, url.text()?, url.context)?
        }
        (None, Some(port)) => HttpTarget::Pod {
            port,
            path: path.unwrap_or_else(|| "/".to_owned()),
            tls: tls.unwrap_or(false),
        },
        (Some(url), _) => return Err(url.expected("either url, or port, path and scheme")),
        (None, None) => return Err(field.expected("the field port or url")),
    };
    let mut call = HttpCall::post(target);
    let method = fields.read("method", |method| match method.text()? {
        "GET" => Ok("GET"),
        "PUT" => Ok("PUT"),
        "POST" => Ok("POST"),
        _ => Err(method.expected("GET, PUT or POST")),
    })?;
    call.method = method.unwrap_or(call.method);
    call.headers = fields.read("headers", headers)?.unwrap_or_default();
    let body = fields.read("body", |body| match body.string()? {
        body_text if body_text.len() <= MAX_BODY => Ok(body_text),
        _ => Err(body.expected("at most 64 KiB")),
    })?;
    call.body = body.unwrap_or_default();
    let expect = fields.read("expect", |expect| {
        let statuses = expect.items()?.map(|item| statuses(&item));
        statuses.collect::<Result<_, _>>()
    })?;
    call.expect = expect.unwrap_or(call.expect);
    call.auth = fields.read("auth", auth)?;
    call.tls = fields.read("tls", verification)?.unwrap_or_default();
    fields.finish()?;
    Ok(call)
}

fn headers(field: &Field<'_>) -> Result<Vec<(String, String)>, HookError> {
    let headers = field.pairs("headers with their values")?;
    for (name, value) in &headers {
        let reserved = ["host", "content-length", "transfer-encoding", "connection"];
        if reserved.contains(&name.to_ascii_lowercase().as_str()) {
            return Err(field.error(format!("header {name} cannot be set")));
        }
        if HeaderName::from_bytes(name.as_bytes()).is_err() {
            return Err(field.expected("names of headers"));
        }
        if HeaderValue::from_str(value).is_err() {
            let path = format!("{}.{name}", field.path);
            return Err(at(path, "expected the value of a header"));
        }
    }
    Ok(headers)
}

/// A request in the short form: `PORT/PATH`, or a URL.
fn http_call(field: &str, target: &str, context: ParseContext<'_>) -> Result<HttpCall, HookError> {
    if target.starts_with("http://") || target.starts_with("https://") {
        return Ok(HttpCall::post(url_target(field, target, context)?));
    }
    let (port_text, path) = target.split_at(target.find('/').unwrap_or(target.len()));
    let value = match port_text.parse::<u16>() {
        Ok(number) => Value::from(number),
        Err(_) => Value::from(port_text),
    };
    let in_field = |value| Field {
        path: field.to_owned(),
        value,
        context,
    };
    let port = port(&in_field(&value))?;
    let path_value = Value::from(if path.is_empty() { "/" } else { path });
    let path = request_path(&in_field(&path_value))?;
    Ok(HttpCall::post(HttpTarget::Pod {
        port,
        path,
        tls: false,
    }))
}

fn url_target(field: &str, url: &str, context: ParseContext<'_>) -> Result<HttpTarget, HookError> {
    if context.is_annotation() {
        let problem = "a hook in an annotation may call only its own pod; use port and path";
        return Err(at(field, problem));
    }
    HttpUrl::parse(url)
        .map(HttpTarget::Url)
        .map_err(|error| at(field, error))
}

fn port(field: &Field<'_>) -> Result<Port, HookError> {
    let expected = || field.expected("a port: 1 to 65535, or the name of a container's port");
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
    match field.context.outline {
        Some(outline) if outline.port(name).is_none() => {
            Err(field.error(format!("no container has a port named {name:?}")))
        }
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
        Err(field.expected("a path that begins with / and has no blanks and no fragment"))
    }
}

fn statuses(field: &Field<'_>) -> Result<(u16, u16), HookError> {
    let expected = || field.expected("a status such as 204 or 2xx");
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

fn auth(field: &Field<'_>) -> Result<HttpAuth, HookError> {
    let expected = "a volume with username and password, or with bearer";
    let mut fields = field.fields(expected)?;
    let volume = fields.read("volume", |volume| {
        let name = volume.text()?;
        volume.check_volume(name)?;
        Ok(SmolStr::from(name))
    })?;
    let volume = volume.ok_or_else(|| field.expected(expected))?;
    let mut file = |name| fields.read(name, Field::string);
    let files = (file("username")?, file("password")?, file("bearer")?);
    fields.finish()?;
    match files {
        (Some(username), Some(password), None) => Ok(HttpAuth::Basic {
            volume,
            username,
            password,
        }),
        (None, None, Some(path)) => Ok(HttpAuth::Bearer { volume, path }),
        _ => Err(field.expected(expected)),
    }
}

fn verification(field: &Field<'_>) -> Result<HttpTls, HookError> {
    let mut fields = field.fields("fields ca, serverName, insecureSkipVerify")?;
    let ca = fields.read("ca", Field::string)?;
    let server_name = fields.read("serverName", server_name)?;
    let insecure = fields.read("insecureSkipVerify", Field::flag)?;
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
        Err(_) => Err(field.expected("the name or the address of a server")),
    }
}

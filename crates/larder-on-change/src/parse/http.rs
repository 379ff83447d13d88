//! The action `http`: a target in the short form, or its fields.

use std::collections::BTreeMap;

use http::{HeaderName, HeaderValue, Uri};
use larder_net::http_url::HttpUrl;
use larder_objects::yaml::ShortOr;
use rustls_pki_types::ServerName;

use super::{
    MAX_BODY,
    error::HookError,
    place::FieldPlace,
    written::{AuthFields, HttpField, HttpFields, Method, NumberOrText, Scheme, TlsFields},
};
use crate::hook::{HttpAuth, HttpCall, HttpTarget, HttpTls, Port};

/// Checks the action.
pub(super) fn http(field: HttpField, place: &FieldPlace<'_>) -> Result<HttpCall, HookError> {
    let fields = match field {
        ShortOr::Short(target) => return short_call(&target, place),
        ShortOr::Fields(fields) => fields,
    };
    let mut call = HttpCall::post(target(&fields, place)?);
    call.method = match fields.method {
        None | Some(Method::Post) => "POST",
        Some(Method::Get) => "GET",
        Some(Method::Put) => "PUT",
    };
    call.headers = headers(fields.headers.unwrap_or_default(), &place.child("headers"))?;
    call.body = fields.body.unwrap_or_default();
    if call.body.len() > MAX_BODY {
        return Err(place.child("body").expected("at most 64 KiB"));
    }
    if let Some(expect) = fields.expect {
        let place = place.child("expect");
        let expect = expect.iter().enumerate();
        let ranges = expect.map(|(index, status)| statuses(status, &place.index(index)));
        call.expect = ranges.collect::<Result<_, _>>()?;
    }
    let auth = fields.auth.map(|fields| auth(fields, &place.child("auth")));
    call.auth = auth.transpose()?;
    let tls = fields
        .tls
        .map(|fields| verification(fields, &place.child("tls")));
    call.tls = tls.transpose()?.unwrap_or_default();
    Ok(call)
}

fn target(fields: &HttpFields, place: &FieldPlace<'_>) -> Result<HttpTarget, HookError> {
    match (&fields.url, &fields.port) {
        (Some(url), None) if fields.path.is_none() && fields.scheme.is_none() => {
            url_target(url, &place.child("url"))
        }
        (None, Some(number_or_name)) => Ok(HttpTarget::Pod {
            port: port(number_or_name, &place.child("port"))?,
            path: match &fields.path {
                Some(path) => request_path(path, &place.child("path"))?,
                None => "/".to_owned(),
            },
            tls: matches!(fields.scheme, Some(Scheme::Https)),
        }),
        (Some(_), _) => Err(place
            .child("url")
            .expected("either url, or port, path and scheme")),
        (None, None) => Err(place.expected("the field port or url")),
    }
}

fn headers(
    written: BTreeMap<String, String>,
    place: &FieldPlace<'_>,
) -> Result<Vec<(String, String)>, HookError> {
    let headers = place.one_line_pairs(written)?;
    for (name, value) in &headers {
        let reserved = ["host", "content-length", "transfer-encoding", "connection"];
        if reserved.contains(&name.to_ascii_lowercase().as_str()) {
            return Err(place.error(format!("header {name} cannot be set")));
        }
        if HeaderName::from_bytes(name.as_bytes()).is_err() {
            return Err(place.expected("names of headers"));
        }
        if HeaderValue::from_str(value).is_err() {
            return Err(place.child(name).expected("the value of a header"));
        }
    }
    Ok(headers)
}

/// A request in the short form: `PORT/PATH`, or a URL.
fn short_call(target: &str, place: &FieldPlace<'_>) -> Result<HttpCall, HookError> {
    if target.starts_with("http://") || target.starts_with("https://") {
        return Ok(HttpCall::post(url_target(target, place)?));
    }
    let (port_text, path) = target.split_at(target.find('/').unwrap_or(target.len()));
    let written = match port_text.parse::<u16>() {
        Ok(number) => NumberOrText::Number(number.into()),
        Err(_) => NumberOrText::Text(port_text.to_owned()),
    };
    Ok(HttpCall::post(HttpTarget::Pod {
        port: port(&written, place)?,
        path: request_path(if path.is_empty() { "/" } else { path }, place)?,
        tls: false,
    }))
}

fn url_target(url: &str, place: &FieldPlace<'_>) -> Result<HttpTarget, HookError> {
    if place.is_annotation() {
        let problem = "a hook in an annotation may call only its own pod; use port and path";
        return Err(place.error(problem));
    }
    HttpUrl::parse(url)
        .map(HttpTarget::Url)
        .map_err(|error| place.error(error))
}

fn port(written: &NumberOrText, place: &FieldPlace<'_>) -> Result<Port, HookError> {
    let expected = || place.expected("a port: 1 to 65535, or the name of a container's port");
    let name = match written {
        NumberOrText::Text(name) => name,
        NumberOrText::Number(number) => {
            let number = number
                .as_u64()
                .and_then(|number| u16::try_from(number).ok())
                .filter(|number| *number > 0);
            return number.map(Port::Number).ok_or_else(expected);
        }
    };
    let is_name = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    // Rule of port names: Kubernetes 1.36, IANA service names of at most 15 characters.
    if name.is_empty()
        || name.len() > 15
        || !name.bytes().all(is_name)
        || name.bytes().all(|byte| byte.is_ascii_digit())
    {
        return Err(expected());
    }
    match place.context.outline {
        Some(outline) if outline.port(name).is_none() => {
            Err(place.error(format!("no container has a port named {name:?}")))
        }
        _ => Ok(Port::Name(name.to_owned())),
    }
}

fn request_path(path: &str, place: &FieldPlace<'_>) -> Result<String, HookError> {
    let uri: Result<Uri, _> = path.parse();
    let is_whole = |uri: Uri| {
        uri.path_and_query()
            .is_some_and(|found| found.as_str() == path)
    };
    let is_printable = path.bytes().all(|byte| byte.is_ascii_graphic());
    if path.starts_with('/') && is_printable && uri.is_ok_and(is_whole) {
        Ok(path.to_owned())
    } else {
        Err(place.expected("a path that begins with / and has no blanks and no fragment"))
    }
}

fn statuses(written: &NumberOrText, place: &FieldPlace<'_>) -> Result<(u16, u16), HookError> {
    let range = match written {
        NumberOrText::Number(code) => {
            let code = code
                .as_u64()
                .and_then(|code| u16::try_from(code).ok())
                .filter(|code| (100..600).contains(code));
            code.map(|code| (code, code))
        }
        NumberOrText::Text(class) => match class.as_bytes() {
            [class @ b'1'..=b'5', b'x', b'x'] => {
                let first = u16::from(class - b'0') * 100;
                Some((first, first + 99))
            }
            _ => None,
        },
    };
    range.ok_or_else(|| place.expected("a status such as 204 or 2xx"))
}

fn auth(fields: AuthFields, place: &FieldPlace<'_>) -> Result<HttpAuth, HookError> {
    place.child("volume").check_volume(&fields.volume)?;
    let volume = fields.volume;
    match (fields.username, fields.password, fields.bearer) {
        (Some(username), Some(password), None) => Ok(HttpAuth::Basic {
            volume,
            username,
            password,
        }),
        (None, None, Some(path)) => Ok(HttpAuth::Bearer { volume, path }),
        _ => Err(place.expected("a volume with username and password, or with bearer")),
    }
}

fn verification(fields: TlsFields, place: &FieldPlace<'_>) -> Result<HttpTls, HookError> {
    if let Some(name) = &fields.server_name
        && ServerName::try_from(name.as_str()).is_err()
    {
        return Err(place
            .child("serverName")
            .expected("the name or the address of a server"));
    }
    Ok(HttpTls {
        ca: fields.ca,
        server_name: fields.server_name,
        insecure_skip_verify: fields.insecure_skip_verify.unwrap_or(false),
    })
}

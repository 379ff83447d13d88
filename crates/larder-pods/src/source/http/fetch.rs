//! One request of the URL, with its redirects.

use std::collections::BTreeMap;

use http::{HeaderMap, HeaderName, HeaderValue, Request, StatusCode, Uri, header};
use http_body_util::{BodyExt as _, Empty};
use larder_net::{redirect::redirect_target, url::basic_authorization};
use tower::ServiceExt as _;

use super::{HttpService, HttpSourceError, REDIRECTS, TOO_LONG};

/// Requests the URL.
pub(super) struct Fetch {
    url: Uri,
    headers: HeaderMap,
    service: HttpService,
}

impl Fetch {
    /// Requests of `url` with these headers, over this transport. A user and password in the URL are sent as Go's client
    /// sends them, unless `headers` hold an `Authorization`.
    pub(super) fn new(
        url: Uri,
        headers: &BTreeMap<String, Vec<String>>,
        service: HttpService,
    ) -> Result<Self, HttpSourceError> {
        Ok(Self {
            headers: header_map(headers, &url)?,
            url,
            service,
        })
    }

    /// The body of a good response.
    pub(super) async fn body(&self) -> Result<Vec<u8>, HttpSourceError> {
        let mut url = self.url.clone();
        for _ in 0..=REDIRECTS {
            let mut request = Request::get(url.clone());
            // The headers authorize to the configured server only.
            if url.authority() == self.url.authority()
                && url.scheme() == self.url.scheme()
                && let Some(headers) = request.headers_mut()
            {
                headers.clone_from(&self.headers);
            }
            let request = request
                .body(Empty::new())
                .map_err(|_| HttpSourceError::Url)?;
            let response = self
                .service
                .clone()
                .oneshot(request)
                .await
                .map_err(HttpSourceError::Request)?;
            if response.status().is_redirection()
                && let Some(location) = response.headers().get(header::LOCATION)
            {
                url = redirected(&url, location).ok_or(HttpSourceError::Redirects)?;
                continue;
            }
            if response.status() != StatusCode::OK {
                return Err(HttpSourceError::Status(response.status()));
            }
            let mut body = response.into_body();
            let mut bytes = Vec::new();
            while let Some(frame) = body.frame().await {
                if let Ok(data) = frame.map_err(HttpSourceError::Body)?.into_data() {
                    bytes.extend_from_slice(&data);
                }
                if bytes.len() >= TOO_LONG {
                    return Err(HttpSourceError::TooLong);
                }
            }
            return Ok(bytes);
        }
        Err(HttpSourceError::Redirects)
    }
}

fn header_map(
    headers: &BTreeMap<String, Vec<String>>,
    url: &Uri,
) -> Result<HeaderMap, HttpSourceError> {
    let mut map = HeaderMap::new();
    for (name, values) in headers {
        let key: HeaderName = name.parse().map_err(|_| HttpSourceError::HeaderName)?;
        for value in values {
            let mut value: HeaderValue =
                value.parse().map_err(|_| HttpSourceError::HeaderValue {
                    name: key.to_string(),
                })?;
            value.set_sensitive(true);
            map.append(key.clone(), value);
        }
    }
    let basic = basic_authorization(url).map_err(|_| HttpSourceError::Url)?;
    if let (Some(basic), header::Entry::Vacant(entry)) = (basic, map.entry(header::AUTHORIZATION)) {
        let mut value = HeaderValue::try_from(basic.as_str()).map_err(|_| HttpSourceError::Url)?;
        value.set_sensitive(true);
        entry.insert(value);
    }
    Ok(map)
}

/// Where `location` leads from `url`.
fn redirected(url: &Uri, location: &HeaderValue) -> Option<Uri> {
    let (scheme, authority) = (url.scheme_str()?, url.authority()?.as_str());
    let target = redirect_target(scheme, authority, url.path(), location.to_str().ok()?);
    let url: Uri = target.parse().ok()?;
    matches!(url.scheme_str(), Some("http" | "https")).then_some(url)
}

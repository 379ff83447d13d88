//! A mark for requests that are exempt from the rate limit of a transport.

/// Extension of a request whose sender limits the rate of such requests. The transport's own rate limit neither delays
/// nor counts it.
///
/// ```
/// let mut request = http::Request::get("/api").body(()).unwrap();
/// request.extensions_mut().insert(larder_transport::OwnRateLimit);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OwnRateLimit;

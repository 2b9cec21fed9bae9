//! Filters: what a rule changes in a request, or the response that it sends instead of forwarding.

use std::sync::Arc;
use std::time::Duration;

use http::uri::{Authority, PathAndQuery, Scheme};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, Uri};

use super::cors::Cors;
use super::http::RequestHead;
use crate::backend::Backend;

/// A filter of a rule.
#[derive(Clone, Debug, PartialEq)]
pub enum Filter {
    /// Changes the request's headers.
    RequestHeaders(HeaderModifier),
    /// Changes the response's headers.
    ResponseHeaders(HeaderModifier),
    /// Responds with a redirect.
    Redirect(Redirect),
    /// Changes the URI of the request.
    UrlRewrite(UrlRewrite),
    /// Sends copies of requests to another backend.
    RequestMirror(RequestMirror),
    /// Shares the resource with other origins.
    Cors(Arc<Cors>),
    /// Responds to a share of the requests with an HTTP error.
    InjectHttpFailure {
        /// The status of the error.
        status: StatusCode,
        /// The message of the error.
        message: Arc<str>,
        /// The share of requests.
        ratio: Ratio,
    },
    /// Responds to a share of the calls with a gRPC error.
    InjectGrpcFailure {
        /// The gRPC status code.
        code: u16,
        /// The message of the error.
        message: Arc<str>,
        /// The share of calls.
        ratio: Ratio,
    },
    /// Holds a share of the requests back before they are sent.
    Delay {
        /// How long.
        duration: Duration,
        /// The share of requests.
        ratio: Ratio,
    },
    /// A filter of the control plane that this version does not support; every request of the rule
    /// fails with this message.
    InternalError(Arc<str>),
}

/// A change of headers, applied in this order: add, set, remove.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HeaderModifier {
    /// Fields to add.
    pub add: Vec<(HeaderName, HeaderValue)>,
    /// Fields to set.
    pub set: Vec<(HeaderName, HeaderValue)>,
    /// Fields to remove.
    pub remove: Vec<HeaderName>,
}

/// A redirect; `None` keeps the part of the request's URI.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Redirect {
    /// The scheme of the target, which implies its default port.
    pub scheme: Option<Scheme>,
    /// The host of the target, without a port.
    pub host: Option<Arc<str>>,
    /// The port of the target.
    pub port: Option<u16>,
    /// How the path of the target differs from the requested one.
    pub path: Option<PathModifier>,
    /// The status, 301 when absent.
    pub status: Option<StatusCode>,
}

/// A change of the URI that is forwarded; `None` keeps the part of the request's URI.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UrlRewrite {
    /// The authority of the forwarded request: a host without a port.
    pub host: Option<Arc<str>>,
    /// How the forwarded path differs from the requested one.
    pub path: Option<PathModifier>,
}

/// A backend that receives copies of requests. Its responses are ignored.
#[derive(Clone, Debug, PartialEq)]
pub struct RequestMirror {
    /// Where the copies are sent to.
    pub backend: Arc<Backend>,
    /// The share of the requests that are copied.
    pub ratio: Ratio,
}

/// A change of a path, which keeps the query.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PathModifier {
    /// Replaces the whole path.
    Full(Arc<str>),
    /// Replaces the prefix that the rule matched.
    Prefix(Arc<str>),
}

/// A share of `numerator` of `denominator` requests; a denominator of 0 means every request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ratio {
    /// Requests of `denominator` requests that belong to the share.
    pub numerator: u32,
    /// Number of requests that `numerator` refers to.
    pub denominator: u32,
}

/// Why a path cannot be changed.
#[derive(Debug, thiserror::Error)]
pub enum PathError {
    /// A prefix is replaced, but the rule has no prefix match.
    #[error("the filter replaces a path prefix, but the rule matched no prefix")]
    NoPrefix,
    /// The changed path contains characters of other parts of a URI.
    #[error("{0:?} is not a path")]
    Invalid(String),
}

/// Why a redirect has no target.
#[derive(Debug, thiserror::Error)]
pub enum RedirectError {
    /// Neither the redirect nor the request has a host.
    #[error("redirect without a host, and the request has none")]
    MissingHost,
    /// The path of the target cannot be computed.
    #[error(transparent)]
    Path(#[from] PathError),
    /// The target is not a valid URI.
    #[error("invalid target of a redirect")]
    InvalidTarget(#[source] http::Error),
}

/// The kind of requests that a route has. Linkerd's proxy API has separate filters for each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestKind {
    /// Requests of an HTTPRoute.
    Http,
    /// Calls of a GRPCRoute.
    Grpc,
}

/// Proxies that forward requests without some of the filters, although the route is accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Proxies {
    /// The proxies of a Server's pods, for the requests of its clients.
    OfServer,
    /// Linkerd's proxies, for the requests of their own pods.
    Linkerd,
}

/// Why a request has no rewritten URI.
#[derive(Debug, thiserror::Error)]
pub enum RewriteError {
    /// The host is not an authority without user information.
    #[error("{0:?} is not a host")]
    InvalidHost(Arc<str>),
    /// The request is `CONNECT`, or the path of `*` would change.
    #[error("the request has no path")]
    NoPath,
    /// The rewritten path cannot be computed.
    #[error(transparent)]
    Path(#[from] PathError),
    /// The parts of the URI do not fit together.
    #[error("invalid URI: {0}")]
    InvalidUri(http::uri::InvalidUriParts),
}

impl Filter {
    /// Returns the type of the filter in the Gateway API if Linkerd's proxy API has no message for
    /// it in routes of these requests. Only outbound policies with the extension of this project
    /// carry such a filter.
    pub fn type_beyond_linkerd(&self, requests: RequestKind) -> Option<&'static str> {
        match self {
            Self::UrlRewrite(_) => Some("URLRewrite"),
            Self::ResponseHeaders(_) if requests == RequestKind::Grpc => {
                Some("ResponseHeaderModifier")
            }
            Self::RequestMirror(_) => Some("RequestMirror"),
            Self::Cors(_) => Some("CORS"),
            Self::Delay { .. } => Some("ExtensionRef to a delay"),
            Self::RequestHeaders(_)
            | Self::ResponseHeaders(_)
            | Self::Redirect(_)
            | Self::InjectHttpFailure { .. }
            | Self::InjectGrpcFailure { .. }
            | Self::InternalError(_) => None,
        }
    }

    /// Returns what these proxies do without the filter, as a clause; `None` if they apply it, or
    /// fail the requests.
    pub fn left_out(&self, by: Proxies) -> Option<&'static str> {
        match (self, by) {
            (Self::ResponseHeaders(_), Proxies::OfServer) => {
                Some("proxies of a Server do not change response headers")
            }
            (Self::Delay { .. }, Proxies::Linkerd) => {
                Some("Linkerd's proxies do not delay requests")
            }
            _ => None,
        }
    }
}

impl HeaderModifier {
    /// Applies the changes to `headers`.
    pub fn apply(&self, headers: &mut HeaderMap) {
        for (name, value) in &self.add {
            headers.append(name.clone(), value.clone());
        }
        for (name, value) in &self.set {
            headers.insert(name.clone(), value.clone());
        }
        for name in &self.remove {
            headers.remove(name);
        }
    }
}

impl Redirect {
    /// Returns the status and target of the redirect, or `None` for a request that has the target's
    /// URI already and is forwarded. A redirect that sets no part of the URI always has a target.
    /// `prefix` is the length of the matched prefix
    /// ([`RuleIndex::prefix`](super::RuleIndex::prefix)). The query is kept.
    ///
    /// # Errors
    ///
    /// The redirect has no valid target for this request.
    pub fn target(
        &self,
        request: &RequestHead<'_>,
        prefix: Option<usize>,
    ) -> Result<Option<(StatusCode, Uri)>, RedirectError> {
        let requested = request.scheme.unwrap_or(&Scheme::HTTP);
        let scheme = self.scheme.as_ref().unwrap_or(requested);
        let requested_host = request.host();
        let host = match &self.host {
            Some(host) => host,
            None => requested_host.ok_or(RedirectError::MissingHost)?,
        };
        let requested_port = request.port().or(implied_port(requested));
        // A new scheme without a port implies the scheme's default port, as in the Gateway API;
        // otherwise the request's port is kept.
        let port = match (self.port, &self.scheme) {
            (Some(port), _) => Some(port),
            (None, Some(scheme)) => implied_port(scheme),
            (None, None) => requested_port,
        };
        let path = match &self.path {
            Some(modifier) => modifier.apply(request.path, prefix)?,
            None => request.path.to_owned(),
        };
        // A rule that redirects to `/login` and also matches it would otherwise redirect endlessly,
        // so Linkerd's proxy forwards this request. A redirect that sets no part of the URI would
        // never apply then; the conformance tests of the Gateway API expect a response with it.
        let names_target = self.scheme.is_some()
            || self.host.is_some()
            || self.port.is_some()
            || self.path.is_some();
        let is_there = scheme == requested
            && requested_host.is_some_and(|have| have.eq_ignore_ascii_case(host))
            && port == requested_port
            && path == request.path;
        if names_target && is_there {
            return Ok(None);
        }
        let target = Uri::builder()
            .scheme(scheme.clone())
            .authority(match port {
                Some(port) if Some(port) != implied_port(scheme) => format!("{host}:{port}"),
                _ => host.to_owned(),
            })
            .path_and_query(match request.query {
                Some(query) => format!("{path}?{query}"),
                None => path,
            })
            .build()
            .map_err(RedirectError::InvalidTarget)?;
        let status = self.status.unwrap_or(StatusCode::MOVED_PERMANENTLY);
        Ok(Some((status, target)))
    }
}

impl UrlRewrite {
    /// Returns the URI that is forwarded for a request of `uri`. `prefix` is the length of the
    /// matched prefix ([`RuleIndex::prefix`](super::RuleIndex::prefix)). The query is kept.
    ///
    /// # Errors
    ///
    /// The request has no such URI.
    pub fn apply(&self, uri: &Uri, prefix: Option<usize>) -> Result<Uri, RewriteError> {
        let mut parts = uri.clone().into_parts();
        if let Some(host) = &self.host {
            let authority = Authority::try_from(&**host).ok();
            let authority = authority.filter(|authority| !authority.as_str().contains('@'));
            parts.authority =
                Some(authority.ok_or_else(|| RewriteError::InvalidHost(host.clone()))?);
            // The target of `CONNECT` would be without its port.
            parts.path_and_query.as_ref().ok_or(RewriteError::NoPath)?;
            parts.scheme.get_or_insert(Scheme::HTTP);
        }
        if let Some(modifier) = &self.path {
            let requested = parts.path_and_query.as_ref().ok_or(RewriteError::NoPath)?;
            if !requested.path().starts_with('/') {
                return Err(RewriteError::NoPath);
            }
            let path = modifier.apply(requested.path(), prefix)?;
            let path_and_query = match requested.query() {
                Some(query) => format!("{path}?{query}"),
                None => path.clone(),
            };
            parts.path_and_query = Some(
                PathAndQuery::try_from(path_and_query)
                    .map_err(|_error| PathError::Invalid(path))?,
            );
        }
        Uri::from_parts(parts).map_err(RewriteError::InvalidUri)
    }
}

impl PathModifier {
    /// Whether a text is an absolute path, without characters that would become part of the query
    /// or be cut off.
    pub fn is_path(text: &str) -> bool {
        text.starts_with('/')
            && PathAndQuery::try_from(text).is_ok_and(|parsed| parsed.path() == text)
    }

    /// Returns the changed path, by the rules of the Gateway API for slashes: there is exactly one
    /// between the replacement and the rest, and one at the end of the requested path stays.
    fn apply(&self, requested: &str, prefix: Option<usize>) -> Result<String, PathError> {
        let path = match self {
            Self::Full(path) => path.to_string(),
            Self::Prefix(new) => {
                let rest = prefix
                    .and_then(|length| requested.get(length..))
                    .ok_or(PathError::NoPrefix)?;
                let new = new.trim_end_matches('/');
                match rest.strip_prefix('/') {
                    Some(rest) => format!("{new}/{rest}"),
                    None if rest.is_empty() && !new.is_empty() => new.to_owned(),
                    None => format!("{new}/{rest}"),
                }
            }
        };
        if Self::is_path(&path) {
            Ok(path)
        } else {
            Err(PathError::Invalid(path))
        }
    }
}

/// Returns the default port of a scheme.
fn implied_port(scheme: &Scheme) -> Option<u16> {
    match scheme.as_str() {
        "http" => Some(80),
        "https" => Some(443),
        _ => None,
    }
}

impl Ratio {
    /// Every request.
    pub const ALL: Self = Self {
        numerator: 1,
        denominator: 1,
    };

    /// Whether a request belongs to the share, given a random number that is uniformly distributed
    /// over `u32`.
    pub fn includes(self, draw: u32) -> bool {
        if self.denominator == 0 {
            return true;
        }
        let scaled = (u64::from(draw) * u64::from(self.denominator)) >> u32::BITS;
        scaled < u64::from(self.numerator)
    }
}

#[cfg(test)]
mod tests;

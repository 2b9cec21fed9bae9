//! Filters: what a rule changes in a request, or the response that it sends instead of forwarding.

use std::sync::Arc;

use http::uri::{PathAndQuery, Scheme};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, Uri};

use super::http::RequestHead;

/// A filter of a rule.
#[derive(Clone, Debug, PartialEq)]
pub enum Filter {
    /// Changes the request's headers.
    RequestHeaders(HeaderModifier),
    /// Changes the response's headers.
    ResponseHeaders(HeaderModifier),
    /// Responds with a redirect.
    Redirect(Redirect),
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

/// A change of a path.
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

/// Why a redirect has no target.
#[derive(Debug, thiserror::Error)]
pub enum RedirectError {
    /// Neither the redirect nor the request has a host.
    #[error("redirect without a host, and the request has none")]
    MissingHost,
    /// The redirect replaces a prefix, but the rule has no prefix match.
    #[error("redirect replaces a path prefix, but the rule matched no prefix")]
    NoPrefix,
    /// The target is not a valid URI.
    #[error("invalid target of a redirect")]
    InvalidTarget(#[source] http::Error),
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
    /// URI already and is forwarded. A redirect that names no part of the URI always has a target.
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
        let path = self.path(request.path, prefix)?;
        // A rule that redirects to `/login` and also matches it would otherwise redirect endlessly,
        // so Linkerd's proxy forwards this request. A redirect that names no part of the URI would
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

    fn path(&self, requested: &str, prefix: Option<usize>) -> Result<String, RedirectError> {
        let path = match &self.path {
            None => requested.to_owned(),
            Some(PathModifier::Full(path)) => path.to_string(),
            Some(PathModifier::Prefix(new)) => {
                let rest = prefix
                    .and_then(|length| requested.get(length..))
                    .ok_or(RedirectError::NoPrefix)?;
                let (new, rest) = (new.trim_end_matches('/'), rest.trim_start_matches('/'));
                match (new.is_empty(), rest.is_empty()) {
                    (false, true) => new.to_owned(),
                    _ => format!("{new}/{rest}"),
                }
            }
        };
        // Characters that a path must not contain would otherwise become part of the query or be
        // cut off.
        PathAndQuery::try_from(path.as_str())
            .map_err(|error| RedirectError::InvalidTarget(error.into()))?;
        Ok(path)
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

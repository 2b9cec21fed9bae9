//! What a rule does to a request before it goes on, or instead.

use std::sync::Arc;

use http::{
    HeaderMap, HeaderName, HeaderValue, StatusCode, Uri,
    uri::{PathAndQuery, Scheme},
};

use super::http::RequestHead;

#[derive(Clone, Debug, PartialEq)]
pub enum Filter {
    RequestHeaders(HeaderModifier),
    ResponseHeaders(HeaderModifier),
    Redirect(Redirect),
    /// Answers a share of the requests with an error of the rule's own.
    InjectHttpFailure {
        status: StatusCode,
        message: Arc<str>,
        ratio: Ratio,
    },
    InjectGrpcFailure {
        code: u16,
        message: Arc<str>,
        ratio: Ratio,
    },
    /// The control plane sent something this version does not know; every request of the rule fails
    /// with this message.
    InternalError(Arc<str>),
}

/// Applied in this order: add, set, remove.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HeaderModifier {
    pub add: Vec<(HeaderName, HeaderValue)>,
    pub set: Vec<(HeaderName, HeaderValue)>,
    pub remove: Vec<HeaderName>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Redirect {
    pub scheme: Option<Scheme>,
    pub host: Option<Arc<str>>,
    pub port: Option<u16>,
    pub path: Option<PathModifier>,
    /// 301 when absent.
    pub status: Option<StatusCode>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PathModifier {
    Full(Arc<str>),
    /// Replaces the part that the rule's prefix match matched.
    Prefix(Arc<str>),
}

/// `numerator` of `denominator` requests; a denominator of 0 is every request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ratio {
    pub numerator: u32,
    pub denominator: u32,
}

/// Why a redirect has no target.
#[derive(Debug, thiserror::Error)]
pub enum RedirectError {
    #[error("the request names no host to redirect to")]
    MissingHost,
    #[error("the redirect replaces a path prefix, but the rule matched no prefix")]
    NoPrefix,
    #[error("the redirect leads to no valid address")]
    InvalidTarget(#[source] http::Error),
}

impl HeaderModifier {
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
    /// Where the request is sent instead, or `None` when that is where it already goes. `prefix` is
    /// what the route's match took of the path ([`Found::prefix`](super::Found::prefix)). The query
    /// is kept.
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
        // A new scheme without a port means that scheme's own port, as the Gateway API has it;
        // otherwise the request's port stays.
        let port = match (self.port, &self.scheme) {
            (Some(port), _) => Some(port),
            (None, Some(scheme)) => implied_port(scheme),
            (None, None) => requested_port,
        };
        let path = self.path(request.path, prefix)?;
        let unchanged = scheme == requested
            && requested_host.is_some_and(|have| have.eq_ignore_ascii_case(host))
            && port == requested_port
            && path == request.path;
        if unchanged {
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
                    .and_then(|taken| requested.get(taken..))
                    .ok_or(RedirectError::NoPrefix)?;
                let (new, rest) = (new.trim_end_matches('/'), rest.trim_start_matches('/'));
                match (new.is_empty(), rest.is_empty()) {
                    (false, true) => new.to_owned(),
                    _ => format!("{new}/{rest}"),
                }
            }
        };
        // What a path must not contain would otherwise become a part of the query or be cut off.
        PathAndQuery::try_from(path.as_str())
            .map_err(|error| RedirectError::InvalidTarget(error.into()))?;
        Ok(path)
    }
}

/// The port of a scheme when an address names none.
fn implied_port(scheme: &Scheme) -> Option<u16> {
    match scheme.as_str() {
        "http" => Some(80),
        "https" => Some(443),
        _ => None,
    }
}

impl Ratio {
    pub const ALL: Self = Self {
        numerator: 1,
        denominator: 1,
    };

    /// Whether a request is among those of the ratio, given a number drawn evenly from all of
    /// `u32`.
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

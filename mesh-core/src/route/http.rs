//! HTTP matches, and the rule that matches an HTTP request.
//!
//! Paths and query parameters compare after percent-decoding, because `/%61` and `/a` are one path
//! to every server; an encoded slash remains encoded, because it does not separate segments.

use http::header::HOST;
use http::uri::Scheme;
use http::{HeaderMap, Method};

use super::{AnchoredRegex, Route, RuleIndex, path};

pub use super::path::is_ambiguous;

/// The parts of a request that routing uses.
#[derive(Clone, Copy, Debug)]
pub struct RequestHead<'a> {
    /// The method, in its own case.
    pub method: &'a Method,
    /// The scheme of the request's URI.
    pub scheme: Option<&'a Scheme>,
    /// The authority, with its port if the request has one.
    pub authority: Option<&'a str>,
    /// The path, not decoded.
    pub path: &'a str,
    /// Whether the client has sent bytes in the target that a URI must not contain, which `path`
    /// and `query` contain escaped.
    pub is_raw: bool,
    /// The query, not decoded.
    pub query: Option<&'a str>,
    /// The headers, without pseudo-headers.
    pub headers: &'a HeaderMap,
}

/// A match of requests; all present parts must match.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct HttpMatch {
    /// The path, compared after percent-decoding.
    pub path: Option<PathMatch>,
    /// Required headers.
    pub headers: Vec<HeaderMatch>,
    /// Required query parameters.
    pub query: Vec<QueryMatch>,
    /// The method, compared with regard to case.
    pub method: Option<Method>,
}

/// A match of paths.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PathMatch {
    /// The whole path.
    Exact(String),
    /// A prefix of whole segments: `/a` matches `/a` and `/a/b`, not `/ab`.
    Prefix(String),
    /// A regular expression.
    Regex(AnchoredRegex),
}

/// A match of a header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeaderMatch {
    /// The name of the header field.
    pub name: http::HeaderName,
    /// The value that one of the fields must have.
    pub value: HeaderValueMatch,
}

/// A match of a header's value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HeaderValueMatch {
    /// The whole value.
    Exact(http::HeaderValue),
    /// A regular expression.
    Regex(AnchoredRegex),
}

/// A match of a query parameter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueryMatch {
    /// The decoded name.
    pub name: String,
    /// The value that the first parameter of the name must have.
    pub value: QueryValueMatch,
}

/// A match of a query parameter's decoded value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum QueryValueMatch {
    /// The whole value.
    Exact(String),
    /// A regular expression.
    Regex(AnchoredRegex),
}

impl<'a> RequestHead<'a> {
    /// Takes the authority from the URI, or from the `host` header if the URI has none.
    pub fn new(method: &'a Method, uri: &'a http::Uri, headers: &'a HeaderMap) -> Self {
        let authority = uri
            .authority()
            .map(http::uri::Authority::as_str)
            .or_else(|| headers.get(HOST).and_then(|host| host.to_str().ok()));
        Self {
            method,
            scheme: uri.scheme(),
            authority,
            path: uri.path(),
            is_raw: false,
            query: uri.query(),
            headers,
        }
    }

    /// The authority without user information and port.
    pub fn host(&self) -> Option<&'a str> {
        self.authority.map(host_of)
    }

    /// The port of the authority.
    pub fn port(&self) -> Option<u16> {
        // As in `http::uri`: after the last colon, which is part of the address in IPv6 without a
        // port.
        let (_, port) = after_user(self.authority?).rsplit_once(':')?;
        port.parse().ok()
    }
}

impl<'a, B> From<&'a http::Request<B>> for RequestHead<'a> {
    fn from(request: &'a http::Request<B>) -> Self {
        Self::new(request.method(), request.uri(), request.headers())
    }
}

impl<'a> From<&'a http::request::Parts> for RequestHead<'a> {
    fn from(parts: &'a http::request::Parts) -> Self {
        Self::new(&parts.method, &parts.uri, &parts.headers)
    }
}

fn after_user(authority: &str) -> &str {
    authority
        .rsplit_once('@')
        .map_or(authority, |(_, host)| host)
}

fn host_of(authority: &str) -> &str {
    let host = after_user(authority);
    if host.starts_with('[') {
        return host.find(']').map_or(host, |end| &host[..=end]);
    }
    host.split_once(':').map_or(host, |(name, _)| name)
}

/// The precedence of a match. The fields compare in this order: length of the path match, headers,
/// query parameters, method.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct MatchPrecedence {
    path: usize,
    headers: usize,
    query: usize,
    method: bool,
}

/// Returns the rule that applies to the request.
pub fn find<R>(routes: &[Route<HttpMatch, R>], request: &RequestHead<'_>) -> Option<RuleIndex> {
    find_among(routes, request, |_| true)
}

/// Returns the rule that applies to the request among the routes that are `eligible`.
pub fn find_among<R>(
    routes: &[Route<HttpMatch, R>],
    request: &RequestHead<'_>,
    eligible: impl Fn(&Route<HttpMatch, R>) -> bool,
) -> Option<RuleIndex> {
    let path = path::decode(request.path);
    let rank = |entry: &HttpMatch| entry.rank(request, &path);
    let candidates = routes
        .iter()
        .enumerate()
        .filter(|(_, route)| eligible(route));
    let (rank, route, rule) =
        super::find(candidates, request.host(), MatchPrecedence::default(), rank)?;
    let prefix = routes[route].rules[rule].matches.iter().find_map(|entry| {
        let applies = entry.rank(request, &path) == Some(rank);
        match &entry.path {
            Some(PathMatch::Prefix(prefix)) if applies => {
                path::length_of_prefix(request.path, prefix)
            }
            _ => None,
        }
    });
    Some(RuleIndex {
        route,
        rule,
        prefix,
    })
}

/// Whether a match of the route depends on the path.
pub fn distinguishes_paths<R>(route: &Route<HttpMatch, R>) -> bool {
    route
        .rules
        .iter()
        .flat_map(|rule| &rule.matches)
        .any(|entry| match &entry.path {
            None => false,
            Some(PathMatch::Prefix(prefix)) => !prefix.trim_end_matches('/').is_empty(),
            Some(PathMatch::Exact(_) | PathMatch::Regex(_)) => true,
        })
}

impl HttpMatch {
    fn rank(&self, request: &RequestHead<'_>, path: &[u8]) -> Option<MatchPrecedence> {
        if self
            .method
            .as_ref()
            .is_some_and(|method| method != request.method)
        {
            return None;
        }
        let path = match &self.path {
            None => 0,
            Some(path_match) => path_match.rank(path)?,
        };
        let matched = self
            .headers
            .iter()
            .all(|entry| entry.is_match(request.headers))
            && self.query.iter().all(|entry| entry.is_match(request.query));
        matched.then_some(MatchPrecedence {
            path,
            headers: self.headers.len(),
            query: self.query.len(),
            method: self.method.is_some(),
        })
    }
}

impl PathMatch {
    /// Returns the length of the match: of the prefix as written, of the whole path otherwise.
    fn rank(&self, path: &[u8]) -> Option<usize> {
        match self {
            Self::Exact(exact) => (*path::decode(exact) == *path).then_some(path.len()),
            Self::Prefix(prefix) => {
                path::has_prefix(path, &path::decode(prefix)).then_some(prefix.len())
            }
            Self::Regex(regex) => {
                let text = std::str::from_utf8(path).ok()?;
                regex.is_match(text).then_some(path.len())
            }
        }
    }
}

impl HeaderMatch {
    /// Whether one of the header's values matches. Values that are not visible ASCII match no
    /// regular expression.
    pub(super) fn is_match(&self, headers: &HeaderMap) -> bool {
        headers
            .get_all(&self.name)
            .iter()
            .any(|value| match &self.value {
                HeaderValueMatch::Exact(exact) => value == exact,
                HeaderValueMatch::Regex(regex) => {
                    value.to_str().is_ok_and(|value| regex.is_match(value))
                }
            })
    }
}

impl QueryMatch {
    /// Whether the first parameter of that name has the value; later ones of the same name are
    /// ignored, as the Gateway API recommends.
    fn is_match(&self, query: Option<&str>) -> bool {
        let value = query
            .into_iter()
            .flat_map(|query| query.split('&'))
            .find_map(|pair| {
                let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
                (*path::decode_form(name) == *self.name.as_bytes())
                    .then(|| path::decode_form(value))
            });
        let Some(value) = value else {
            return false;
        };
        match (&self.value, std::str::from_utf8(&value)) {
            (QueryValueMatch::Exact(exact), _) => *value == *exact.as_bytes(),
            (QueryValueMatch::Regex(regex), Ok(text)) => regex.is_match(text),
            (QueryValueMatch::Regex(_), Err(_)) => false,
        }
    }
}

#[cfg(test)]
mod tests;

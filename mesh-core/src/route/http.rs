//! HTTP matches, and the rule that an HTTP request falls under.
//!
//! Paths and query parameters compare after percent-decoding, since `/%61` and `/a` are one path to
//! every server; an encoded slash stays encoded, since it separates nothing.

use http::{HeaderMap, Method, header::HOST, uri::Scheme};

use super::{AnchoredRegex, Found, Route, path};

pub use super::path::is_ambiguous;

/// What routing looks at in a request.
#[derive(Clone, Copy, Debug)]
pub struct RequestHead<'a> {
    pub method: &'a Method,
    pub scheme: Option<&'a Scheme>,
    /// With port, as the request names it.
    pub authority: Option<&'a str>,
    pub path: &'a str,
    pub query: Option<&'a str>,
    pub headers: &'a HeaderMap,
}

/// All present parts must match.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct HttpMatch {
    pub path: Option<PathMatch>,
    pub headers: Vec<HeaderMatch>,
    pub query: Vec<QueryMatch>,
    pub method: Option<Method>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PathMatch {
    Exact(String),
    /// By segment: `/a` matches `/a` and `/a/b`, not `/ab`.
    Prefix(String),
    Regex(AnchoredRegex),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeaderMatch {
    pub name: http::HeaderName,
    pub value: HeaderValueMatch,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HeaderValueMatch {
    Exact(http::HeaderValue),
    Regex(AnchoredRegex),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueryMatch {
    pub name: String,
    pub value: QueryValueMatch,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum QueryValueMatch {
    Exact(String),
    Regex(AnchoredRegex),
}

impl<'a> RequestHead<'a> {
    /// Reads the authority from the URI, and from the `host` header where the URI has none.
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
            query: uri.query(),
            headers,
        }
    }

    /// The authority without user information and port.
    pub fn host(&self) -> Option<&'a str> {
        self.authority.map(host_of)
    }

    /// The port that the authority names.
    pub fn port(&self) -> Option<u16> {
        // As `http::uri` does: behind the last colon, which is within an address without a port.
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

/// How closely a request is matched. The fields compare in this order: length of the path match,
/// headers, query parameters, method.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Rank {
    path: usize,
    headers: usize,
    query: usize,
    method: bool,
}

/// The rule that applies to the request, if any does.
pub fn find<R>(routes: &[Route<HttpMatch, R>], request: &RequestHead<'_>) -> Option<Found> {
    find_among(routes, request, |_| true)
}

/// The same among the routes that are `eligible`.
pub fn find_among<R>(
    routes: &[Route<HttpMatch, R>],
    request: &RequestHead<'_>,
    eligible: impl Fn(&Route<HttpMatch, R>) -> bool,
) -> Option<Found> {
    let path = path::decode(request.path);
    let rank = |entry: &HttpMatch| entry.rank(request, &path);
    let candidates = routes
        .iter()
        .enumerate()
        .filter(|(_, route)| eligible(route));
    let (rank, route, rule) = super::find(candidates, request.host(), Rank::default(), rank)?;
    let prefix = routes[route].rules[rule].matches.iter().find_map(|entry| {
        let applies = entry.rank(request, &path) == Some(rank);
        match &entry.path {
            Some(PathMatch::Prefix(prefix)) if applies => {
                path::length_of_prefix(request.path, prefix)
            }
            _ => None,
        }
    });
    Some(Found {
        route,
        rule,
        prefix,
    })
}

/// Whether some rule of the route treats one path otherwise than another.
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
    fn rank(&self, request: &RequestHead<'_>, path: &[u8]) -> Option<Rank> {
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
        matched.then_some(Rank {
            path,
            headers: self.headers.len(),
            query: self.query.len(),
            method: self.method.is_some(),
        })
    }
}

impl PathMatch {
    /// The length of the match: of the prefix as written, of the whole path otherwise.
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
    /// Whether the first parameter of that name has the value; later ones of the same name are not
    /// looked at, as the Gateway API recommends.
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

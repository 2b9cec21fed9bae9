//! HTTP matches.

use super::AnchoredRegex;

/// All present parts must match.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct HttpMatch {
    pub path: Option<PathMatch>,
    pub headers: Vec<HeaderMatch>,
    pub query: Vec<QueryMatch>,
    pub method: Option<http::Method>,
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

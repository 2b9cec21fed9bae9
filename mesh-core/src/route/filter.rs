//! What a rule does to a request before it goes on, or instead.

use std::sync::Arc;

use http::{HeaderName, HeaderValue, StatusCode};

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
    /// The control plane sent something this version does not know; every request of the rule fails with this message.
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
    pub scheme: Option<http::uri::Scheme>,
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

/// `numerator` of `denominator` requests; a denominator of 0 is every request, as the API defines it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ratio {
    pub numerator: u32,
    pub denominator: u32,
}

//! Routes: which rule a request falls under.
//!
//! Inbound and outbound policy share this module. A route has hosts and rules; a rule has matches and carries whatever its side needs (`R`): filters
//! and authorizations inbound, filters and backends outbound. [`http::find`] and [`grpc::find`] return the one rule that applies.

use std::{fmt, sync::Arc};

use crate::meta::Meta;

pub mod filter;
pub mod grpc;
pub mod http;

/// A route whose rules match with `M` and carry `R`.
#[derive(Clone, Debug, PartialEq)]
pub struct Route<M, R> {
    pub meta: Meta,
    /// Empty matches every host.
    pub hosts: Vec<HostMatch>,
    pub rules: Vec<Rule<M, R>>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Rule<M, R> {
    /// Empty matches every request.
    pub matches: Vec<M>,
    pub then: R,
}

/// Host names compare without regard to case and trailing dot.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum HostMatch {
    Exact(Arc<str>),
    /// Labels of the suffix, last one first: `*.example.com` is `["com", "example"]`.
    Suffix(Vec<Arc<str>>),
}

/// A regular expression that must match the whole text. Two are equal when their sources are.
#[derive(Clone)]
pub struct AnchoredRegex {
    source: Arc<str>,
    regex: regex::Regex,
}

impl AnchoredRegex {
    pub fn new(source: &str) -> Result<Self, regex::Error> {
        let regex = regex::Regex::new(&format!("^(?:{source})$"))?;
        Ok(Self {
            source: source.into(),
            regex,
        })
    }

    pub fn as_str(&self) -> &str {
        &self.source
    }

    pub fn is_match(&self, text: &str) -> bool {
        self.regex.is_match(text)
    }
}

impl PartialEq for AnchoredRegex {
    fn eq(&self, other: &Self) -> bool {
        self.source == other.source
    }
}

impl Eq for AnchoredRegex {}

impl fmt::Debug for AnchoredRegex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "/{}/", self.source)
    }
}

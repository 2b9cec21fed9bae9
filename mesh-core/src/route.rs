//! Routes: which rule a request falls under.
//!
//! Inbound and outbound policy share this module. A route has hosts and rules; a rule has matches
//! and carries whatever its side needs (`R`): filters and authorizations inbound, filters and
//! backends outbound. [`http::find`] and [`grpc::find`] return the one rule that applies.

use std::{cmp::Ordering, fmt, sync::Arc};

use crate::meta::Meta;

pub mod filter;
pub mod grpc;
pub mod http;
mod path;

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

/// Where the rule of a request stands in its list of routes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    pub route: usize,
    pub rule: usize,
    /// How many bytes of the request's path the rule's prefix match took; absent when the rule
    /// matched otherwise. Redirects replace this part.
    pub prefix: Option<usize>,
}

/// A regular expression that must match the whole text. Two are equal when their sources are.
#[derive(Clone)]
pub struct AnchoredRegex {
    source: Arc<str>,
    regex: regex::Regex,
}

impl HostMatch {
    /// How closely the host is matched, or `None` when it is not. `host` has no port.
    fn rank(&self, host: &str) -> Option<HostRank> {
        let host = host.trim_end_matches('.');
        match self {
            Self::Exact(name) => host
                .eq_ignore_ascii_case(name.trim_end_matches('.'))
                .then_some(HostRank::Exact),
            Self::Suffix(labels) => {
                let mut rest = host.rsplit('.');
                let all = labels.iter().all(|label| {
                    rest.next()
                        .is_some_and(|have| have.eq_ignore_ascii_case(label))
                });
                // `*.example.com` stands for one label or more: example.com itself is not matched.
                (all && rest.next().is_some()).then_some(HostRank::Suffix(labels.len()))
            }
        }
    }

    /// Whether the host, without port, is matched.
    pub fn is_match(&self, host: &str) -> bool {
        self.rank(host).is_some()
    }

    /// Which of the lists matches the host closest, the earlier of two equal ones. This is how a
    /// TLS route is chosen by server name.
    pub fn closest<'a>(
        lists: impl IntoIterator<Item = &'a [HostMatch]>,
        host: Option<&str>,
    ) -> Option<usize> {
        best(
            lists
                .into_iter()
                .enumerate()
                .filter_map(|(at, hosts)| Some((rank_of_hosts(hosts, host)?, at))),
        )
        .map(|(_, at)| at)
    }
}

/// Ordered: an exact name beats a suffix, a longer suffix a shorter one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum HostRank {
    Suffix(usize),
    Exact,
}

/// `Some(None)` when the list is empty and so matches every host, ordered below every match of a
/// name.
fn rank_of_hosts(hosts: &[HostMatch], host: Option<&str>) -> Option<Option<HostRank>> {
    if hosts.is_empty() {
        return Some(None);
    }
    let host = host?;
    hosts
        .iter()
        .filter_map(|entry| entry.rank(host))
        .max()
        .map(Some)
}

/// The first of those with the highest rank.
fn best<K: Ord, T>(candidates: impl Iterator<Item = (K, T)>) -> Option<(K, T)> {
    candidates.reduce(|best, next| match next.0.cmp(&best.0) {
        Ordering::Greater => next,
        Ordering::Less | Ordering::Equal => best,
    })
}

/// Finds the rule for a request of `host`: the closest host first, then the rule with the highest
/// rank, the earlier of two equal ones. `rank` judges one match; `none` is the rank of a rule
/// without matches. Each route comes with its position.
fn find<'a, M: 'a, R: 'a, K: Ord + Copy>(
    routes: impl IntoIterator<Item = (usize, &'a Route<M, R>)>,
    host: Option<&str>,
    none: K,
    rank: impl Fn(&M) -> Option<K>,
) -> Option<(K, usize, usize)> {
    let ranked = routes.into_iter().filter_map(|(route_at, route)| {
        let host = rank_of_hosts(&route.hosts, host)?;
        let rules = route
            .rules
            .iter()
            .enumerate()
            .filter_map(|(rule_at, rule)| {
                let rank = if rule.matches.is_empty() {
                    none
                } else {
                    rule.matches.iter().filter_map(&rank).max()?
                };
                Some((rank, rule_at))
            });
        let (rank, rule_at) = best(rules)?;
        Some(((host, rank), (route_at, rule_at)))
    });
    best(ranked).map(|((_, rank), (route, rule))| (rank, route, rule))
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

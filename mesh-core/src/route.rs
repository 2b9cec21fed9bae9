//! Routes: the rule that matches a request.
//!
//! Inbound and outbound policy share this module. A route has hosts and rules; a rule has matches
//! and the settings of its direction (`R`): filters and authorizations inbound, filters and
//! backends outbound. [`http::find`] and [`grpc::find`] return the rule that applies.

use std::cmp::Ordering;
use std::fmt;
use std::sync::{Arc, OnceLock};

use crate::meta::Meta;

pub mod cors;
pub mod fault;
pub mod filter;
pub mod grpc;
pub mod http;
mod path;

/// A route whose rules match with `M` and have the settings `R`.
#[derive(Clone, Debug, PartialEq)]
pub struct Route<M, R> {
    /// The route object or default.
    pub meta: Meta,
    /// Host names of the route; empty matches every host.
    pub hosts: Vec<HostMatch>,
    /// Alternative rules; the most specific match applies.
    pub rules: Vec<Rule<M, R>>,
}

/// A rule of a route.
#[derive(Clone, Debug, PartialEq)]
pub struct Rule<M, R> {
    /// Alternative matches; empty matches every request.
    pub matches: Vec<M>,
    /// The settings of matching requests.
    pub action: R,
}

/// A match of host names, which ignores case and a trailing dot.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum HostMatch {
    /// The whole name.
    Exact(Arc<str>),
    /// The labels of a suffix, last one first: `*.example.com` is `["com", "example"]`.
    Suffix(Vec<Arc<str>>),
}

/// The position of the matching rule in a list of routes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RuleIndex {
    /// The index of the route.
    pub route: usize,
    /// The index of the rule in the route.
    pub rule: usize,
    /// Bytes of the request's path that the rule's prefix match covers, which redirects replace;
    /// absent when the rule matched otherwise.
    pub prefix: Option<usize>,
}

/// A regular expression that must match the whole text. Equality compares the sources.
#[derive(Clone)]
pub struct AnchoredRegex {
    source: Arc<str>,
    /// The compiled expression, once it is needed; `None` inside if it does not compile.
    compiled: OnceLock<Option<regex::Regex>>,
}

#[cfg(test)]
impl<M> Route<M, ()> {
    /// Returns a route with these hosts, such as `*.example`, and a rule for each list of matches.
    fn for_tests(hosts: &[&str], rules: Vec<Vec<M>>) -> Self {
        let host = |host: &&str| match host.strip_prefix("*.") {
            Some(suffix) => HostMatch::Suffix(suffix.rsplit('.').map(Into::into).collect()),
            None => HostMatch::Exact((*host).into()),
        };
        let rule = |matches| Rule {
            matches,
            action: (),
        };
        Self {
            meta: Meta::new_default("test"),
            hosts: hosts.iter().map(host).collect(),
            rules: rules.into_iter().map(rule).collect(),
        }
    }
}

#[cfg(test)]
impl http::HeaderMatch {
    fn exact(name: &str, value: &str) -> Self {
        Self {
            name: name.parse().unwrap(),
            value: http::HeaderValueMatch::Exact(value.parse().unwrap()),
        }
    }
}

/// Whether a text is the name of a host as the Gateway API has it (`PreciseHostname`): labels of
/// lower-case letters, digits and hyphens, without a port.
pub fn is_host_name(text: &str) -> bool {
    let is_label = |label: &str| {
        let bytes = label.as_bytes();
        !bytes.is_empty()
            && !bytes.starts_with(b"-")
            && !bytes.ends_with(b"-")
            && bytes
                .iter()
                .all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-'))
    };
    text.len() <= MAX_HOST_NAME && text.split('.').all(is_label)
}

/// The longest name of the Domain Name System (RFC 1035).
const MAX_HOST_NAME: usize = 253;

impl HostMatch {
    /// Whether a text is the name of a host, or all names below one: `*.example.com`.
    pub fn is_pattern(text: &str) -> bool {
        let name = text.strip_prefix("*.").unwrap_or(text);
        text.len() <= MAX_HOST_NAME && is_host_name(name)
    }

    /// Returns the precedence of the match, or `None` if `host`, without port, does not match.
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
                        .is_some_and(|host_label| host_label.eq_ignore_ascii_case(label))
                });
                // `*.example.com` matches one label or more in front: example.com itself is not
                // matched.
                (all && rest.next().is_some()).then_some(HostRank::Suffix(labels.len()))
            }
        }
    }

    /// Whether the host, without port, matches.
    pub fn is_match(&self, host: &str) -> bool {
        self.rank(host).is_some()
    }

    /// Returns the index of the list that matches the host most specifically, the earlier of two
    /// equal ones. TLS routes are selected by server name in this way.
    pub fn most_specific<'a>(
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

/// The precedence of a host match: an exact name before a suffix, a longer suffix before a shorter
/// one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum HostRank {
    Suffix(usize),
    Exact,
}

/// Returns the precedence of a list of hosts; `Some(None)` when it is empty and so matches every
/// host, ordered below every match of a name.
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

/// Returns the first candidate with the highest key.
fn best<K: Ord, T>(candidates: impl Iterator<Item = (K, T)>) -> Option<(K, T)> {
    candidates.reduce(|best, next| match next.0.cmp(&best.0) {
        Ordering::Greater => next,
        Ordering::Less | Ordering::Equal => best,
    })
}

/// Returns the rule for a request of `host`: the most specific host first, then the highest
/// precedence of a match, the earlier of two equal ones. `rank` returns the precedence of a match,
/// `none` is the precedence of a rule without matches. Each route comes with its index.
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
    /// Compiles the expression.
    ///
    /// # Errors
    ///
    /// The expression is invalid.
    pub fn new(source: &str) -> Result<Self, regex::Error> {
        let regex = regex::Regex::new(&anchored(source))?;
        Ok(Self {
            source: source.into(),
            compiled: OnceLock::from(Some(regex)),
        })
    }

    /// Checks the expression, and compiles it again when it is first matched. The controllers keep
    /// many expressions and match none, and a compiled one has two hundred times the size of its
    /// source.
    ///
    /// # Errors
    ///
    /// The expression is invalid, or its compiled form is larger than `max_size` bytes.
    pub fn checked(source: &str, max_size: usize) -> Result<Self, regex::Error> {
        regex::RegexBuilder::new(&anchored(source))
            .size_limit(max_size)
            .build()?;
        Ok(Self {
            source: source.into(),
            compiled: OnceLock::new(),
        })
    }

    /// Returns the source.
    pub fn as_str(&self) -> &str {
        &self.source
    }

    /// Whether the whole text matches.
    pub fn is_match(&self, text: &str) -> bool {
        self.compiled
            .get_or_init(|| regex::Regex::new(&anchored(&self.source)).ok())
            .as_ref()
            .is_some_and(|regex| regex.is_match(text))
    }
}

fn anchored(source: &str) -> String {
    format!("^(?:{source})$")
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_matches_in_any_case_and_with_a_final_dot() {
        let exact = HostMatch::Exact("web.example".into());
        let suffix = HostMatch::Suffix(["example", "com"].map(Into::into).into());
        for (host, is_exact, is_suffix) in [
            ("web.example", true, false),
            ("WEB.example.", true, false),
            ("a.web.example", false, false),
            ("a.example.com", false, false),
            ("a.com.example", false, true),
            ("com.example", false, false),
        ] {
            assert_eq!(exact.is_match(host), is_exact, "{host}");
            assert_eq!(suffix.is_match(host), is_suffix, "{host}");
        }
    }

    #[test]
    fn host_names_have_labels_of_lower_case_letters_digits_and_hyphens() {
        let label = "a".repeat(63);
        let longest = [&*label, &label, &label, &label[..61]].join(".");
        assert_eq!(longest.len(), MAX_HOST_NAME);
        for name in ["a", "0", "a-b.example", "10.0.0.1", &longest] {
            assert!(is_host_name(name) && HostMatch::is_pattern(name), "{name}");
        }
        let too_long = format!("a{longest}");
        for name in [
            "",
            ".",
            "a.",
            ".a",
            "a..b",
            "A.example",
            "-a.b",
            "a-.b",
            "a_b",
            "a:80",
            "a b",
            &too_long,
        ] {
            assert!(
                !is_host_name(name) && !HostMatch::is_pattern(name),
                "{name}"
            );
        }
        assert!(HostMatch::is_pattern("*.a.example") && !is_host_name("*.a.example"));
        for pattern in ["*", "*.", "*a.b", "*.*.a", "a.*", &format!("*.{longest}")] {
            assert!(!HostMatch::is_pattern(pattern), "{pattern}");
        }
    }

    #[test]
    fn most_specific_list_of_hosts_is_selected() {
        let hosts = |hosts: &[&str]| Route::<(), ()>::for_tests(hosts, Vec::new()).hosts;
        let lists = [
            hosts(&["*.example"]),
            hosts(&[]),
            hosts(&["other", "a.b.example"]),
            hosts(&["*.example", "*.b.example"]),
            hosts(&["a.b.example"]),
        ];
        let selected = |lists: &[Vec<HostMatch>], host| {
            HostMatch::most_specific(lists.iter().map(|it| &it[..]), host)
        };
        for (host, expected) in [
            (Some("a.b.example"), 2),
            (Some("c.b.example"), 3),
            (Some("c.example"), 0),
            (Some("example"), 1),
            (None, 1),
        ] {
            assert_eq!(selected(&lists, host), Some(expected), "{host:?}");
        }
        assert_eq!(selected(&lists[2..], Some("example")), None);
        assert_eq!(selected(&lists[2..], None), None);
    }

    #[test]
    fn expressions_are_equal_if_their_sources_are() {
        let compiled = |source| AnchoredRegex::new(source).unwrap();
        let checked = AnchoredRegex::checked("a+", 1 << 20).unwrap();
        assert_eq!(compiled("a+"), checked);
        assert_ne!(compiled("a+"), compiled("a*"));
        assert_eq!(checked.as_str(), "a+");
        assert_eq!(format!("{checked:?}"), "/a+/");
    }
}

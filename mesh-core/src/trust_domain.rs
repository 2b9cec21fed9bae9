//! Trust domains with roots of their own: which names the roots of a foreign domain verify, which
//! domains are refused, and which bundle of a domain replaces the one before (docs/adr/0228).
//!
//! The identity service, the proxies and the command line call these functions.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::identity::{Identity, is_dns_label};

/// The trust anchors of foreign trust domains, in PEM.
pub type ForeignAnchors = BTreeMap<String, String>;

/// The last bundle of a foreign trust domain that was accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ForeignBundle {
    /// The number that the domain has given it; `None` if it gives none.
    pub sequence: Option<u64>,
    /// In PEM. Empty if the domain has withdrawn all.
    pub anchors: String,
}

/// Why a foreign trust domain is not trusted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DomainRefusal {
    /// Not a DNS name in lower case, or one that identities cannot end with.
    #[error(
        "{0:?} is not a trust domain of a mesh: expected a DNS name in lower case without \"serviceaccount.identity\""
    )]
    Name(String),
    /// Both clusters have the same trust domain.
    #[error(
        "its trust domain {0} is the one of this cluster: roots can differ only where trust domains differ"
    )]
    Own(String),
    /// A name of one domain could be one of the other.
    #[error("its trust domain {foreign} and {other} overlap: one of them ends with the other")]
    Overlap {
        /// The refused domain.
        foreign: String,
        /// This cluster's domain, or another foreign one.
        other: String,
    },
    /// The proxy cannot tell the names of its own mesh from others.
    #[error("the trust domain of this mesh is unknown")]
    Unknown,
}

/// Why a bundle of a foreign trust domain is not used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SequenceRefusal {
    /// A server with an earlier bundle, or one that was restored from a backup, has sent it.
    #[error(
        "its sequence {sequence} is lower than {current}, the one of the bundle in use (if the cluster was installed again, write its trust bundle again)"
    )]
    Outdated {
        /// The sequence of the refused bundle.
        sequence: u64,
        /// The sequence of the bundle in use.
        current: u64,
    },
    /// Two bundles have this sequence.
    #[error("it has the sequence {0} of the bundle in use, but other anchors")]
    Ambiguous(u64),
    /// The bundle in use has one.
    #[error("it has no sequence, and the bundle in use has {0}")]
    Missing(u64),
}

/// The most foreign trust domains.
pub const MAX_FOREIGN_DOMAINS: usize = 32;

/// The most bytes of the anchors of a foreign trust domain, in PEM: four roots of RSA with 4096
/// bits, and more with elliptic curves.
pub const MAX_DOMAIN_ANCHORS: usize = 16 * 1024;

/// The most bytes of the anchors of all foreign trust domains. With the mesh's own they fit into a
/// ConfigMap.
pub const MAX_FOREIGN_ANCHORS: usize = MAX_FOREIGN_DOMAINS * MAX_DOMAIN_ANCHORS;

/// The time between two requests for a bundle, whatever the domain asks for. The longest is the one
/// that ends the use of a withdrawn root.
const REFRESH: std::ops::RangeInclusive<Duration> =
    Duration::from_secs(5)..=Duration::from_secs(3600);

/// The same if the domain does not ask for one (SPIFFE Federation, section 5.2.1.2).
const DEFAULT_REFRESH: Duration = Duration::from_secs(300);

/// What precedes the control plane's namespace in the identity of a ServiceAccount.
const MARK: &str = ".serviceaccount.identity.";

/// Returns the trust domain of the identity of a ServiceAccount; `None` of all other names. The
/// name of a ServiceAccount may contain what follows it in an identity, so that the last part
/// counts.
pub fn of_service_account(name: &str) -> Option<&str> {
    let (_account, rest) = name.rsplit_once(MARK)?;
    let (namespace, domain) = rest.split_once('.')?;
    (is_dns_label(namespace) && is_name(domain)).then_some(domain)
}

/// Returns whether a name belongs to a foreign trust domain: a SPIFFE identity of it, or a DNS name
/// that is it or ends with it.
pub fn is_member(id: &Identity, domain: &str) -> bool {
    match id {
        Identity::Uri(_) => id.spiffe_trust_domain() == Some(domain),
        Identity::Dns(name) => is_within(name, domain),
    }
}

/// Checks that the names of a foreign trust domain are not names of this mesh, whose trust domain
/// is `own`.
///
/// # Errors
///
/// The domain is invalid or the own one, or one of the two ends with the other.
pub fn check_foreign(foreign: &str, own: &str) -> Result<(), DomainRefusal> {
    if !is_name(foreign) {
        return Err(DomainRefusal::Name(foreign.to_owned()));
    }
    if foreign == own {
        return Err(DomainRefusal::Own(own.to_owned()));
    }
    check_apart(foreign, own)
}

/// Checks that no name belongs to two domains.
///
/// # Errors
///
/// One of the domains ends with the other.
pub fn check_apart(foreign: &str, other: &str) -> Result<(), DomainRefusal> {
    if is_within(foreign, other) || is_within(other, foreign) {
        return Err(DomainRefusal::Overlap {
            foreign: foreign.to_owned(),
            other: other.to_owned(),
        });
    }
    Ok(())
}

/// Returns how long a bundle is used until the next is asked for.
pub fn refresh_after(hint: Option<Duration>) -> Duration {
    let hint = hint.unwrap_or(DEFAULT_REFRESH);
    hint.clamp(*REFRESH.start(), *REFRESH.end())
}

impl ForeignBundle {
    /// Returns whether the bundle, which the domain has authenticated, replaces the one in use;
    /// false if they are the same.
    ///
    /// # Errors
    ///
    /// The bundle has a lower sequence than the one in use, none, or the same with other anchors.
    pub fn replaces(&self, current: &Self) -> Result<bool, SequenceRefusal> {
        match (self.sequence, current.sequence) {
            (_, None) => Ok(self != current),
            (None, Some(current)) => Err(SequenceRefusal::Missing(current)),
            (Some(sequence), Some(current)) if sequence < current => {
                Err(SequenceRefusal::Outdated { sequence, current })
            }
            (Some(sequence), Some(current_sequence)) => {
                let is_same = self.anchors == current.anchors;
                if sequence == current_sequence && !is_same {
                    return Err(SequenceRefusal::Ambiguous(sequence));
                }
                Ok(sequence > current_sequence)
            }
        }
    }
}

/// Returns whether a name is a domain, or ends with it.
pub(crate) fn is_within(name: &str, domain: &str) -> bool {
    let before = name.strip_suffix(domain);
    before.is_some_and(|before| before.is_empty() || before.ends_with('.'))
}

/// Returns whether identities can end with this. A domain that looks like the end of an identity
/// would hide where its own domain begins.
fn is_name(domain: &str) -> bool {
    domain.len() <= 253
        && domain.split('.').all(is_dns_label)
        && !format!(".{domain}.").contains(MARK)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trust_domain_follows_the_last_namespace_of_a_control_plane() {
        for (name, domain) in [
            (
                "web.shop.serviceaccount.identity.linkerd.cluster.local",
                Some("cluster.local"),
            ),
            ("a.b.serviceaccount.identity.linkerd.west", Some("west")),
            // A ServiceAccount of domain `evil.example` with dots in its name.
            (
                "a.b.serviceaccount.identity.linkerd.cluster.local.x.serviceaccount.identity.linkerd.evil.example",
                Some("evil.example"),
            ),
            ("a.b.serviceaccount.identity.linkerd", None),
            ("a.b.serviceaccount.identity.linkerd.", None),
            ("a.b.serviceaccount.identity..west", None),
            (
                "a.b.serviceaccount.identity.linkerd.serviceaccount.identity.x.y",
                Some("y"),
            ),
            ("web.shop.cluster.local", None),
            ("spiffe://west/a", None),
        ] {
            assert_eq!(of_service_account(name), domain, "{name}");
        }
    }

    #[test]
    fn names_belong_to_the_domain_that_they_end_with() {
        let member = |id: &str| is_member(&Identity::parse(id).unwrap(), "west.example");
        for id in [
            "west.example",
            "web.shop.serviceaccount.identity.linkerd.west.example",
            "a.west.example",
            "spiffe://west.example/ns/shop",
        ] {
            assert!(member(id), "{id}");
        }
        for id in [
            "example",
            "east.example",
            "midwest.example",
            "west.example.org",
            "spiffe://a.west.example/ns/shop",
            "spiffe://example/west.example",
        ] {
            assert!(!member(id), "{id}");
        }
    }

    #[test]
    fn domains_whose_names_could_be_own_ones_are_refused() {
        let own = "cluster.local";
        for foreign in ["west.example", "cluster.local.example", "mycluster.local"] {
            assert_eq!(check_foreign(foreign, own), Ok(()), "{foreign}");
        }
        let same = Err(DomainRefusal::Own(own.to_owned()));
        assert_eq!(check_foreign(own, own), same);
        for foreign in ["west.cluster.local", "local"] {
            let overlap = Err(DomainRefusal::Overlap {
                foreign: foreign.to_owned(),
                other: own.to_owned(),
            });
            assert_eq!(check_foreign(foreign, own), overlap);
        }
        let long = ["a"; 127].join(".");
        assert_eq!(check_foreign(&long, own), Ok(()));
        for foreign in [
            "",
            ".",
            "West.example",
            "west_1",
            "west.",
            "spiffe://west",
            "x.serviceaccount.identity.west",
            "serviceaccount.identity",
            &format!("{long}.a"),
        ] {
            let invalid = Err(DomainRefusal::Name(foreign.to_owned()));
            assert_eq!(check_foreign(foreign, own), invalid);
        }
        check_apart("a.example", "b.example").unwrap();
        check_apart("a.example", "a.example").unwrap_err();
    }

    #[test]
    fn only_a_higher_sequence_replaces_a_bundle() {
        let bundle = |sequence, anchors: &str| ForeignBundle {
            sequence,
            anchors: anchors.to_owned(),
        };
        let current = bundle(Some(5), "one");
        let outdated = SequenceRefusal::Outdated {
            sequence: 4,
            current: 5,
        };
        for (new, expected) in [
            (bundle(Some(6), "two"), Ok(true)),
            (bundle(Some(6), "one"), Ok(true)),
            (bundle(Some(6), ""), Ok(true)),
            (bundle(Some(5), "one"), Ok(false)),
            (bundle(Some(5), "two"), Err(SequenceRefusal::Ambiguous(5))),
            (bundle(Some(4), "one"), Err(outdated)),
            (bundle(None, "one"), Err(SequenceRefusal::Missing(5))),
        ] {
            assert_eq!(new.replaces(&current), expected, "{new:?}");
        }
        let current = bundle(None, "one");
        assert_eq!(bundle(None, "one").replaces(&current), Ok(false));
        assert_eq!(bundle(None, "two").replaces(&current), Ok(true));
        assert_eq!(bundle(Some(1), "two").replaces(&current), Ok(true));
    }

    #[test]
    fn time_between_requests_is_bounded() {
        for (hint, expected) in [
            (None, 300),
            (Some(0), 5),
            (Some(60), 60),
            (Some(u64::MAX), 3600),
        ] {
            let hint = hint.map(Duration::from_secs);
            assert_eq!(refresh_after(hint), Duration::from_secs(expected));
        }
    }
}

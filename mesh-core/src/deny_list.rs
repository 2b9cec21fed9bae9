//! The list of denied identities (docs/adr/0231): the form of an entry, the identities that it
//! denies, and the entries that are refused.
//!
//! The identity service, the proxies and the command line call these functions.

use std::collections::BTreeSet;

use crate::identity::Identity;
use crate::policy::inbound::{IdentityMatch, Suffix};
use crate::trust_domain::is_within;

/// Identities that no proxy has connections with, and that get no certificate.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct DenyList {
    identities: BTreeSet<Identity>,
    suffixes: BTreeSet<Suffix>,
}

/// Why a list or an entry is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DenyListError {
    /// Not an identity or a suffix.
    #[error("{0}")]
    Entry(String),
    /// The entry denies every DNS identity, also the ones of the control plane.
    #[error("\"*\" denies every identity, also the control plane's")]
    Every,
    /// The entry denies the control plane.
    #[error(
        "{0} denies ServiceAccounts of the control plane's namespace: every proxy would lose its control plane"
    )]
    ControlPlane(IdentityMatch),
    /// There are too many entries.
    #[error("the list has more than {MAX_DENIED} entries")]
    Many,
    /// The entries are too long together.
    #[error("the entries have more than {MAX_DENIED_BYTES} bytes")]
    Bytes,
}

/// The most entries. Larger groups have a namespace or a trust domain in common.
pub const MAX_DENIED: usize = 1000;

/// The most bytes of all entries. With the anchors they fit into a ConfigMap, and into a message.
pub const MAX_DENIED_BYTES: usize = 64 * 1024;

/// Parses an entry: an identity, or `*.` with the end of DNS identities, as in policies.
///
/// # Errors
///
/// The text is neither, or denies every identity.
pub fn parse_entry(text: &str) -> Result<IdentityMatch, DenyListError> {
    match IdentityMatch::parse(text) {
        Ok(IdentityMatch::Suffix(Suffix(parts))) if parts.is_empty() => Err(DenyListError::Every),
        parsed => parsed.map_err(DenyListError::Entry),
    }
}

/// Checks that an entry denies no ServiceAccount of the control plane's namespace. A proxy that
/// refuses the control plane could not learn that the entry has gone.
///
/// # Errors
///
/// The entry denies one.
pub fn check_entry(
    entry: &IdentityMatch,
    control_namespace: &str,
    trust_domain: &str,
) -> Result<(), DenyListError> {
    let own =
        format!("{control_namespace}.serviceaccount.identity.{control_namespace}.{trust_domain}");
    let is_of_control_plane = match entry {
        IdentityMatch::Exact(Identity::Dns(name)) => is_within(name, &own),
        IdentityMatch::Exact(Identity::Uri(_)) => false,
        IdentityMatch::Suffix(Suffix(parts)) => {
            let suffix = parts.join(".");
            is_within(&own, &suffix) || is_within(&suffix, &own)
        }
    };
    if is_of_control_plane {
        return Err(DenyListError::ControlPlane(entry.clone()));
    }
    Ok(())
}

impl DenyList {
    /// Parses the entries of a list.
    ///
    /// # Errors
    ///
    /// The first invalid entry, or the limit that the list exceeds.
    pub fn parse<'a>(entries: impl IntoIterator<Item = &'a str>) -> Result<Self, DenyListError> {
        let mut list = Self::default();
        let mut bytes = 0;
        for entry in entries {
            // With the end of its line.
            bytes += entry.len() + 1;
            if bytes > MAX_DENIED_BYTES {
                return Err(DenyListError::Bytes);
            }
            list.insert(parse_entry(entry)?);
            if list.len() > MAX_DENIED {
                return Err(DenyListError::Many);
            }
        }
        Ok(list)
    }

    /// Whether an identity is denied.
    pub fn denies(&self, id: &Identity) -> bool {
        self.identities.contains(id) || self.suffixes.iter().any(|suffix| suffix.matches(id))
    }

    /// Adds an entry. Returns false if the list has it.
    pub fn insert(&mut self, entry: IdentityMatch) -> bool {
        match entry {
            IdentityMatch::Exact(id) => self.identities.insert(id),
            IdentityMatch::Suffix(suffix) => self.suffixes.insert(suffix),
        }
    }

    /// Removes an entry. Returns false if the list lacks it.
    pub fn remove(&mut self, entry: &IdentityMatch) -> bool {
        match entry {
            IdentityMatch::Exact(id) => self.identities.remove(id),
            IdentityMatch::Suffix(suffix) => self.suffixes.remove(suffix),
        }
    }

    /// The entries in their order, as they are written.
    pub fn texts(&self) -> impl Iterator<Item = String> + '_ {
        let identities = self.identities.iter().map(Identity::to_string);
        let suffixes = self.suffixes.iter().cloned().map(IdentityMatch::Suffix);
        identities.chain(suffixes.map(|suffix| suffix.to_string()))
    }

    /// The number of entries.
    pub fn len(&self) -> usize {
        self.identities.len() + self.suffixes.len()
    }

    /// Whether no identity is denied.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WEB: &str = "web.shop.serviceaccount.identity.linkerd.cluster.local";

    #[test]
    fn identities_are_denied_by_name_and_by_the_end_of_their_name() {
        let entries = [
            "Web.shop.serviceaccount.identity.linkerd.cluster.local",
            "spiffe://example.org/ns/shop",
            "*.bank.serviceaccount.identity.linkerd.cluster.local",
        ];
        let list = DenyList::parse(entries).unwrap();
        let denies = |id: &str| list.denies(&Identity::parse(id).unwrap());
        for id in [
            WEB,
            "spiffe://example.org/ns/shop",
            "a.bank.serviceaccount.identity.linkerd.cluster.local",
            "a.b.bank.serviceaccount.identity.linkerd.cluster.local",
        ] {
            assert!(denies(id), "{id}");
        }
        for id in [
            "db.shop.serviceaccount.identity.linkerd.cluster.local",
            "a.web.shop.serviceaccount.identity.linkerd.cluster.local",
            "spiffe://example.org/ns/shop/a",
            "bank.serviceaccount.identity.linkerd.cluster.local",
            "a.mybank.serviceaccount.identity.linkerd.cluster.local",
        ] {
            assert!(!denies(id), "{id}");
        }
        assert!(!DenyList::default().denies(&Identity::parse(WEB).unwrap()));
    }

    #[test]
    fn entries_are_written_as_they_are_read_once_and_in_order() {
        let entries = ["*.b.c", "spiffe://x/y", WEB, "*.b.c"];
        let mut list = DenyList::parse(entries).unwrap();
        let texts: Vec<String> = list.texts().collect();
        assert_eq!(texts, [WEB, "spiffe://x/y", "*.b.c"]);
        assert_eq!(
            DenyList::parse(texts.iter().map(String::as_str)),
            Ok(list.clone())
        );
        for text in &texts {
            let entry = parse_entry(text).unwrap();
            assert!(!list.insert(entry.clone()) && list.remove(&entry) && !list.remove(&entry));
        }
        assert!(list.is_empty());
    }

    #[test]
    fn entries_that_are_no_identities_are_refused() {
        assert_eq!(parse_entry("*"), Err(DenyListError::Every));
        for entry in ["", "*.", "a b", "*.*", "*a", "spiffe://a", "http://a/b"] {
            let refused = parse_entry(entry);
            assert!(matches!(refused, Err(DenyListError::Entry(_))), "{entry:?}");
            DenyList::parse([WEB, entry]).unwrap_err();
        }
    }

    #[test]
    fn list_is_bounded_by_entries_and_bytes() {
        let names = |count: usize, length: usize| -> Vec<String> {
            let path = "a".repeat(length - "spiffe://x/0000".len());
            (0..count)
                .map(|at| format!("spiffe://x/{at:04}{path}"))
                .collect()
        };
        let parse = |names: &[String]| DenyList::parse(names.iter().map(String::as_str));
        assert_eq!(
            parse(&names(MAX_DENIED, 50)).map(|it| it.len()),
            Ok(MAX_DENIED)
        );
        assert_eq!(parse(&names(MAX_DENIED + 1, 50)), Err(DenyListError::Many));
        // With the ends of lines.
        parse(&names(MAX_DENIED_BYTES / 128, 127)).unwrap();
        assert_eq!(
            parse(&names(MAX_DENIED_BYTES / 128, 128)),
            Err(DenyListError::Bytes)
        );
    }

    #[test]
    fn entries_that_deny_the_control_plane_are_refused() {
        let check =
            |entry: &str| check_entry(&parse_entry(entry).unwrap(), "linkerd", "cluster.local");
        for entry in [
            "linkerd-identity.linkerd.serviceaccount.identity.linkerd.cluster.local",
            "a.b.linkerd.serviceaccount.identity.linkerd.cluster.local",
            "*.linkerd.serviceaccount.identity.linkerd.cluster.local",
            "*.a.linkerd.serviceaccount.identity.linkerd.cluster.local",
            "*.serviceaccount.identity.linkerd.cluster.local",
            "*.cluster.local",
            "*.local",
        ] {
            let refused = check(entry);
            assert!(
                matches!(refused, Err(DenyListError::ControlPlane(_))),
                "{entry}"
            );
        }
        for entry in [
            WEB,
            "*.shop.serviceaccount.identity.linkerd.cluster.local",
            "*.linkerd.serviceaccount.identity.other.cluster.local",
            "*.mylinkerd.serviceaccount.identity.linkerd.cluster.local",
            "linkerd-identity.linkerd.serviceaccount.identity.linkerd.west.example",
            "*.west.example",
            "spiffe://cluster.local/ns/linkerd/sa/linkerd-identity",
        ] {
            assert_eq!(check(entry), Ok(()), "{entry}");
        }
    }
}

//! Names of workloads, as certificates carry them.

use std::{fmt, sync::Arc};

/// The one name a mesh certificate holds in its subject alternative names.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Identity {
    /// Lower case, without trailing dot: `web.shop.serviceaccount.identity.linkerd.cluster.local`.
    Dns(Arc<str>),
    /// `spiffe://trust.domain/path`.
    Uri(Arc<str>),
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IdentityError {
    #[error(
        "{0:?} is no DNS name: labels of letters, digits, '-' and '_' joined by dots, at most 253 characters"
    )]
    InvalidDns(String),
    #[error("{0:?} is no SPIFFE identity: expected spiffe://<trust domain>/<path>")]
    InvalidUri(String),
}

/// The domain that identities end in: an empty setting means the domain of the cluster's names, as
/// in Linkerd.
pub fn trust_domain<'a>(configured: &'a str, cluster_domain: &'a str) -> &'a str {
    if configured.is_empty() {
        cluster_domain
    } else {
        configured
    }
}

impl Identity {
    /// Reads a DNS name or a `spiffe://` URI.
    pub fn parse(text: &str) -> Result<Self, IdentityError> {
        if text.contains("://") {
            Self::parse_uri(text)
        } else {
            Self::parse_dns(text)
        }
    }

    fn parse_dns(text: &str) -> Result<Self, IdentityError> {
        let valid_label = |label: &str| {
            (1..=63).contains(&label.len())
                && label
                    .bytes()
                    .all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_')
                && !label.starts_with('-')
                && !label.ends_with('-')
        };
        if text.len() > 253 || !text.split('.').all(valid_label) {
            return Err(IdentityError::InvalidDns(text.to_owned()));
        }
        Ok(Self::Dns(text.to_ascii_lowercase().into()))
    }

    fn parse_uri(text: &str) -> Result<Self, IdentityError> {
        let invalid = || IdentityError::InvalidUri(text.to_owned());
        let rest = text.strip_prefix("spiffe://").ok_or_else(invalid)?;
        let (domain, path) = rest.split_once('/').ok_or_else(invalid)?;
        let plain = |s: &str| {
            !s.is_empty()
                && s.bytes()
                    .all(|b| b.is_ascii_graphic() && !b"?#@%".contains(&b))
        };
        if !plain(domain) || !plain(path) {
            return Err(invalid());
        }
        Ok(Self::Uri(text.into()))
    }

    /// The text, without a copy of it.
    pub fn to_shared(&self) -> Arc<str> {
        match self {
            Self::Dns(text) | Self::Uri(text) => text.clone(),
        }
    }

    pub fn as_str(&self) -> &str {
        match self {
            Self::Dns(name) | Self::Uri(name) => name,
        }
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The identity of a Kubernetes ServiceAccount:
/// `<sa>.<ns>.serviceaccount.identity.<control plane ns>.<trust domain>`.
pub fn service_account(
    name: &str,
    namespace: &str,
    control_namespace: &str,
    trust_domain: &str,
) -> String {
    format!("{name}.{namespace}.serviceaccount.identity.{control_namespace}.{trust_domain}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_trust_domain_is_the_domain_of_the_cluster() {
        assert_eq!(trust_domain("", "cluster.local"), "cluster.local");
        assert_eq!(trust_domain("example.org", "cluster.local"), "example.org");
    }

    #[test]
    fn dns_identities() {
        let ok = |text: &str| Identity::parse(text).unwrap();
        assert_eq!(ok("Web.shop.example").as_str(), "web.shop.example");
        for bad in [
            "",
            ".",
            "a..b",
            "a.",
            "-a.b",
            "a b",
            "ä.example",
            &"a".repeat(64),
        ] {
            assert!(
                matches!(Identity::parse(bad), Err(IdentityError::InvalidDns(_))),
                "{bad:?}"
            );
        }
    }

    #[test]
    fn spiffe_identities() {
        assert_eq!(
            Identity::parse("spiffe://td/ns/a").unwrap().to_string(),
            "spiffe://td/ns/a"
        );
        for bad in [
            "http://td/a",
            "spiffe://td",
            "spiffe:///a",
            "spiffe://td/",
            "spiffe://td/a?b",
        ] {
            assert!(
                matches!(Identity::parse(bad), Err(IdentityError::InvalidUri(_))),
                "{bad:?}"
            );
        }
    }
}

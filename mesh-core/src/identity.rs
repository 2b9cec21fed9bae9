//! Identities of workloads in certificates.

use std::fmt;
use std::sync::Arc;

/// The only subject alternative name of a mesh certificate.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Identity {
    /// A DNS name in lower case, without a trailing dot:
    /// `web.shop.serviceaccount.identity.linkerd.cluster.local`.
    Dns(Arc<str>),
    /// A SPIFFE identity: `spiffe://trust.domain/path`.
    Uri(Arc<str>),
}

/// An invalid identity.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IdentityError {
    /// An invalid DNS name.
    #[error(
        "invalid DNS name {0:?}: expected labels of letters, digits, '-' and '_' joined by dots, at most 253 characters"
    )]
    InvalidDns(String),
    /// An invalid `spiffe://` URI.
    #[error("invalid SPIFFE identity {0:?}: expected spiffe://<trust domain>/<path>")]
    InvalidUri(String),
}

/// Returns whether a text is a DNS label in lower case, as most names in Kubernetes are (RFC 1123).
pub fn is_dns_label(text: &str) -> bool {
    (1..=63).contains(&text.len())
        && text
            .bytes()
            .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-')
        && !text.starts_with('-')
        && !text.ends_with('-')
}

/// The longest name of a SPIFFE trust domain, in bytes (SPIFFE-ID, section 2.1).
pub const MAX_TRUST_DOMAIN: usize = 255;

/// Returns whether a text is the name of a SPIFFE trust domain, as `example.org`.
pub fn is_spiffe_trust_domain(text: &str) -> bool {
    let plain =
        |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-_.".contains(&byte);
    (1..=MAX_TRUST_DOMAIN).contains(&text.len()) && text.bytes().all(plain)
}

/// Returns the domain of identities: the cluster's domain if none is configured, as in Linkerd.
pub fn trust_domain<'a>(configured: &'a str, cluster_domain: &'a str) -> &'a str {
    if configured.is_empty() {
        cluster_domain
    } else {
        configured
    }
}

impl Identity {
    /// Parses a DNS name or a `spiffe://` URI.
    ///
    /// # Errors
    ///
    /// The text is neither.
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

    /// Returns the trust domain of a SPIFFE identity, `None` of a DNS name.
    pub fn spiffe_trust_domain(&self) -> Option<&str> {
        let Self::Uri(uri) = self else {
            return None;
        };
        let (domain, _path) = uri.strip_prefix("spiffe://")?.split_once('/')?;
        Some(domain)
    }

    /// Returns the text without copying it.
    pub fn to_shared(&self) -> Arc<str> {
        match self {
            Self::Dns(text) | Self::Uri(text) => text.clone(),
        }
    }

    /// Returns the text.
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

/// Returns the identity of a Kubernetes ServiceAccount:
/// `<sa>.<ns>.serviceaccount.identity.<control plane ns>.<trust domain>`.
pub fn service_account(
    name: &str,
    namespace: &str,
    control_namespace: &str,
    trust_domain: &str,
) -> String {
    format!("{name}.{namespace}.serviceaccount.identity.{control_namespace}.{trust_domain}")
}

/// How the subject of a token of a ServiceAccount begins: `NAMESPACE:NAME` follows.
pub const ACCOUNT_SUBJECT: &str = "system:serviceaccount:";

/// Returns the subject of tokens of a ServiceAccount, which is also its name as a Kubernetes user.
pub fn account_subject(namespace: &str, name: &str) -> String {
    format!("{ACCOUNT_SUBJECT}{namespace}:{name}")
}

/// Returns the name of a machine outside Kubernetes in the certificate that it signs tokens with:
/// `<machine>.machine.identity.<control plane ns>.<trust domain>`. No ServiceAccount has it.
pub fn machine(name: &str, control_namespace: &str, trust_domain: &str) -> String {
    format!("{name}.machine.identity.{control_namespace}.{trust_domain}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trust_domain_defaults_to_cluster_domain() {
        assert_eq!(trust_domain("", "cluster.local"), "cluster.local");
        assert_eq!(trust_domain("example.org", "cluster.local"), "example.org");
    }

    #[test]
    fn dns_identities_are_lowercased_and_validated() {
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
    fn spiffe_identities_are_validated() {
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

    #[test]
    fn trust_domain_is_between_scheme_and_path() {
        let domain = |text: &str| {
            let identity = Identity::parse(text).unwrap();
            identity.spiffe_trust_domain().map(str::to_owned)
        };
        assert_eq!(
            domain("spiffe://example.org/a/b").as_deref(),
            Some("example.org")
        );
        assert_eq!(domain("example.org"), None);
        for valid in ["example.org", "a", "1-2_3.x", &"a".repeat(MAX_TRUST_DOMAIN)] {
            assert!(is_spiffe_trust_domain(valid), "{valid}");
        }
        let too_long = "a".repeat(MAX_TRUST_DOMAIN + 1);
        for invalid in ["", "Example.org", "a/b", "a:1", "a b", "\u{e4}", &too_long] {
            assert!(!is_spiffe_trust_domain(invalid), "{invalid}");
        }
    }
}

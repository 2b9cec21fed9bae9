//! Which identities an entry of a `MeshTLSAuthentication` or `ServerAuthorization` matches, or one
//! of the list of denied identities ([`crate::deny_list`]).

use std::fmt;
use std::sync::Arc;

use super::Suffix;
use crate::identity::Identity;

/// A parsed entry of `identities`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum IdentityMatch {
    /// This identity.
    Exact(Identity),
    /// Every DNS identity with this suffix; every one at all if it is empty.
    Suffix(Suffix),
}

impl IdentityMatch {
    /// Parses `*`, `*.` with a suffix, a DNS name or a `spiffe://` URI.
    ///
    /// # Errors
    ///
    /// The text is none of them.
    pub fn parse(text: &str) -> Result<Self, String> {
        if text == "*" {
            return Ok(Self::Suffix(Suffix(Vec::new())));
        }
        if let Some(suffix) = text.strip_prefix("*.") {
            let Ok(Identity::Dns(suffix)) = Identity::parse(suffix) else {
                return Err(format!(
                    "{text:?} is not \"*.\" with a DNS name, such as *.shop.serviceaccount.identity.linkerd.cluster.local"
                ));
            };
            let parts = suffix.split('.').map(Arc::from).collect();
            return Ok(Self::Suffix(Suffix(parts)));
        }
        Identity::parse(text)
            .map(Self::Exact)
            .map_err(|error| error.to_string())
    }
}

impl fmt::Display for IdentityMatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exact(id) => id.fmt(f),
            Self::Suffix(Suffix(parts)) => {
                f.write_str("*")?;
                parts.iter().try_for_each(|part| write!(f, ".{part}"))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_exact_or_suffixes() {
        let suffix = |parts: &[&str]| {
            let parts = parts.iter().map(|part| Arc::from(*part)).collect();
            Ok(IdentityMatch::Suffix(Suffix(parts)))
        };
        assert_eq!(IdentityMatch::parse("*"), suffix(&[]));
        assert_eq!(IdentityMatch::parse("*.Shop.a"), suffix(&["shop", "a"]));
        for text in ["*", "*.shop.a", "web.shop", "spiffe://example.org/web"] {
            assert_eq!(IdentityMatch::parse(text).unwrap().to_string(), text);
        }
        for exact in ["web.shop", "spiffe://example.org/web"] {
            let identity = Identity::parse(exact).unwrap();
            assert_eq!(
                IdentityMatch::parse(exact),
                Ok(IdentityMatch::Exact(identity))
            );
        }
        for bad in [
            "",
            "*.",
            "**",
            "*a",
            "a.*",
            "*.*",
            "*.spiffe://a/b",
            "spiffe://a",
            "b c",
        ] {
            assert!(IdentityMatch::parse(bad).is_err(), "{bad}");
        }
    }
}

//! Which identities an entry of a `MeshTLSAuthentication` or `ServerAuthorization` matches.

use std::sync::Arc;

use mesh_core::identity::Identity;
use mesh_core::policy::inbound::Suffix;

/// A parsed entry of `identities`.
#[derive(Clone, Debug, PartialEq, Eq)]
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

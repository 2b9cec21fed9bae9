//! The objects of the trust anchors and the issuer, in the namespace of the control plane. The
//! first ones have the names and keys of Linkerd's chart.

/// The Secret of the trust anchor that the mesh created, with the keys of [`IssuerNames::TLS`].
pub const ANCHOR_SECRET: &str = "linkerd-trust-anchor";

/// The Secret of the issuer.
pub const ISSUER_SECRET: &str = "linkerd-identity-issuer";

/// The Secret of a rotation of the trust anchor, while it lasts.
pub const ROTATION_SECRET: &str = "linkerd-identity-rotation";

/// The ConfigMap where the identity service keeps the anchors that it sends, and their number.
pub const BUNDLE_CONFIG_MAP: &str = "linkerd-identity-trust-bundle";

/// The key of the number in [`BUNDLE_CONFIG_MAP`].
pub const NUMBER_KEY: &str = "number";

/// The key of the bundles of foreign trust domains in [`BUNDLE_CONFIG_MAP`], in JSON.
pub const FOREIGN_KEY: &str = "foreign";

/// The key of the denied identities in [`BUNDLE_CONFIG_MAP`], one in each line.
pub const DENIED_KEY: &str = "denied";

/// The metric of the identity service with the issuer in use: a gauge with the label
/// [`ISSUER_LABEL`], and the Unix time since when it is in use.
pub const ISSUER_METRIC: &str = "mesh_issuer_loaded_timestamp_seconds";

/// The SHA-256 of the issuer's certificate, as [`fingerprint`] returns it.
pub const ISSUER_LABEL: &str = "issuer_sha256";

/// The creator of the Secrets that the bootstrap renews, in the annotation of that name.
pub const BOOTSTRAP: &str = "mesh-controller bootstrap";

/// The names of an issuer's files or of the keys of its Secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IssuerNames {
    /// The name of the certificate.
    pub certificate: &'static str,
    /// The name of the private key.
    pub key: &'static str,
    /// The type of the Secret.
    pub secret_type: &'static str,
}

/// The default scheme of the issuer in Linkerd's chart.
const LINKERD_SCHEME: &str = "linkerd.io/tls";

impl IssuerNames {
    /// The names of a TLS Secret of Kubernetes.
    pub const TLS: Self = Self {
        certificate: "tls.crt",
        key: "tls.key",
        secret_type: "kubernetes.io/tls",
    };

    /// Returns the names of a scheme. Any scheme but Linkerd's means a TLS Secret of Kubernetes.
    pub fn for_scheme(scheme: &str) -> Self {
        if scheme == LINKERD_SCHEME {
            Self {
                certificate: "crt.pem",
                key: "key.pem",
                secret_type: "Opaque",
            }
        } else {
            Self::TLS
        }
    }
}

/// Returns the identity of the server of a mesh's trust bundle. Its form is the one that SPIRE
/// gives ServiceAccounts; proxies have DNS names.
pub fn bundle_server_id(trust_domain: &str, control_namespace: &str) -> String {
    format!("spiffe://{trust_domain}/ns/{control_namespace}/sa/linkerd-identity")
}

/// Returns the SHA-256 of a certificate in DER, in hexadecimal.
pub fn fingerprint(der: &[u8]) -> String {
    use sha2::{Digest as _, Sha256};

    format!("{:x}", Sha256::digest(der))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fingerprint_is_the_one_that_openssl_prints_without_colons() {
        let of_nothing = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        assert_eq!(fingerprint(b""), of_nothing);
    }

    #[test]
    fn unknown_scheme_is_a_tls_secret() {
        let linkerd = IssuerNames::for_scheme("linkerd.io/tls");
        assert_eq!((linkerd.certificate, linkerd.key), ("crt.pem", "key.pem"));
        for scheme in ["kubernetes.io/tls", "x", ""] {
            assert_eq!(IssuerNames::for_scheme(scheme), IssuerNames::TLS);
        }
    }
}

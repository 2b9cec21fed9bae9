//! The certificate that a controller presents to the API server, in a Secret.

use mesh_k8s::kinds::Secret;
use x509_parser::certificate::X509Certificate;

use super::expiry::check_expiry;
use super::framework::{CheckResult, Outcome};
use crate::certificate::{self, time_problem};
use crate::clients::tls;
use crate::facts::Fact;

pub(super) struct ServingCertificate {
    secret: &'static str,
    /// The certificate, followed by its intermediates, in DER.
    chain: Vec<Vec<u8>>,
    /// The name that the API server expects in the certificate.
    server_name: String,
}

/// The validity of a certificate that a controller renews itself, at most. It is less than
/// Linkerd's threshold of a warning.
const MANAGED_SECONDS: i64 = 120 * 24 * 3600;

/// Returns the API server's CA certificates for `server`, in DER. `holder` is the object that has
/// them, for messages.
pub(super) fn ca_bundle(pem: Option<&[u8]>, holder: &str, server: &str) -> Fact<Vec<Vec<u8>>> {
    match pem {
        Some(pem) if !pem.is_empty() => {
            certificate::read_pem(pem, &format!("the caBundle of {holder}"))
        }
        _ => Err(format!(
            "{holder} has no caBundle: the API server cannot trust {server}"
        )),
    }
}

impl ServingCertificate {
    pub(super) fn read(
        secret: Option<&Secret>,
        name: &'static str,
        server_name: String,
    ) -> Fact<Self> {
        let secret = secret.ok_or_else(|| format!("Secret {name} is missing"))?;
        let text = secret
            .data
            .as_ref()
            .and_then(|data| data.get("tls.crt").or(data.get("crt.pem")));
        let text = text.ok_or_else(|| format!("Secret {name} has no key tls.crt"))?;
        Ok(Self {
            secret: name,
            chain: certificate::read_pem(&text.0, &format!("Secret {name}"))?,
            server_name,
        })
    }

    /// Checks that the API server accepts the certificate. `holder` names what has the `bundle` of
    /// CA certificates, for messages.
    pub(super) fn check_valid(&self, bundle: &[Vec<u8>], now: u64, holder: &str) -> CheckResult {
        let leaf = certificate::parse(&self.chain[0], self.secret)?;
        let verified = match time_problem(&leaf, now) {
            Some(problem) => Err(problem),
            None => {
                tls::verify_chain(&self.chain, bundle, &self.server_name, now).map_err(|reason| {
                    format!(
                        "the certificate of Secret {} is not accepted by the {holder}: {reason}",
                        self.secret
                    )
                })
            }
        };
        Ok(Outcome::fail_if(verified.err(), ""))
    }

    /// Warns if the certificate expires soon. One that its controller renews should be renewed with
    /// a third of its validity left.
    pub(super) fn check_expiry(&self, now: u64) -> CheckResult {
        let leaf = certificate::parse(&self.chain[0], self.secret)?;
        if time_problem(&leaf, now).is_some() {
            return Ok(Outcome::ok(
                "not valid now, which the previous check reports",
            ));
        }
        let validity = leaf.validity();
        let lifetime = validity.not_after.timestamp() - validity.not_before.timestamp();
        if lifetime > MANAGED_SECONDS {
            return Ok(check_expiry(&[X509Certificate::clone(&leaf)], now));
        }
        let left = certificate::remaining_seconds(&leaf, now);
        let is_overdue = left < u64::try_from(lifetime).unwrap_or(0) / 4;
        let text = format!("it expires {}", certificate::format_expiry(left, now));
        Ok(if is_overdue {
            Outcome::warn(format!("{text}: it should have been renewed"))
        } else {
            Outcome::ok(text)
        })
    }
}

//! The trust anchor, the issuer, and what the proxies hold.

use std::{
    path::{Path, PathBuf},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use anyhow::Context;
use mesh_local::pki;
use x509_parser::{certificate::X509Certificate, pem::Pem};

use super::{Category, Check, Look, Outcome, Subject};
use crate::node::{Node, http, metrics};

pub(crate) const CATEGORY: Category = Category {
    name: "certificates",
    needs_node: true,
    checks: &[
        Check {
            anchor: "trust-anchor",
            description: "trust anchor is valid",
            fatal: false,
            look: trust_anchor,
        },
        Check {
            anchor: "issuer",
            description: "issuer certificate is valid and signed by the trust anchor",
            fatal: false,
            look: issuer,
        },
        Check {
            anchor: "proxy-certificates",
            description: "proxies hold certificates that have not expired",
            fatal: false,
            look: proxies,
        },
    ],
};

/// Linkerd warns as early.
const WARN_BEFORE: Duration = Duration::from_secs(60 * 24 * 3600);

fn trust_anchor(subject: &Subject) -> Look<'_> {
    on_node(subject, |node| {
        with_certificate(&trust_anchor_file(node), |certificate| {
            Ok(lifetime(certificate))
        })
    })
}

fn issuer(subject: &Subject) -> Look<'_> {
    on_node(subject, |node| {
        with_certificate(&issuer_file(node), |issuer| {
            with_certificate(&trust_anchor_file(node), |anchor| {
                Ok(match issuer.verify_signature(Some(anchor.public_key())) {
                    Ok(()) => lifetime(issuer),
                    Err(_) => Outcome::Fail(
                        "it is not signed by the trust anchor: no proxy would trust what it issues"
                            .to_owned(),
                    ),
                })
            })
        })
    })
}

fn proxies(subject: &Subject) -> Look<'_> {
    Box::pin(async move {
        let Some(node) = &subject.node else {
            return Outcome::Fail("no node".to_owned());
        };
        Outcome::of(look_at_proxies(node).await)
    })
}

async fn look_at_proxies(node: &Node) -> anyhow::Result<Outcome> {
    let (mut bad, mut soonest, mut count) = (Vec::new(), f64::INFINITY, 0_usize);
    for pod in node.pods()?.iter().filter(|pod| pod.is_meshed()) {
        let expiry = match http::get_ok(pod.admin()?, "/metrics").await {
            Ok(text) => metrics::parse(&text)
                .into_iter()
                .find(|sample| sample.name == "control_identity_cert_expiration_timestamp_seconds")
                .map(|sample| sample.value),
            Err(error) => {
                bad.push(format!("{pod}: {error:#}"));
                continue;
            }
        };
        match expiry {
            None => bad.push(format!("{pod} has no certificate yet")),
            Some(expiry) if expiry <= now() => {
                bad.push(format!("the certificate of {pod} has expired"));
            }
            Some(expiry) => {
                soonest = soonest.min(expiry - now());
                count += 1;
            }
        }
    }
    Ok(match (bad.is_empty(), count) {
        (false, _) => Outcome::Fail(bad.join("; ")),
        (true, 0) => Outcome::Ok("no pod is meshed".to_owned()),
        (true, _) => Outcome::Ok(format!(
            "{count} proxies, the next expiry is in {}",
            days_or_hours(Duration::from_secs_f64(soonest))
        )),
    })
}

fn trust_anchor_file(node: &Node) -> PathBuf {
    pki::anchors_dir(&node.instance.pki()).join("ca-bundle.crt")
}

fn issuer_file(node: &Node) -> PathBuf {
    pki::issuer_dir(&node.instance.pki()).join("crt.pem")
}

/// Judges how long a certificate is still good for.
fn lifetime(certificate: &X509Certificate<'_>) -> Outcome {
    let (not_before, not_after) = (
        certificate.validity().not_before.timestamp(),
        certificate.validity().not_after.timestamp(),
    );
    let now = now() as i64;
    let left = Duration::from_secs(u64::try_from(not_after - now).unwrap_or(0));
    if now < not_before {
        Outcome::Fail(format!(
            "it is not valid before {}: is the clock right?",
            certificate.validity().not_before
        ))
    } else if left.is_zero() {
        Outcome::Fail(format!(
            "it expired on {}",
            certificate.validity().not_after
        ))
    } else if left < WARN_BEFORE {
        Outcome::Warn(format!("it expires in {}", days_or_hours(left)))
    } else {
        Outcome::Ok(format!("expires in {}", days_or_hours(left)))
    }
}

fn with_certificate<T>(
    path: &Path,
    judge: impl FnOnce(&X509Certificate<'_>) -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    let text = std::fs::read(path).with_context(|| format!("read {}", path.display()))?;
    let pem = Pem::iter_from_buffer(&text)
        .next()
        .with_context(|| format!("{} holds no certificate", path.display()))?;
    let pem = pem.with_context(|| format!("{} is no PEM file", path.display()))?;
    let certificate = pem
        .parse_x509()
        .with_context(|| format!("{} holds no certificate", path.display()))?;
    judge(&certificate)
}

fn on_node<'a>(
    subject: &'a Subject,
    look: impl FnOnce(&Node) -> anyhow::Result<Outcome> + 'a,
) -> Look<'a> {
    Box::pin(async move {
        match &subject.node {
            Some(node) => Outcome::of(look(node)),
            None => Outcome::Fail("no node".to_owned()),
        }
    })
}

fn now() -> f64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0.0, |since| since.as_secs_f64())
}

fn days_or_hours(time: Duration) -> String {
    match time.as_secs() / 3600 {
        hours @ 48.. => format!("{} days", hours / 24),
        hours @ 2.. => format!("{hours} hours"),
        _ => format!("{} minutes", time.as_secs() / 60),
    }
}

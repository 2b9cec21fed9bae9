//! What to do next about the certificate: decided from what was last seen of Secret and webhook
//! configuration. Pure.

use std::time::{Duration, SystemTime};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use kube::api::DynamicObject;
use mesh_core::annotation::CREATED_BY;
use mesh_k8s::kinds::Secret;
use rustls_pki_types::{CertificateDer, pem::PemObject};
use serde_json::Value;
use x509_parser::prelude::{FromDer, X509Certificate};

use crate::webhook::certificate::Pair;

/// The outer option: whether it has been looked at; the inner: whether it exists.
#[derive(Debug, Default)]
pub(super) struct Seen {
    pub(super) secret: Option<Option<Result<Held, Broken>>>,
    pub(super) hook: Option<Option<Hook>>,
}

/// A Secret with a certificate.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) version: Option<String>,
    /// Made by us, so that we may make it anew.
    pub(super) ours: bool,
    /// PEM, as it is in the Secret.
    pub(super) certificate: String,
    pub(super) authorities: String,
    pub(super) pair: Pair,
}

/// A Secret without one.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Broken {
    pub(super) version: Option<String>,
    pub(super) ours: bool,
    pub(super) problem: String,
}

/// A webhook configuration.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Hook {
    pub(super) uid: String,
    pub(super) version: String,
    /// Name and `caBundle` of each webhook; what cannot be decoded is empty.
    pub(super) bundles: Vec<(String, String)>,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Not everything has been looked at.
    Look,
    /// Nothing can be done, for this reason.
    Wait(String),
    /// Make a certificate, in place of the one there is.
    Make,
    /// Tell the API server to trust these.
    Publish(String),
    /// All is as it should be: serve with the Secret's certificate.
    Serve,
}

/// Old authorities are kept trusted until replicas have surely stopped serving under them; more
/// than a few come from somebody deleting Secrets in a loop.
const MAX_AUTHORITIES: usize = 4;

pub(super) fn next(seen: &Seen, names: &[String], now: SystemTime) -> Step {
    let (Some(secret), Some(hook)) = (&seen.secret, &seen.hook) else {
        return Step::Look;
    };
    // Also the owner of the Secret, without which the Secret would outlive the mesh.
    let Some(hook) = hook else {
        return Step::Wait("there is no webhook configuration: nobody calls this server (was the chart installed completely?)".into());
    };
    let held = match secret {
        None => return Step::Make,
        Some(Err(broken)) if broken.ours => return Step::Make,
        Some(Err(broken)) => {
            return Step::Wait(format!(
                "somebody else's Secret cannot be used: {}; correct it, or delete it to have one made",
                broken.problem
            ));
        }
        Some(Ok(held)) => held,
    };
    if held.ours
        && (now >= held.pair.renew_at() || !names.iter().all(|name| held.pair.is_for(name)))
    {
        return Step::Make;
    }
    if held.authorities.is_empty() {
        // Whoever made the certificate says whom to trust.
        return Step::Serve;
    }
    if hook
        .bundles
        .iter()
        .all(|(_, bundle)| *bundle == held.authorities)
    {
        Step::Serve
    } else {
        Step::Publish(held.authorities.clone())
    }
}

/// A new authority, and those before it that are still valid.
pub(super) fn with_old_authorities(new: &str, old: &str, now: SystemTime) -> String {
    let mut bundle = new.trim_end().to_owned();
    bundle.push('\n');
    for pem in certificates(old).take(MAX_AUTHORITIES - 1) {
        if !is_expired(pem, now) && pem.trim() != new.trim() {
            bundle.push_str(pem.trim());
            bundle.push('\n');
        }
    }
    bundle
}

/// The PEM texts in a bundle, one certificate each.
fn certificates(bundle: &str) -> impl Iterator<Item = &str> {
    const END: &str = "-----END CERTIFICATE-----";
    bundle
        .split_inclusive(END)
        .map(str::trim)
        .filter(|pem| pem.ends_with(END))
}

fn is_expired(pem: &str, now: SystemTime) -> bool {
    let not_after = || {
        let der = CertificateDer::from_pem_slice(pem.as_bytes()).ok()?;
        let (_, certificate) = X509Certificate::from_der(&der).ok()?;
        let seconds = u64::try_from(certificate.validity().not_after.timestamp()).ok()?;
        SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(seconds))
    };
    not_after().is_none_or(|not_after| not_after <= now)
}

impl Held {
    pub(super) fn read(secret: Secret) -> Result<Self, Broken> {
        let annotations = secret.metadata.annotations.as_ref();
        let made_by = annotations.and_then(|all| all.get(CREATED_BY));
        let ours = made_by.is_some_and(|by| by.starts_with("mesh-controller "));
        let version = secret.metadata.resource_version.clone();
        let entry = |name: &str| {
            let bytes = &secret.data.as_ref()?.get(name)?.0;
            String::from_utf8(bytes.clone()).ok()
        };
        let certificate = entry("tls.crt").unwrap_or_default();
        let key = entry("tls.key").unwrap_or_default();
        match Pair::read(certificate.as_bytes(), key.as_bytes()) {
            Ok(pair) => Ok(Self {
                version,
                ours,
                certificate,
                authorities: entry("ca.crt").unwrap_or_default(),
                pair,
            }),
            Err(error) => Err(Broken {
                version,
                ours,
                problem: error.to_string(),
            }),
        }
    }
}

impl Hook {
    pub(super) fn read(object: DynamicObject) -> Self {
        let webhooks = object.data.get("webhooks").and_then(Value::as_array);
        let name = |webhook: &Value| {
            let name = webhook.get("name").and_then(Value::as_str);
            name.unwrap_or_default().to_owned()
        };
        let bundle = |webhook: &Value| {
            let text = webhook.pointer("/clientConfig/caBundle")?.as_str()?;
            String::from_utf8(STANDARD.decode(text).ok()?).ok()
        };
        Self {
            uid: object.metadata.uid.unwrap_or_default(),
            version: object.metadata.resource_version.unwrap_or_default(),
            bundles: webhooks
                .into_iter()
                .flatten()
                .map(|webhook| (name(webhook), bundle(webhook).unwrap_or_default()))
                .collect(),
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use mesh_k8s::kinds::{ByteString, ObjectMeta};

    use super::*;
    use crate::webhook::certificate::{Made, make};

    const DAY: Duration = Duration::from_secs(24 * 3600);

    pub(in super::super) fn names() -> Vec<String> {
        vec!["a.linkerd.svc".to_owned()]
    }

    pub(in super::super) fn secret(made: &Made, ours: bool) -> Secret {
        let entries = [
            ("tls.crt", &made.certificate_pem),
            ("tls.key", &made.key_pem),
            ("ca.crt", &made.authority_pem),
        ];
        Secret {
            metadata: ObjectMeta {
                annotations: ours.then(|| [(CREATED_BY.into(), "mesh-controller 1".into())].into()),
                resource_version: Some("7".into()),
                ..ObjectMeta::default()
            },
            data: Some(
                entries
                    .map(|(name, text)| (name.to_owned(), ByteString(text.clone().into_bytes())))
                    .into(),
            ),
            ..Secret::default()
        }
    }

    pub(in super::super) fn hook(bundles: &[&str]) -> Option<Option<Hook>> {
        Some(Some(Hook {
            uid: "u".into(),
            version: "1".into(),
            bundles: bundles
                .iter()
                .map(|bundle| ("w".to_owned(), (*bundle).to_owned()))
                .collect(),
        }))
    }

    #[test]
    fn every_state_has_a_next_step() {
        let now = SystemTime::now();
        let made = make(&names(), now).unwrap();
        let held = |ours| Some(Some(Held::read(secret(&made, ours))));
        let step = |secret, hook| next(&Seen { secret, hook }, &names(), now);
        assert_eq!(step(None, hook(&[])), Step::Look);
        assert!(matches!(step(Some(None), Some(None)), Step::Wait(_)));
        assert_eq!(step(Some(None), hook(&[""])), Step::Make);
        let publish = Step::Publish(made.authority_pem.clone());
        assert_eq!(step(held(true), hook(&[""])), publish);
        assert_eq!(
            step(held(true), hook(&[&made.authority_pem, "other"])),
            publish
        );
        assert_eq!(step(held(true), hook(&[&made.authority_pem])), Step::Serve);
        assert_eq!(step(held(false), hook(&[&made.authority_pem])), Step::Serve);
    }

    #[test]
    fn ours_is_renewed_in_time_and_another_s_never() {
        let now = SystemTime::now();
        let made = make(&names(), now).unwrap();
        let at = |ours, names: &[String], after: Duration| {
            let seen = Seen {
                secret: Some(Some(Held::read(secret(&made, ours)))),
                hook: hook(&[&made.authority_pem]),
            };
            next(&seen, names, now + after)
        };
        assert_eq!(at(true, &names(), 59 * DAY), Step::Serve);
        assert_eq!(at(true, &names(), 61 * DAY), Step::Make);
        assert_eq!(at(false, &names(), 61 * DAY), Step::Serve);
        assert_eq!(at(true, &["b.linkerd.svc".to_owned()], DAY), Step::Make);
    }

    #[test]
    fn a_broken_secret_is_made_anew_when_it_is_ours() {
        let now = SystemTime::now();
        let made = make(&names(), now).unwrap();
        let step = |ours| {
            let mut broken = secret(&made, ours);
            broken.data = None;
            let seen = Seen {
                secret: Some(Some(Held::read(broken))),
                hook: hook(&[""]),
            };
            next(&seen, &names(), now)
        };
        assert_eq!(step(true), Step::Make);
        let Step::Wait(reason) = step(false) else {
            panic!();
        };
        assert!(reason.contains("certificate"), "{reason}");
    }

    #[test]
    fn old_authorities_stay_until_they_end() {
        let now = SystemTime::now();
        let made: Vec<Made> = (0..6)
            .map(|n| make(&names(), now + n * DAY).unwrap())
            .collect();
        let mut bundle = String::new();
        for made in &made {
            bundle = with_old_authorities(&made.authority_pem, &bundle, now);
        }
        let kept: Vec<&str> = certificates(&bundle).collect();
        let newest: Vec<&str> = made
            .iter()
            .rev()
            .take(4)
            .map(|m| m.authority_pem.trim())
            .collect();
        assert_eq!(kept, newest);
        let later = with_old_authorities(&made[5].authority_pem, &bundle, now + 1000 * DAY);
        assert_eq!(later.trim(), made[5].authority_pem.trim());
    }

    #[test]
    fn bundles_are_read_from_the_configuration() {
        let object: DynamicObject = serde_json::from_value(serde_json::json!({
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": "MutatingWebhookConfiguration",
            "metadata": {"name": "x", "uid": "u", "resourceVersion": "3"},
            "webhooks": [{"name": "a", "clientConfig": {"caBundle": "UEVN"}}, {"name": "b"}],
        }))
        .unwrap();
        let expect = Hook {
            uid: "u".into(),
            version: "3".into(),
            bundles: vec![("a".into(), "PEM".into()), ("b".into(), String::new())],
        };
        assert_eq!(Hook::read(object), expect);
    }
}

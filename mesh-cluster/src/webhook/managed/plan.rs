//! The next step for the certificate, a pure function of the last observed Secret and registration.

use std::time::SystemTime;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use kube::api::DynamicObject;
use mesh_core::annotation::CREATED_BY;
use mesh_k8s::kinds::Secret;
use mesh_k8s::pod::meta_annotation;
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;
use serde_json::Value;
use x509_parser::prelude::{FromDer, X509Certificate};

use crate::certificate::system_time;
use crate::webhook::certificate::CertificateAndKey;

/// The observed objects. The outer option is `None` before an object is observed, the inner one if
/// it does not exist.
#[derive(Debug, Default)]
pub(super) struct ObservedState {
    pub(super) secret: Option<Option<Result<CertificateSecret, InvalidSecret>>>,
    pub(super) registration: Option<Option<ObservedRegistration>>,
}

/// A Secret with a valid certificate.
#[derive(Debug)]
pub(super) struct CertificateSecret {
    pub(super) version: Option<String>,
    /// Whether this program created it and may replace it.
    pub(super) managed: bool,
    /// The PEM text of the Secret.
    pub(super) certificate: String,
    pub(super) authorities: String,
    pub(super) pair: CertificateAndKey,
}

/// A Secret without valid certificate.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct InvalidSecret {
    pub(super) version: Option<String>,
    pub(super) managed: bool,
    pub(super) problem: String,
}

/// A webhook configuration or an APIService.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ObservedRegistration {
    pub(super) uid: String,
    pub(super) version: String,
    /// The name and `caBundle` of each webhook, or one entry for an APIService; an invalid
    /// `caBundle` is empty.
    pub(super) bundles: Vec<(String, String)>,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Wait until both objects have been observed.
    Observe,
    /// Wait for a user, for this reason.
    Wait(String),
    /// Wait until the registration is created.
    Unregistered,
    /// Generate a certificate and replace an existing one.
    Generate,
    /// Write these CAs to the `caBundle`.
    PublishAuthorities(String),
    /// Serve with the Secret's certificate.
    Serve,
}

/// The maximum number of CAs in a bundle. Old ones stay trusted until no replica serves with their
/// certificates; there are only more if the Secret is deleted repeatedly.
const MAX_AUTHORITIES: usize = 4;

pub(super) fn next(seen: &ObservedState, names: &[String], now: SystemTime) -> Step {
    let (Some(secret), Some(registration)) = (&seen.secret, &seen.registration) else {
        return Step::Observe;
    };
    // It also is the owner of the Secret, without which the Secret would not be deleted with the
    // mesh.
    let Some(registration) = registration else {
        return Step::Unregistered;
    };
    let held = match secret {
        None => return Step::Generate,
        Some(Err(broken)) if broken.managed => return Step::Generate,
        Some(Err(broken)) => {
            return Step::Wait(format!(
                "the externally managed Secret is invalid: {}; correct it, or delete it to have one generated",
                broken.problem
            ));
        }
        Some(Ok(held)) => held,
    };
    if held.managed
        && (now >= held.pair.renew_at() || !names.iter().all(|name| held.pair.is_for(name)))
    {
        return Step::Generate;
    }
    if held.authorities.is_empty() {
        // The `caBundle` of an externally managed certificate is managed externally too.
        return Step::Serve;
    }
    if registration
        .bundles
        .iter()
        .all(|(_, bundle)| *bundle == held.authorities)
    {
        Step::Serve
    } else {
        Step::PublishAuthorities(held.authorities.clone())
    }
}

/// Returns a bundle of a new CA and the old ones that have not expired.
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

/// Returns the PEM text of each certificate in a bundle.
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
        system_time(certificate.validity().not_after)
    };
    not_after().is_none_or(|not_after| not_after <= now)
}

impl ObservedState {
    /// Whether the registration does not exist, so that the API server does not call the server.
    pub(super) fn is_unregistered(&self) -> bool {
        matches!(self.registration, Some(None))
    }
}

impl CertificateSecret {
    pub(super) fn read(secret: Secret) -> Result<Self, InvalidSecret> {
        let made_by = meta_annotation(&secret.metadata, CREATED_BY);
        let managed = made_by.is_some_and(|by| by.starts_with("mesh-controller "));
        let version = secret.metadata.resource_version.clone();
        let entry = |name: &str| {
            let bytes = &secret.data.as_ref()?.get(name)?.0;
            String::from_utf8(bytes.clone()).ok()
        };
        let certificate = entry("tls.crt").unwrap_or_default();
        let key = entry("tls.key").unwrap_or_default();
        match CertificateAndKey::read(certificate.as_bytes(), key.as_bytes()) {
            Ok(pair) => Ok(Self {
                version,
                managed,
                certificate,
                authorities: entry("ca.crt").unwrap_or_default(),
                pair,
            }),
            Err(error) => Err(InvalidSecret {
                version,
                managed,
                problem: error.to_string(),
            }),
        }
    }
}

impl ObservedRegistration {
    pub(super) fn read(object: DynamicObject) -> Self {
        let bundles = match object.data.get("webhooks").and_then(Value::as_array) {
            Some(webhooks) => webhooks
                .iter()
                .map(|webhook| {
                    let name = webhook.get("name").and_then(Value::as_str);
                    let bundle = ca_bundle(webhook, "/clientConfig/caBundle");
                    (name.unwrap_or_default().to_owned(), bundle)
                })
                .collect(),
            None => vec![(String::new(), ca_bundle(&object.data, "/spec/caBundle"))],
        };
        Self {
            uid: object.metadata.uid.unwrap_or_default(),
            version: object.metadata.resource_version.unwrap_or_default(),
            bundles,
        }
    }
}

/// Returns the PEM text of a `caBundle`, which is empty if it is missing or invalid.
fn ca_bundle(object: &Value, pointer: &str) -> String {
    let decode = || {
        let text = object.pointer(pointer)?.as_str()?;
        String::from_utf8(STANDARD.decode(text).ok()?).ok()
    };
    decode().unwrap_or_default()
}

#[cfg(test)]
pub(super) mod tests {
    use std::time::Duration;

    use mesh_k8s::kinds::{ByteString, ObjectMeta};

    use super::*;
    use crate::webhook::certificate::{GeneratedCertificate, generate};

    const DAY: Duration = Duration::from_secs(24 * 3600);

    pub(in super::super) fn names() -> Vec<String> {
        vec!["a.linkerd.svc".to_owned()]
    }

    pub(in super::super) fn secret(made: &GeneratedCertificate, managed: bool) -> Secret {
        let entries = [
            ("tls.crt", &made.certificate_pem),
            ("tls.key", &made.key_pem),
            ("ca.crt", &made.authority_pem),
        ];
        Secret {
            metadata: ObjectMeta {
                annotations: managed
                    .then(|| [(CREATED_BY.into(), "mesh-controller 1".into())].into()),
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

    pub(in super::super) fn registration(bundles: &[&str]) -> Option<Option<ObservedRegistration>> {
        Some(Some(ObservedRegistration {
            uid: "u".into(),
            version: "1".into(),
            bundles: bundles
                .iter()
                .map(|bundle| ("w".to_owned(), (*bundle).to_owned()))
                .collect(),
        }))
    }

    #[test]
    fn step_depends_on_observed_objects() {
        let now = SystemTime::now();
        let made = generate(&names(), now).unwrap();
        let held = |managed| Some(Some(CertificateSecret::read(secret(&made, managed))));
        let step = |secret, registration| {
            let seen = ObservedState {
                secret,
                registration,
            };
            next(&seen, &names(), now)
        };
        assert_eq!(step(None, registration(&[])), Step::Observe);
        assert_eq!(step(Some(None), Some(None)), Step::Unregistered);
        for (registration, unregistered) in [(None, false), (Some(None), true)] {
            let seen = ObservedState {
                secret: None,
                registration,
            };
            assert_eq!(seen.is_unregistered(), unregistered);
        }
        assert_eq!(step(Some(None), registration(&[""])), Step::Generate);
        let publish = Step::PublishAuthorities(made.authority_pem.clone());
        assert_eq!(step(held(true), registration(&[""])), publish);
        assert_eq!(
            step(held(true), registration(&[&made.authority_pem, "other"])),
            publish
        );
        assert_eq!(
            step(held(true), registration(&[&made.authority_pem])),
            Step::Serve
        );
        assert_eq!(
            step(held(false), registration(&[&made.authority_pem])),
            Step::Serve
        );
    }

    #[test]
    fn only_managed_certificate_is_renewed() {
        let now = SystemTime::now();
        let made = generate(&names(), now).unwrap();
        let at = |managed, names: &[String], after: Duration| {
            let seen = ObservedState {
                secret: Some(Some(CertificateSecret::read(secret(&made, managed)))),
                registration: registration(&[&made.authority_pem]),
            };
            next(&seen, names, now + after)
        };
        assert_eq!(at(true, &names(), 59 * DAY), Step::Serve);
        assert_eq!(at(true, &names(), 61 * DAY), Step::Generate);
        assert_eq!(at(false, &names(), 61 * DAY), Step::Serve);
        assert_eq!(at(true, &["b.linkerd.svc".to_owned()], DAY), Step::Generate);
    }

    #[test]
    fn only_managed_invalid_secret_is_replaced() {
        let now = SystemTime::now();
        let made = generate(&names(), now).unwrap();
        let step = |managed| {
            let mut broken = secret(&made, managed);
            broken.data = None;
            let seen = ObservedState {
                secret: Some(Some(CertificateSecret::read(broken))),
                registration: registration(&[""]),
            };
            next(&seen, &names(), now)
        };
        assert_eq!(step(true), Step::Generate);
        let Step::Wait(reason) = step(false) else {
            panic!();
        };
        assert!(reason.contains("certificate"), "{reason}");
    }

    #[test]
    fn old_cas_stay_until_they_expire() {
        let now = SystemTime::now();
        let made: Vec<GeneratedCertificate> = (0..6)
            .map(|n| generate(&names(), now + n * DAY).unwrap())
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
    fn bundle_is_parsed_from_api_service() {
        let read = |spec: Value| {
            let object = serde_json::json!({
                "apiVersion": "apiregistration.k8s.io/v1",
                "kind": "APIService",
                "metadata": {"name": "x"},
                "spec": spec,
            });
            let object = serde_json::from_value(object).unwrap();
            ObservedRegistration::read(object).bundles
        };
        let bundle = |text: &str| vec![(String::new(), text.to_owned())];
        assert_eq!(read(serde_json::json!({"caBundle": "UEVN"})), bundle("PEM"));
        assert_eq!(read(serde_json::json!({"caBundle": "!"})), bundle(""));
        assert_eq!(read(serde_json::json!({"group": "a"})), bundle(""));
    }

    #[test]
    fn bundles_are_parsed_from_configuration() {
        let object: DynamicObject = serde_json::from_value(serde_json::json!({
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": "MutatingWebhookConfiguration",
            "metadata": {"name": "x", "uid": "u", "resourceVersion": "3"},
            "webhooks": [{"name": "a", "clientConfig": {"caBundle": "UEVN"}}, {"name": "b"}],
        }))
        .unwrap();
        let expect = ObservedRegistration {
            uid: "u".into(),
            version: "3".into(),
            bundles: vec![("a".into(), "PEM".into()), ("b".into(), String::new())],
        };
        assert_eq!(ObservedRegistration::read(object), expect);
    }
}

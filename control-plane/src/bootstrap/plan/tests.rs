//! The steps from no objects to all of them, and inconsistent objects.

use std::time::Duration;

use mesh_cluster::certificate::read_key;

use super::*;
use crate::bootstrap::Settings;

const DAY: Duration = Duration::from_secs(24 * 3600);

fn anchor(now: SystemTime) -> CertificateAndKey {
    Settings::for_tests().authority.anchor(now).unwrap()
}

fn issuer(anchor: &CertificateAndKey, now: SystemTime) -> CertificateAndKey {
    Settings::for_tests().authority.issuer(anchor, now).unwrap()
}

fn found(certificate_and_key: CertificateAndKey, managed: bool) -> Option<ExistingIssuer> {
    Some(ExistingIssuer {
        certificate_and_key,
        managed,
        version: Some("7".to_owned()),
    })
}

fn step(state: &ExistingObjects, now: SystemTime) -> Result<Step, String> {
    next(state, &Settings::for_tests().names, now).map_err(|error| error.to_string())
}

fn assert_error(state: &ExistingObjects, now: SystemTime, expect: &str) {
    let error = step(state, now).err().expect("no error");
    assert!(error.contains(expect), "{error}");
}

#[test]
fn objects_are_created_in_order_and_issuer_is_renewed() {
    let now = SystemTime::now();
    let mut state = ExistingObjects::default();
    assert!(step(&state, now) == Ok(Step::CreateAnchor));
    let anchor = anchor(now);
    state.anchor = Some(anchor.clone());
    assert!(step(&state, now) == Ok(Step::CreateIssuer(anchor.clone())));
    let issuer = issuer(&anchor, now);
    state.issuer = found(issuer, true);
    assert!(step(&state, now) == Ok(Step::CreateTrustRoots(anchor.certificate.clone())));
    state.roots = Some(anchor.certificate.clone());
    assert!(step(&state, now) == Ok(Step::Done));
    // Shortly before two thirds of the issuer's lifetime.
    assert!(step(&state, now + DAY * 59) == Ok(Step::Done));
    let renew = Step::RenewIssuer {
        anchor: anchor.clone(),
        cross_certificates: String::new(),
        version: Some("7".to_owned()),
    };
    assert!(step(&state, now + DAY * 61) == Ok(renew.clone()));
    // Long after its expiry.
    assert!(step(&state, now + DAY * 200) == Ok(renew));
}

/// Returns the steps of an issuer that is due for renewal: its chain, the anchors of the ConfigMap
/// and the anchor of the Secret.
fn due(chain: String, key: String, roots: &str, anchor: &CertificateAndKey) -> ExistingObjects {
    let issuer = CertificateAndKey {
        certificate: chain,
        key,
    };
    ExistingObjects {
        anchor: Some(anchor.clone()),
        issuer: found(issuer, true),
        roots: Some(roots.to_owned()),
    }
}

#[test]
fn renewal_keeps_cross_certificates_of_the_anchor_until_they_expire() {
    let now = SystemTime::now();
    let (old, new) = (anchor(now), anchor(now));
    let issuer = issuer(&new, now);
    let cross = |end: SystemTime| {
        let signer = read_key(old.key.as_bytes()).unwrap();
        let signer = rcgen::Issuer::from_ca_cert_pem(&old.certificate, signer).unwrap();
        let mut params = rcgen::CertificateParams::default();
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        params.not_after = end.into();
        let key = read_key(new.key.as_bytes()).unwrap();
        params.signed_by(&key, &signer).unwrap().pem()
    };
    let (valid, expired) = (cross(now + DAY * 300), cross(now + DAY * 60));
    // An intermediate CA is not above the issuer of this anchor.
    let chain = format!("{}{expired}{}{valid}", issuer.certificate, old.certificate);
    let both = format!("{}{}", old.certificate, new.certificate);
    let state = due(chain, issuer.key, &both, &new);
    let Ok(Step::RenewIssuer {
        cross_certificates, ..
    }) = step(&state, now + DAY * 61)
    else {
        panic!("not renewed");
    };
    assert!(contains_certificate(&cross_certificates, &valid));
    assert_eq!(pem_blocks(&cross_certificates).len(), 1);
}

#[test]
fn issuer_is_not_renewed_by_an_anchor_that_proxies_do_not_trust() {
    let now = SystemTime::now();
    let (old, new) = (anchor(now), anchor(now));
    let issuer = issuer(&new, now);
    // The anchors were replaced by hand, and the Secret of the old one was left.
    let state = due(issuer.certificate, issuer.key, &new.certificate, &old);
    assert!(step(&state, now + DAY * 61) == Ok(Step::Done));
    assert_error(&state, now + DAY * 91, "cannot be used with");
}

#[test]
fn existing_issuer_is_not_replaced() {
    let now = SystemTime::now();
    let anchor = anchor(now);
    let issuer = issuer(&anchor, now);
    let state = ExistingObjects {
        anchor: None,
        issuer: found(issuer.clone(), false),
        roots: Some(format!("# comment\n{}", anchor.certificate)),
    };
    assert!(step(&state, now) == Ok(Step::Done));
    assert!(step(&state, now + DAY * 80) == Ok(Step::Done));
    assert_error(&state, now + DAY * 91, "cannot be used with");
    let with_key = ExistingObjects {
        anchor: Some(anchor.clone()),
        ..state.clone()
    };
    assert!(step(&with_key, now + DAY * 80) == Ok(Step::Done));
    let alone = ExistingObjects {
        roots: None,
        ..state
    };
    assert_error(&alone, now, "exists, but ConfigMap");
    let roots = ExistingObjects {
        roots: Some(anchor.certificate),
        ..ExistingObjects::default()
    };
    assert_error(&roots, now, "neither Secret");
}

#[test]
fn inconsistent_objects_are_errors() {
    let now = SystemTime::now();
    let (one, other) = (anchor(now), anchor(now));
    let issuer = issuer(&one, now);
    let state = ExistingObjects {
        anchor: Some(one.clone()),
        issuer: None,
        roots: Some(other.certificate.clone()),
    };
    assert_error(&state, now, "does not contain the certificate");
    let both = format!("{}{}", other.certificate, one.certificate);
    let state = ExistingObjects {
        roots: Some(both),
        ..state
    };
    assert!(step(&state, now) == Ok(Step::CreateIssuer(one)));
    let state = ExistingObjects {
        anchor: Some(other.clone()),
        issuer: found(issuer, true),
        roots: Some(other.certificate.clone()),
    };
    assert_error(&state, now, "cannot be used with");
    let state = ExistingObjects {
        roots: None,
        ..state
    };
    assert_error(&state, now, "exists, but ConfigMap");
}

#[test]
fn issuer_expiry_is_capped_by_trust_anchor() {
    let now = SystemTime::now();
    let mut short = Settings::for_tests();
    short.authority.anchor_lifetime = DAY * 10;
    let anchor = short.authority.anchor(now).unwrap();
    let issuer = short.authority.issuer(&anchor, now).unwrap();
    assert_eq!(
        validity_period(&issuer.certificate).unwrap().1,
        validity_period(&anchor.certificate).unwrap().1
    );
    assert!(contains_certificate(
        &anchor.certificate.replace('\n', "\r\n"),
        &anchor.certificate
    ));
}

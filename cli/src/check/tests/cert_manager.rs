//! An issuer of cert-manager, and anchors of trust-manager.

use serde_json::{Value, json};

use super::faults::{Fault, check};
use super::fixture::{NUMBERED, TestCa, trust_bundle, trust_roots};
use super::{healthy, row, wrong_rows};
use crate::facts::Facts;
use crate::output::style::Mark;

const ROW: &str = "issuer-certificate";
const EXPIRY: &str = "l5d-identity-issuer-cert-not-expiring-soon";
const READABLE: &str = "l5d-identity-cert-config-valid";
const SIGNED: &str = "l5d-identity-issuer-cert-issued-by-trust-anchor";

pub(super) const FAULTS: &[Fault] = &[
    check(ROW).fails("does cert-manager run?", |facts| {
        managed(facts, json!({}));
        facts.trust.issuer = Err("namespace linkerd has no Secret".to_owned());
    }),
    check(ROW).warns("is not ready: no such issuer (IncorrectIssuer)", |facts| {
        managed(
            facts,
            json!({"conditions": [
                {"type": "Ready", "status": "False", "reason": "IncorrectIssuer", "message": "no such issuer"},
            ]}),
        );
    }),
    check(ROW).warns("could not issue Certificate issuer: no key", |facts| {
        let mut status = ready("2026-01-05T00:00:00Z");
        let failed =
            json!({"type": "Issuing", "status": "False", "reason": "Failed", "message": "no key"});
        status["conditions"].as_array_mut().unwrap().push(failed);
        managed(facts, status);
    }),
    check(ROW).warns("should have renewed Certificate issuer 2 h ago", |facts| {
        managed(facts, ready("2025-12-31T22:00:00Z"));
    }),
];

/// Has a Certificate with this status write the issuer.
fn managed(facts: &mut Facts, status: Value) {
    let certificate = json!({
        "metadata": {"name": "issuer", "namespace": "linkerd"},
        "spec": {"secretName": "linkerd-identity-issuer"},
        "status": status,
    });
    facts.objects.issuer_certificate = Ok(Some(serde_json::from_value(certificate).unwrap()));
    let meta = json!({"annotations": {"cert-manager.io/certificate-name": "issuer"}});
    facts.objects.issuer = Ok(Some(serde_json::from_value(meta).unwrap()));
}

fn ready(renewal: &str) -> Value {
    json!({"conditions": [{"type": "Ready", "status": "True"}], "renewalTime": renewal})
}

/// Returns facts with an issuer that expires after a number of days.
fn issued(days: i64) -> Facts {
    let mut facts = healthy();
    let anchor = TestCa::new("root", 3650);
    facts.trust.issuer = Ok(vec![anchor.intermediate("issuer", days)]);
    let bundle = anchor.pem();
    facts.trust.anchors = Ok(vec![anchor.der()]);
    facts.objects.trust_roots = Ok(vec![trust_roots("linkerd", &bundle)]);
    facts.objects.trust_bundle = Ok(Some(trust_bundle(NUMBERED, &bundle)));
    facts
}

#[test]
fn short_lived_issuer_is_in_order_until_its_renewal_is_late() {
    let mut facts = issued(2);
    assert_eq!(row(&facts, EXPIRY).mark, Mark::Warn);
    managed(&mut facts, ready("2026-01-01T23:00:00Z"));
    assert_eq!(wrong_rows(&facts), [""; 0]);
    let detail = row(&facts, EXPIRY).detail.join("");
    assert!(
        detail.contains("cert-manager renews it in 23 hours"),
        "{detail}"
    );
    // It has an hour to renew.
    managed(&mut facts, ready("2025-12-31T23:00:01Z"));
    assert_eq!(wrong_rows(&facts), [""; 0]);
    managed(&mut facts, ready("2025-12-31T23:00:00Z"));
    assert_eq!(wrong_rows(&facts), [ROW, EXPIRY]);
}

#[test]
fn certificate_above_the_issuer_has_to_be_renewed_by_others() {
    let mut facts = issued(2);
    managed(&mut facts, ready("2026-01-01T23:00:00Z"));
    let root = TestCa::new("root", 3650);
    facts
        .trust
        .issuer
        .as_mut()
        .unwrap()
        .push(root.intermediate("above", 10));
    let found = row(&facts, EXPIRY);
    assert_eq!(found.mark, Mark::Warn);
    assert!(
        found.detail[0].contains("above expires in 10 days"),
        "{:?}",
        found.detail
    );
}

#[test]
fn expired_issuer_makes_its_certificate_a_failure() {
    let mut facts = issued(-1);
    managed(&mut facts, ready("2025-12-20T00:00:00Z"));
    assert_eq!(row(&facts, ROW).mark, Mark::Fail);
}

#[test]
fn secret_without_keys_is_left_to_its_certificate() {
    let mut facts = healthy();
    managed(&mut facts, ready("2026-01-05T00:00:00Z"));
    facts.trust.issuer =
        Err("Secret linkerd-identity-issuer has neither crt.pem nor tls.crt".to_owned());
    let found = row(&facts, READABLE);
    assert!(
        found.detail[0].contains("neither crt.pem nor tls.crt"),
        "{:?}",
        found.detail
    );
    let expected = "kubectl -n linkerd describe certificate issuer";
    assert!(found.advice.contains(expected), "{}", found.advice);
    assert!(!found.advice.contains("upgrade"), "{}", found.advice);
}

#[test]
fn missing_secret_of_a_certificate_is_its_consequence() {
    let mut facts = healthy();
    managed(&mut facts, json!({}));
    facts.trust.issuer = Err("namespace linkerd has no Secret linkerd-identity-issuer".to_owned());
    assert_eq!(row(&facts, READABLE).cause, Some(ROW));
}

#[test]
fn missing_anchor_is_added_to_the_sources_of_the_bundle() {
    let mut facts = healthy();
    let stranger = TestCa::new("stranger", 3650);
    facts.trust.anchors = Ok(vec![stranger.der()]);
    let mut roots = trust_roots("linkerd", &stranger.pem());
    let label = (
        "trust.cert-manager.io/bundle".to_owned(),
        "roots".to_owned(),
    );
    roots.metadata.labels = Some([label].into());
    facts.objects.trust_roots = Ok(vec![roots]);
    let advice = row(&facts, SIGNED).advice;
    assert!(
        advice.contains("to the sources of Bundle roots"),
        "{advice}"
    );
}

//! From nothing to everything, and what does not fit together.

use std::time::Duration;

use super::{super::certificates, *};
use crate::bootstrap::Settings;

const DAY: Duration = Duration::from_secs(24 * 3600);

fn anchor(now: SystemTime) -> Pair {
    certificates::anchor(&Settings::usual(), now).unwrap()
}

fn found(pair: Pair, ours: bool) -> Option<Found> {
    Some(Found {
        pair,
        ours,
        version: Some("7".to_owned()),
    })
}

fn step(state: &State, now: SystemTime) -> Result<Step, String> {
    next(state, &Settings::usual().names, now).map_err(|error| error.to_string())
}

fn refused(state: &State, now: SystemTime, expect: &str) {
    let error = step(state, now).err().expect("nothing was refused");
    assert!(error.contains(expect), "{error}");
}

#[test]
fn from_nothing_to_everything() {
    let now = SystemTime::now();
    let mut state = State::default();
    assert!(step(&state, now) == Ok(Step::MakeAnchor));
    let anchor = anchor(now);
    state.anchor = Some(anchor.clone());
    assert!(step(&state, now) == Ok(Step::MakeIssuer(anchor.clone())));
    let issuer = certificates::issuer(&Settings::usual(), &anchor, now).unwrap();
    state.issuer = found(issuer, true);
    assert!(step(&state, now) == Ok(Step::PublishAnchors(anchor.certificate.clone())));
    state.roots = Some(anchor.certificate.clone());
    assert!(step(&state, now) == Ok(Step::Nothing));
    // Two thirds of its life later.
    assert!(step(&state, now + DAY * 59) == Ok(Step::Nothing));
    let renew = Step::RenewIssuer {
        anchor: anchor.clone(),
        version: Some("7".to_owned()),
    };
    assert!(step(&state, now + DAY * 61) == Ok(renew.clone()));
    // And long after its end.
    assert!(step(&state, now + DAY * 200) == Ok(renew));
}

#[test]
fn what_was_brought_is_not_replaced() {
    let now = SystemTime::now();
    let anchor = anchor(now);
    let issuer = certificates::issuer(&Settings::usual(), &anchor, now).unwrap();
    let state = State {
        anchor: None,
        issuer: found(issuer.clone(), false),
        roots: Some(format!("# ours\n{}", anchor.certificate)),
    };
    assert!(step(&state, now) == Ok(Step::Nothing));
    assert!(step(&state, now + DAY * 80) == Ok(Step::Nothing));
    refused(&state, now + DAY * 91, "cannot be used with");
    let with_key = State {
        anchor: Some(anchor.clone()),
        ..state.clone()
    };
    assert!(step(&with_key, now + DAY * 80) == Ok(Step::Nothing));
    let alone = State {
        roots: None,
        ..state
    };
    refused(&alone, now, "exists, but ConfigMap");
    let roots = State {
        roots: Some(anchor.certificate),
        ..State::default()
    };
    refused(&roots, now, "neither Secret");
}

#[test]
fn what_does_not_belong_together_is_said() {
    let now = SystemTime::now();
    let (one, other) = (anchor(now), anchor(now));
    let issuer = certificates::issuer(&Settings::usual(), &one, now).unwrap();
    let state = State {
        anchor: Some(one.clone()),
        issuer: None,
        roots: Some(other.certificate.clone()),
    };
    refused(&state, now, "does not hold the certificate");
    let both = format!("{}{}", other.certificate, one.certificate);
    let state = State {
        roots: Some(both),
        ..state
    };
    assert!(step(&state, now) == Ok(Step::MakeIssuer(one)));
    let state = State {
        anchor: Some(other.clone()),
        issuer: found(issuer, true),
        roots: Some(other.certificate.clone()),
    };
    refused(&state, now, "cannot be used with");
    let state = State {
        roots: None,
        ..state
    };
    refused(&state, now, "exists, but ConfigMap");
}

#[test]
fn an_issuer_does_not_outlive_its_anchor() {
    let now = SystemTime::now();
    let mut short = Settings::usual();
    short.issuance.anchor_lifetime = DAY * 10;
    let anchor = certificates::anchor(&short, now).unwrap();
    let issuer = certificates::issuer(&short, &anchor, now).unwrap();
    assert_eq!(
        life(&issuer.certificate).unwrap().1,
        life(&anchor.certificate).unwrap().1
    );
    assert!(holds(
        &anchor.certificate.replace('\n', "\r\n"),
        &anchor.certificate
    ));
}

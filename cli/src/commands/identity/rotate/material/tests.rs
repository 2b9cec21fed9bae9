//! New anchors and issuers, created and given.

use std::time::Duration;

use super::*;
use crate::facts::names::{BUNDLE_KEY, TRUST_ROOTS};
use crate::facts::{Environment, Mode};
use crate::resource::Scope;

const DAY: Duration = Duration::from_hours(24);

fn authority(anchor_lifetime: Duration) -> Authority {
    Authority {
        control_namespace: "linkerd".to_owned(),
        trust_domain: "cluster.local".to_owned(),
        anchor_lifetime,
        issuer_lifetime: DAY * 300,
    }
}

fn new_anchor() -> CertificateAndKey {
    let authority = authority(DAY * 3650);
    authority.anchor(SystemTime::now()).unwrap()
}

fn issuer_of(anchor: &CertificateAndKey) -> CertificateAndKey {
    let authority = authority(DAY * 3650);
    authority.issuer(anchor, SystemTime::now()).unwrap()
}

/// Returns a cluster with these anchors and an issuer of the first one.
fn facts(anchors: &[&CertificateAndKey]) -> Facts {
    let mode = Mode::Rotation;
    let mut facts = Facts::new(Environment::Cluster, mode, "linkerd", Scope::All);
    let bundle: String = anchors.iter().map(|it| it.certificate.as_str()).collect();
    let ders = |text: &str| read_pem(text.as_bytes(), "it").unwrap();
    let issuer = issuer_of(anchors[0]);
    facts.trust.anchors = Ok(ders(&bundle));
    facts.trust.issuer = Ok(ders(&issuer.certificate));
    facts.trust.key = Ok(());
    let map = serde_json::json!({
        "metadata": {"name": TRUST_ROOTS, "namespace": "linkerd"}, "data": {BUNDLE_KEY: bundle},
    });
    facts.objects.trust_roots = Ok(vec![serde_json::from_value(map).unwrap()]);
    let config = serde_json::json!({
        "metadata": {"name": "linkerd-config"}, "data": {"values": "clusterDomain: cluster.local"},
    });
    facts.objects.config = Ok(Some(serde_json::from_value(config).unwrap()));
    facts
}

fn without_key(pair: &CertificateAndKey) -> CertificateAndKey {
    CertificateAndKey {
        certificate: pair.certificate.clone(),
        key: String::new(),
    }
}

fn cross(old: &CertificateAndKey, new: &CertificateAndKey) -> String {
    let now = OffsetDateTime::now_utc();
    cross_certificate(&old.certificate, &old.key, &new.certificate, now).unwrap()
}

#[test]
fn created_anchor_is_signed_by_the_old_one_whose_key_the_mesh_has() {
    // Another anchor of the bundle stays out of the rotation.
    let (old, other) = (new_anchor(), new_anchor());
    let facts = facts(&[&old, &other]);
    let stored = create(&facts, Given::default(), Some(old.clone()), false).unwrap();
    assert_eq!(stored.old_anchors, old.certificate);
    assert!(!stored.anchor.key.is_empty() && !stored.issuer.key.is_empty());
    let cross = stored.cross_certificate.clone().unwrap();
    check_cross(&stored.roots(), &cross, facts.clock()).unwrap();
    // The chain of a proxy with the old anchor, through the cross-certificate.
    let chain: Vec<Vec<u8>> = [stored.issuer.certificate.as_str(), &cross]
        .iter()
        .flat_map(|pem| read_pem(pem.as_bytes(), "it").unwrap())
        .collect();
    let chain = parsed(&chain).unwrap();
    let old = read_pem(old.certificate.as_bytes(), "it").unwrap();
    assert!(is_signed_by(&chain, &parsed(&old).unwrap()));

    let compromised = create(&facts, Given::default(), Some(new_anchor()), true).unwrap();
    assert_eq!(compromised.cross_certificate, None);
}

#[test]
fn given_anchor_is_used_without_its_key() {
    let (old, new) = (new_anchor(), new_anchor());
    let issuer = issuer_of(&new);
    let given = Given {
        anchor: Some(without_key(&new)),
        issuer: Some(issuer.clone()),
        cross_certificate: Some(cross(&old, &new)),
    };
    let stored = create(&facts(&[&old]), given, None, false).unwrap();
    assert!(stored.anchor == without_key(&new) && stored.issuer == issuer);
}

#[test]
fn unusable_anchors_and_issuers_are_refused_with_the_reason() {
    let (old, new, other) = (new_anchor(), new_anchor(), new_anchor());
    let given = |anchor: &CertificateAndKey, issuer, cross_certificate| Given {
        anchor: Some(anchor.clone()),
        issuer,
        cross_certificate,
    };
    let mixed = CertificateAndKey {
        key: other.key.clone(),
        ..issuer_of(&new)
    };
    let wrong_key = CertificateAndKey {
        key: other.key.clone(),
        ..new.clone()
    };
    let expired = authority(Duration::from_secs(1));
    let expired = expired.anchor(SystemTime::now() - DAY).unwrap();
    let own = || Some(old.clone());
    for (given, own, expected) in [
        (
            Given::default(),
            None,
            "the key of the old anchor is not in Secret linkerd-trust-anchor",
        ),
        (
            Given::default(),
            Some(other.clone()),
            "give the result with --cross-cert",
        ),
        (
            given(&without_key(&new), None, None),
            own(),
            "an issuer is needed",
        ),
        (
            given(&without_key(&new), Some(issuer_of(&other)), None),
            own(),
            "the new anchor did not sign the new issuer",
        ),
        (
            given(&without_key(&new), Some(mixed), None),
            own(),
            "the key of the new issuer does not match",
        ),
        (
            given(&wrong_key, Some(issuer_of(&new)), None),
            own(),
            "the key of the new anchor does not match",
        ),
        (
            given(&new, None, Some(cross(&other, &new))),
            own(),
            "the old anchor did not sign it",
        ),
        (
            given(&new, None, Some(cross(&old, &other))),
            own(),
            "it does not have the key of the new anchor",
        ),
        (given(&old, None, None), own(), "has the key of the old one"),
        (given(&expired, None, None), own(), "expired on"),
        (
            given(&issuer_of(&new), Some(issuer_of(&new)), None),
            own(),
            "allows at most 0 CAs below it",
        ),
    ] {
        let error = create(&facts(&[&old]), given, own, false).err();
        let error = error.expect(expected).to_string();
        assert!(error.contains(expected), "{expected}: {error}");
    }
}

#[test]
fn rotation_that_has_just_ended_is_not_begun_again() {
    let (old, new) = (new_anchor(), new_anchor());
    let given = |anchor: &CertificateAndKey| Given {
        anchor: Some(without_key(anchor)),
        ..Given::default()
    };
    let mut facts = facts(&[&old]);
    let reason = |facts: &Facts, given: &Given| in_use(facts, given).unwrap();
    assert!(
        reason(&facts, &Given::default())
            .unwrap()
            .contains("--again")
    );
    assert!(reason(&facts, &given(&old)).unwrap().contains("is in use"));
    assert_eq!(reason(&facts, &given(&new)), None);
    facts.now += 2 * 24 * 3600;
    assert_eq!(reason(&facts, &Given::default()), None);
}

#[test]
fn bundle_that_proxies_would_refuse_is_not_written() {
    let (old, new) = (new_anchor(), new_anchor());
    let roots = Roots {
        old: read_pem(old.certificate.as_bytes(), "it").unwrap(),
        new: read_pem(new.certificate.as_bytes(), "it")
            .unwrap()
            .remove(0),
        direction: Direction::Forward,
    };
    let now = facts(&[&old]).now;
    let fits = MAX_TRUST_BUNDLE - old.certificate.len() - new.certificate.len() - 2;
    let check = |comment: usize| {
        let bundle = format!("#{}\n{}", " ".repeat(comment), old.certificate);
        check(&roots, &new, &issuer_of(&new), &bundle, now)
    };
    check(fits).unwrap();
    let error = check(fits + 1).unwrap_err().to_string();
    assert!(error.contains("more than 1048576"), "{error}");
}

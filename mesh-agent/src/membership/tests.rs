//! The membership of a machine: certificates that are checked, renewals, anchors, tokens.

use std::time::{Duration, SystemTime};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use mesh_api::identity::IssuedCertificate;
use mesh_core::machine::{MAX_ANCHORS, MeshSettings, ServiceAddress};
use mesh_core::trust_bundle::TrustBundle;
use mesh_k8s::machine::AccountName;
use mesh_test_support::certificates::TestCa;
use rcgen::{CertificateParams, date_time_ymd};
use serde_json::Value;

use super::identity_service::{Certified, check};
use super::member::pause_after;
use super::*;

const NAME: &str = "db-1.machine.identity.linkerd.cluster.local";
const DAY: Duration = Duration::from_secs(24 * 3600);

/// A machine that has joined.
struct Joined {
    membership: Membership,
    member: Arc<Member>,
    ca: TestCa,
    _dir: tempfile::TempDir,
}

fn mesh(anchors: &str) -> MeshSettings {
    let service = ServiceAddress {
        address: "192.0.2.1:8080".to_owned(),
        name: "linkerd-identity.linkerd.serviceaccount.identity.linkerd.cluster.local".to_owned(),
    };
    MeshSettings {
        control_plane_namespace: "linkerd".to_owned(),
        trust_domain: "cluster.local".to_owned(),
        identity: service.clone(),
        destination: service.clone(),
        policy: service,
        trust_anchors: anchors.to_owned(),
        proxy_environment: Default::default(),
    }
}

impl Joined {
    /// Joins now, with a certificate for 30 days.
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let membership = Membership::open(dir.path());
        membership.key().unwrap();
        let key = membership.read_key().unwrap().unwrap();
        let ca = TestCa::new();
        let issued = ca.sign(&key.certificate_request(NAME).unwrap());
        let now = SystemTime::now();
        let certified = Certified {
            chain: vec![issued.leaf],
            expires: now + 30 * DAY,
        };
        let record = MemberRecord::new("db-1", mesh(ca.anchor_pem()), &certified, now);
        let member = membership.replace(None, Arc::new(key), record).unwrap();
        Self {
            membership,
            member,
            ca,
            _dir: dir,
        }
    }

    fn anchors(&self) -> String {
        let member = self.membership.member().unwrap();
        member.mesh().trust_anchors.clone()
    }

    /// Returns the anchors after the identity service has sent these.
    fn after(&self, number: u64, anchors: &str) -> String {
        let bundle = TrustBundle {
            number,
            anchors: anchors.to_owned(),
            foreign: Default::default(),
            denied: None,
        };
        anchors::adopt(&self.membership, &self.member, &bundle);
        self.anchors()
    }
}

#[test]
fn certificate_of_the_machine_is_checked() {
    let dir = tempfile::tempdir().unwrap();
    let membership = Membership::open(dir.path());
    membership.key().unwrap();
    let key = membership.read_key().unwrap().unwrap();
    let ca = TestCa::new();
    let issue = |name: &str, change: fn(&mut CertificateParams)| {
        let request = key.certificate_request(name).unwrap();
        let issued = ca.sign_with(&request, change);
        IssuedCertificate {
            leaf: issued.leaf,
            intermediates: issued.intermediates,
            valid_until: issued.valid_until,
        }
    };
    let now = SystemTime::now();
    let good = issue(NAME, |_| {});
    check(good.clone(), &key, NAME, now).unwrap();
    let refused = |issued: IssuedCertificate, expected: &str| {
        let error = check(issued, &key, NAME, now).unwrap_err();
        assert!(error.contains(expected), "{expected}: {error}");
    };
    let other = "db-2.machine.identity.linkerd.cluster.local";
    refused(issue(other, |_| {}), "its name is not db-1");
    let future = |params: &mut CertificateParams| {
        params.not_before = date_time_ymd(2100, 1, 1);
        params.not_after = date_time_ymd(2101, 1, 1);
    };
    refused(
        issue(NAME, future),
        "is valid from 2100-01-01T00:00:00Z on, and the clock",
    );
    let past = |params: &mut CertificateParams| params.not_after = date_time_ymd(2020, 1, 1);
    refused(issue(NAME, past), "has expired at 2020-01-01T00:00:00Z");
    let with = |change: fn(&mut IssuedCertificate)| {
        let mut changed = good.clone();
        change(&mut changed);
        changed
    };
    refused(with(|it| it.leaf = vec![1]), "unreadable");
    let many = with(|it| it.intermediates = vec![vec![0]; 8]);
    refused(many, "more than 8 certificates");
    let long = with(|it| it.intermediates = vec![vec![0; 16 * 1024 + 1]]);
    refused(long, "more than 16 KiB");
    let stranger = tempfile::tempdir().unwrap();
    let key = MachineKey::read_or_make(&stranger.path().join("key.pem")).unwrap();
    let error = check(good, &key, NAME, now).unwrap_err();
    assert_eq!(error, "it is for another key");
}

#[test]
fn certificate_is_renewed_after_a_third_of_its_life_and_then_with_back_off() {
    let joined = Joined::new();
    let member = &joined.member;
    let left = member.expires().duration_since(member.renews_at()).unwrap();
    assert_eq!(left, 20 * DAY);
    assert!((0.0..=1.0).contains(&member.share()));
    let pauses: Vec<u64> = (1..12)
        .map(|failures| pause_after(failures, 0.0).as_secs())
        .collect();
    assert_eq!(pauses[..3], [10, 20, 40]);
    assert_eq!(pauses[10], 3600);
    assert_eq!(pause_after(1, 1.0), Duration::from_secs(15));
}

#[test]
fn certificate_is_renewed_every_minute_while_the_mesh_has_two_anchors() {
    let joined = Joined::new();
    let (first, second) = (joined.anchors(), TestCa::new().anchor_pem().to_owned());
    let pause = || {
        let member = joined.membership.member().unwrap();
        let issued = SystemTime::UNIX_EPOCH + Duration::from_secs(member.record.issued);
        member.renews_at().duration_since(issued).unwrap()
    };
    assert_eq!(pause(), 10 * DAY);
    joined.after(7, &format!("{first}{second}"));
    assert_eq!(pause(), Duration::from_secs(60));
    joined.after(8, &second);
    assert_eq!(pause(), 10 * DAY);
}

#[test]
fn anchors_are_replaced_by_those_with_a_higher_number() {
    let joined = Joined::new();
    let (first, second) = (joined.anchors(), TestCa::new().anchor_pem().to_owned());
    assert_eq!(joined.after(7, &second), second);
    // Lower, and two with one number.
    assert_eq!(joined.after(6, &first), second);
    assert_eq!(joined.after(7, &first), second);
    let read = Membership::open(joined.membership.dir.parent().unwrap());
    let member = read.member().unwrap();
    assert_eq!(member.mesh().trust_anchors, second);
    assert_eq!(member.record.anchors_number, Some(7));
}

#[test]
fn anchors_beyond_the_limit_are_refused() {
    let joined = Joined::new();
    let first = joined.anchors();
    let other = TestCa::new().anchor_pem().to_owned();
    let long = format!("{other}{}", "\n".repeat(MAX_ANCHORS));
    for invalid in [&*long, "", "PEM"] {
        assert_eq!(joined.after(8, invalid), first);
    }
    assert_eq!(joined.after(8, &other), other);
}

#[test]
fn machine_that_has_left_gets_neither_anchors_nor_certificate() {
    let joined = Joined::new();
    assert_eq!(joined.membership.leave().unwrap().as_deref(), Some("db-1"));
    assert!(!joined.membership.dir.exists());
    let (member, now) = (&joined.member, SystemTime::now());
    let certified = Certified {
        chain: vec![vec![1]],
        expires: now + DAY,
    };
    let record = member.renewed(&certified, now);
    let renewed = joined
        .membership
        .replace(Some(member), member.key.clone(), record);
    assert!(matches!(renewed, Err(MembershipError::Changed)));
    assert!(!joined.membership.dir.exists());

    // A stream of the mesh that it has left.
    let again = Joined::new();
    let other = TestCa::new().anchor_pem().to_owned();
    let bundle = TrustBundle {
        number: 9,
        anchors: other,
        foreign: Default::default(),
        denied: None,
    };
    let before = again.anchors();
    anchors::adopt(&again.membership, &joined.member, &bundle);
    assert_eq!(again.anchors(), before);
    assert_eq!(before, again.ca.anchor_pem());
}

#[test]
fn token_of_a_unit_has_the_account_and_the_certificate_of_the_machine() {
    let joined = Joined::new();
    let member = &joined.member;
    let account = AccountName::parse("shop/db").unwrap();
    let now = SystemTime::now();
    let token = member.unit_token(&account, now).unwrap();
    assert_eq!(token.expires, now + Duration::from_secs(1800));
    let parts: Vec<Value> = token
        .text
        .split('.')
        .take(2)
        .map(|part| serde_json::from_slice(&URL_SAFE_NO_PAD.decode(part).unwrap()).unwrap())
        .collect();
    assert_eq!(parts[0]["alg"], "ES256");
    assert_eq!(parts[0]["x5c"][0], member.record.chain[0]);
    assert_eq!(parts[1]["sub"], "system:serviceaccount:shop:db");
    assert_eq!(parts[1]["aud"][0], "identity.l5d.io");
    assert_eq!(parts[1]["exp"], time::seconds(now) + 1800);
    let own = member.own_token(now).unwrap().text;
    let claims = URL_SAFE_NO_PAD
        .decode(own.split('.').nth(1).unwrap())
        .unwrap();
    assert!(
        String::from_utf8(claims)
            .unwrap()
            .contains("system:machine:db-1")
    );

    let error = member.unit_token(&account, member.expires()).unwrap_err();
    assert!(matches!(error, TokenError::Expired { .. }), "{error}");
}

#[test]
fn damaged_record_is_a_problem_and_no_member() {
    let joined = Joined::new();
    let units_dir = joined.membership.dir.parent().unwrap();
    std::fs::write(record_path(&joined.membership.dir), "{").unwrap();
    let read = Membership::open(units_dir);
    assert!(read.member().is_none());
    let problem = read.problem().unwrap();
    assert!(problem.contains("membership.json is damaged"), "{problem}");
    read.leave().unwrap();
    assert_eq!(read.problem(), None);
}

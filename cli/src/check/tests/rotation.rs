//! The row about a rotation of the trust anchor, in each of its steps.

use mesh_cluster::certificate::authority::CertificateAndKey;
use mesh_core::exposition;
use mesh_k8s::kinds::ObjectMeta;
use mesh_k8s::trust::{ISSUER_LABEL, ISSUER_METRIC, fingerprint};
use serde_json::json;

use super::edits::{edit_pod, trust_old_anchors};
use super::faults::{Fault, check};
use super::fixture::{NOW, NUMBERED, TestCa, trust_bundle, trust_roots};
use super::{Facts, healthy, row};
use crate::facts::names::CERTIFICATE_EXPIRY;
use crate::facts::trust::NUMBER;
use crate::facts::{Controller, Mode};
use crate::output::style::Mark;
use crate::rotation::Direction;
use crate::rotation::stored::{Replaced, Stored};

const ROW: &str = "anchor-rotation";
/// The number of both anchors.
const BOTH: u64 = NUMBERED + 60;

pub(super) const FAULTS: &[Fault] = &[check(ROW).warns(
    "in step add (2 of 5) and waits: shop/web-0: its proxy has not received the current anchors",
    |facts| {
        let rotation = Rotation::new();
        *facts = rotation.facts(&rotation.old, &rotation.stored());
        let web = proxy(facts, "web-0");
        rotation.follow(facts, web, NUMBERED, &rotation.old);
    },
)];

struct Rotation {
    old: TestCa,
    new: TestCa,
}

impl Rotation {
    fn new() -> Self {
        Self {
            old: TestCa::new("root.linkerd.cluster.local", 30),
            new: TestCa::new("root.linkerd.cluster.local", 3650),
        }
    }

    fn stored(&self) -> Stored {
        let pair = |ca: &TestCa| CertificateAndKey {
            certificate: ca.pem(),
            key: "key".to_owned(),
        };
        Stored {
            meta: ObjectMeta {
                creation_timestamp: serde_json::from_value(json!("2025-12-31T21:00:00Z")).unwrap(),
                ..ObjectMeta::default()
            },
            direction: Direction::Forward,
            is_compromised: false,
            old_anchors: self.old.pem(),
            anchor: pair(&self.new),
            issuer: pair(&self.new),
            cross_certificate: Some(self.new.pem()),
            replaced: None,
        }
    }

    /// Returns a cluster with both anchors and this issuer, where all have followed.
    fn facts(&self, issuer: &TestCa, stored: &Stored) -> Facts {
        let mut facts = healthy();
        let bundle = format!("{}{}", self.old.pem(), self.new.pem());
        facts.trust.anchors = Ok(vec![self.old.der(), self.new.der()]);
        facts.objects.trust_roots = Ok(vec![trust_roots("linkerd", &bundle)]);
        facts.objects.trust_bundle = Ok(Some(trust_bundle(BOTH, &bundle)));
        let certificate = issuer.intermediate("identity", 365);
        let mut secret = stored.to_secret("linkerd");
        // As the API server adds it.
        secret.metadata.creation_timestamp = stored.meta.creation_timestamp.clone();
        facts.objects.rotation = Ok(Some(secret));
        let metrics = format!(
            "{ISSUER_METRIC}{{{ISSUER_LABEL}=\"{}\"}} {}\n",
            fingerprint(&certificate),
            NOW - 100
        );
        let replica = |number: usize| Controller {
            pod: format!("linkerd/linkerd-identity-{number}"),
            name: "identity",
            ready: Ok(()),
            metrics: Ok(exposition::parse(&metrics)),
        };
        facts.controllers.retain(|it| it.name != "identity");
        facts.controllers.extend([replica(0), replica(1)]);
        facts.trust.issuer = Ok(vec![certificate, cross(&self.old, &self.new, NOW + 1000)]);
        for pod in facts.objects.pods.as_mut().unwrap() {
            let labels = pod.metadata.labels.get_or_insert_default();
            labels.insert(
                "linkerd.io/control-plane-ns".to_owned(),
                "linkerd".to_owned(),
            );
        }
        for at in 0..facts.proxies.len() {
            self.follow(&mut facts, at, BOTH, issuer);
        }
        facts
    }

    /// Gives a proxy the anchors with this number and a certificate of an issuer.
    fn follow(&self, facts: &mut Facts, at: usize, number: u64, issuer: &TestCa) {
        let proxy = &mut facts.proxies[at];
        let identity = format!(
            "default.{}.serviceaccount.identity.linkerd.cluster.local",
            proxy.namespace
        );
        let text = format!("{NUMBER} {number}\n{CERTIFICATE_EXPIRY} {}\n", NOW + 3600);
        proxy.metrics = Ok(exposition::parse(&text));
        proxy.chain = Some(Ok(vec![issuer.server(&identity, 1).0]));
    }
}

fn proxy(facts: &Facts, pod: &str) -> usize {
    facts.proxies.iter().position(|it| it.pod == pod).unwrap()
}

#[track_caller]
fn warns(facts: &Facts, parts: &[&str]) {
    let row = row(facts, ROW);
    let text = row.detail.join(" ");
    assert_eq!(row.mark, Mark::Warn, "{text}");
    for part in parts {
        assert!(text.contains(part), "{part}: {text}");
    }
}

#[test]
fn rotation_is_named_with_its_age_step_and_blockers() {
    let rotation = Rotation::new();
    let stored = rotation.stored();
    let mut facts = rotation.facts(&rotation.old, &stored);
    warns(
        &facts,
        &[
            "began 3 hours ago",
            "in step switch (3 of 5): next, replace the issuer",
        ],
    );
    let web = proxy(&facts, "web-0");
    rotation.follow(&mut facts, web, NUMBERED, &rotation.old);
    warns(
        &facts,
        &[
            "in step add (2 of 5) and waits: shop/web-0: its proxy has not received the current anchors",
        ],
    );
    facts.mode = Mode::Installed { proxies: false };
    warns(
        &facts,
        &[
            "next, replace the issuer",
            "meshctl check --proxy inspects all workloads",
        ],
    );
}

#[test]
fn proxies_with_old_certificates_and_replicas_with_old_issuers_keep_the_old_anchor() {
    let rotation = Rotation::new();
    let stored = rotation.stored();
    let facts = || rotation.facts(&rotation.new, &stored);
    warns(
        &facts(),
        &["in step remove (4 of 5): next, remove the old anchor"],
    );

    let mut late = facts();
    let web = proxy(&late, "web-1");
    rotation.follow(&mut late, web, BOTH, &rotation.old);
    warns(
        &late,
        &["in step switch (3 of 5) and waits: shop/web-1: its certificate is not of the new"],
    );

    let mut unreachable = facts();
    let web = proxy(&unreachable, "web-1");
    unreachable.proxies[web].chain = Some(Err("connection refused".to_owned()));
    warns(&unreachable, &["waits: shop/web-1: connection refused"]);

    for metrics in [
        "mesh_issuer_loaded_timestamp_seconds{issuer_sha256=\"00\"} 1\n",
        "",
    ] {
        let mut replica = facts();
        let last = replica.controllers.last_mut().unwrap();
        last.metrics = Ok(exposition::parse(metrics));
        warns(
            &replica,
            &["in step switch (3 of 5) and waits: linkerd/linkerd-identity-1"],
        );
    }
}

#[test]
fn proxies_that_read_anchors_at_their_start_are_judged_by_their_environment() {
    let rotation = Rotation::new();
    let stored = Stored {
        cross_certificate: None,
        is_compromised: true,
        ..rotation.stored()
    };
    let mut facts = rotation.facts(&rotation.old, &stored);
    let web = proxy(&facts, "web-1");
    // Linkerd's proxy has no number.
    facts.proxies[web].metrics = Ok(Vec::new());
    trust_old_anchors(&mut edit_pod(&mut facts, "web-1"));
    warns(
        &facts,
        &["waits: shop/web-1: its proxy reads anchors when it starts, and lacks the new one"],
    );
    let both = format!("{}{}", rotation.old.pem(), rotation.new.pem());
    let mut pod = edit_pod(&mut facts, "web-1");
    let env = pod["spec"]["containers"][1]["env"].as_array_mut().unwrap();
    env.last_mut().unwrap()["value"] = json!(both);
    drop(pod);
    warns(&facts, &["next, replace the issuer"]);
}

#[test]
fn aborted_rotation_leads_back_to_the_old_anchor() {
    let rotation = Rotation::new();
    let stored = Stored {
        direction: Direction::Back,
        replaced: Some(Replaced {
            issuer: rotation.stored().issuer,
            created_by: None,
            anchor: None,
        }),
        ..rotation.stored()
    };
    let facts = rotation.facts(&rotation.new, &stored);
    warns(
        &facts,
        &[
            "was aborted, is in step switch",
            "by the one of the old anchor",
        ],
    );
    let facts = rotation.facts(&rotation.old, &stored);
    warns(&facts, &["next, remove the new anchor"]);
}

#[test]
fn machines_pods_on_lost_nodes_and_unqueried_ones_are_waited_for() {
    let rotation = Rotation::new();
    let stored = rotation.stored();
    let mut facts = rotation.facts(&rotation.old, &stored);
    facts.objects.policies.as_mut().unwrap().push(json!({
        "apiVersion": "workload.linkerd.io/v1beta1", "kind": "ExternalWorkload",
        "metadata": {"namespace": "shop", "name": "vm"},
    }));
    warns(
        &facts,
        &["waits: shop/vm: the proxy of a machine cannot be queried"],
    );
    facts.objects.policies.as_mut().unwrap().pop();
    let web = proxy(&facts, "web-1");
    facts.proxies.remove(web);
    warns(&facts, &["waits: shop/web-1: it was not queried"]);
    edit_pod(&mut facts, "web-1")["metadata"]["deletionTimestamp"] = json!("2025-12-31T23:59:00Z");
    warns(&facts, &["next, replace the issuer"]);
}

#[test]
fn damaged_secret_is_named() {
    let rotation = Rotation::new();
    let mut facts = rotation.facts(&rotation.old, &rotation.stored());
    let secret = facts.objects.rotation.as_mut().unwrap().as_mut().unwrap();
    secret.data.as_mut().unwrap().remove("anchor.crt");
    let row = row(&facts, ROW);
    assert!(
        row.detail
            .join(" ")
            .contains("entry anchor.crt of Secret linkerd-identity-rotation")
    );
}

#[test]
fn expired_cross_certificate_is_not_an_expired_issuer() {
    let rotation = Rotation::new();
    let mut facts = rotation.facts(&rotation.new, &rotation.stored());
    let expired = TestCa::new("old", -1);
    let chain = facts.trust.issuer.as_mut().unwrap();
    let issuer = chain[0].clone();
    // Of the key of the current anchor, as in a chain with a cross-certificate.
    *chain = vec![issuer.clone(), cross(&expired, &rotation.new, NOW - 1)];
    for id in [
        "l5d-identity-issuer-cert-is-time-valid",
        "l5d-identity-issuer-cert-not-expiring-soon",
    ] {
        assert_eq!(row(&facts, id).mark, Mark::Ok, "{id}");
    }
    facts.trust.issuer = Ok(vec![issuer, expired.der()]);
    assert_eq!(
        row(&facts, "l5d-identity-issuer-cert-is-time-valid").mark,
        Mark::Fail
    );
}

/// Returns a certificate of the anchor's key, with its end.
fn cross(signer: &TestCa, anchor: &TestCa, end: u64) -> Vec<u8> {
    let mut params = rcgen::CertificateParams::default();
    params.not_after = time::OffsetDateTime::from_unix_timestamp(end.cast_signed()).unwrap();
    let signed = params.signed_by(anchor.issuer.key(), &signer.issuer);
    signed.unwrap().der().to_vec()
}

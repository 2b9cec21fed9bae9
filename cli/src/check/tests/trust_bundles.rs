//! Faults of the trust bundles of linked clusters with trust anchors of their own.

use std::collections::BTreeMap;

use mesh_cluster::certificate::to_pem;
use mesh_k8s::foreign_domain::config_map_name;
use mesh_k8s::trust::FOREIGN_KEY;

use super::edits::set_value;
use super::faults::{Fault, check};
use super::fixture::multicluster::{add_trust_bundle, record, replica};
use super::fixture::{NOW, TestCa};
use super::{expect_advice, row, wrong_rows};
use crate::facts::{Facts, Target};
use crate::output::style::Mark;

const DOMAINS: &str = "multicluster-trust-domains";
const BUNDLES: &str = "multicluster-trust-bundles";
const ANCHORS: &str = "l5d-multicluster-clusters-share-anchors";

/// Returns the data of the ConfigMap of cluster east.
fn data(facts: &mut Facts) -> &mut BTreeMap<String, String> {
    let objects = facts.multicluster.trust_bundles.as_mut().unwrap();
    objects[0].data.as_mut().unwrap()
}

fn set(facts: &mut Facts, key: &str, value: &str) {
    data(facts).insert(key.to_owned(), value.to_owned());
}

/// Has the identity service send no anchors of other trust domains.
fn forget(facts: &mut Facts) {
    let record = facts.objects.trust_bundle.as_mut().unwrap().as_mut();
    record.unwrap().data.as_mut().unwrap().remove(FOREIGN_KEY);
}

fn target(facts: &mut Facts) -> &mut Target {
    let links = facts.multicluster.links.as_mut().unwrap();
    links[0].target.as_mut().unwrap()
}

fn set_replica(facts: &mut Facts, fetched: u64, failing: u8) {
    facts.multicluster.replicas = Ok(vec![replica(fetched, failing)]);
}

pub(super) const FAULTS: &[Fault] = &[
    check(DOMAINS).fails(
        "ConfigMap linkerd-trust-bundle-east: data[refresh]: is not known",
        |facts| {
            add_trust_bundle(facts);
            set(facts, "refresh", "5s");
        },
    ),
    check(DOMAINS).fails("cluster.local is the one of this cluster", |facts| {
        add_trust_bundle(facts);
        set(facts, "trust-domain", "cluster.local");
    }),
    check(DOMAINS).fails("a.cluster.local and cluster.local overlap", |facts| {
        add_trust_bundle(facts);
        set(facts, "trust-domain", "a.cluster.local");
    }),
    check(DOMAINS).warns(
        "linkerd-trust-bundle-east: Link mc/east does not exist, so that trust domain east.example",
        |facts| {
            add_trust_bundle(facts);
            set(facts, "link", "mc/east");
            forget(facts);
        },
    ),
    check(DOMAINS).fails(
        "data[trust-domain] is x.example, but cluster east has the trust domain east.example",
        |facts| {
            add_trust_bundle(facts);
            set(facts, "trust-domain", "x.example");
        },
    ),
    check(DOMAINS).fails("data[bundle.json] is refused: it is not a bundle", |facts| {
        add_trust_bundle(facts);
        set(facts, "bundle.json", "x");
    }),
    check(DOMAINS).fails(
        "does not send the anchors of trust domain east.example",
        |facts| {
            add_trust_bundle(facts);
            forget(facts);
        },
    ),
    check(DOMAINS).fails("because identity.publishTrustRoots is false", |facts| {
        add_trust_bundle(facts);
        forget(facts);
        let domain = "clusterDomain: cluster.local";
        let values = format!("{domain}\nidentity: {{publishTrustRoots: false}}");
        set_value(facts, domain, &values);
    }),
    check(BUNDLES).fails("there is no trust anchor of east.example", |facts| {
        add_trust_bundle(facts);
        record(facts, "");
    }),
    check(BUNDLES).fails(
        "no trust anchor of east.example is valid: CN=east expired",
        |facts| {
            add_trust_bundle(facts);
            let expired = TestCa::new("east", -1).der();
            record(facts, &to_pem(&expired));
            target(facts).anchors = Ok(vec![expired]);
        },
    ),
    check(BUNDLES).warns(
        "cannot fetch the trust bundle of east.example at https://192.0.2.1:8443/, or refuses it; it has fetched the last one 5 minutes ago",
        |facts| {
            add_trust_bundle(facts);
            set_replica(facts, NOW - 300, 1);
        },
    ),
    check(BUNDLES).warns("it has fetched none since it started", |facts| {
        add_trust_bundle(facts);
        set_replica(facts, 0, 1);
    }),
    check(BUNDLES).warns(
        "east.example any longer; it has fetched the last one 2 hours ago",
        |facts| {
            add_trust_bundle(facts);
            set_replica(facts, NOW - 2 * 3600, 0);
        },
    ),
    check(BUNDLES).warns(
        "pod linkerd-identity-a does not fetch the trust bundle of east.example yet",
        |facts| {
            add_trust_bundle(facts);
            let replicas = facts.multicluster.replicas.as_mut().unwrap();
            replicas[0].metrics = Ok(Vec::new());
        },
    ),
    check(BUNDLES).warns("fetches trust bundles is unknown: refused", |facts| {
        add_trust_bundle(facts);
        let replicas = facts.multicluster.replicas.as_mut().unwrap();
        replicas[0].metrics = Err("refused".to_owned());
    }),
    check(BUNDLES).warns("no pod of the identity service runs", |facts| {
        add_trust_bundle(facts);
        facts.multicluster.replicas = Ok(Vec::new());
    }),
    check(BUNDLES).warns(
        "cluster east trusts \"CN=next\", which the trust bundle in use lacks",
        |facts| {
            add_trust_bundle(facts);
            let anchors = target(facts).anchors.as_mut().unwrap();
            anchors.push(TestCa::new("next", 365).der());
        },
    ),
    check(BUNDLES).warns(
        "cluster east does not trust \"CN=east\" any longer",
        |facts| {
            add_trust_bundle(facts);
            target(facts).anchors = Ok(vec![TestCa::new("next", 365).der()]);
        },
    ),
    check(ANCHORS).warns(
        "its trust bundle makes its anchors trusted for names of east.example only",
        add_trust_bundle,
    ),
];

#[test]
fn only_the_comparison_of_anchors_warns_about_a_bundle_in_use() {
    let mut facts = super::fixture::healthy();
    add_trust_bundle(&mut facts);
    assert_eq!(wrong_rows(&facts), [ANCHORS]);
    assert_eq!(row(&facts, DOMAINS).detail, ["1 trust domain"]);
    assert_eq!(row(&facts, BUNDLES).detail, ["1 trust bundle"]);
}

/// A bundle that the last request did not renew within an hour is late; the domain may ask for one
/// an hour.
#[test]
fn bundle_may_be_as_old_as_its_domain_can_ask_for() {
    let mut facts = super::fixture::healthy();
    add_trust_bundle(&mut facts);
    for (age, mark) in [(3600 + 600, Mark::Ok), (3600 + 601, Mark::Warn)] {
        set_replica(&mut facts, NOW - age, 0);
        assert_eq!(row(&facts, BUNDLES).mark, mark);
    }
}

#[test]
fn refused_config_map_explains_only_why_its_own_cluster_is_not_trusted() {
    for (cluster, cause) in [("east", Some(DOMAINS)), ("north", None)] {
        let mut facts = super::fixture::healthy();
        add_trust_bundle(&mut facts);
        forget(&mut facts);
        set(&mut facts, "refresh", "5s");
        let object = &mut facts.multicluster.trust_bundles.as_mut().unwrap()[0];
        object.metadata.name = Some(config_map_name(cluster));
        let labels = object.metadata.labels.as_mut().unwrap();
        labels.values_mut().for_each(|it| *it = cluster.to_owned());
        let row = row(&facts, ANCHORS);
        assert_eq!(
            (row.mark, row.cause),
            (Mark::Fail, cause),
            "{:?}",
            row.detail
        );
    }
}

/// Where trust domains differ, the anchors need not be the same.
#[test]
fn advice_depends_on_the_trust_domains() {
    let mut facts = super::fixture::healthy();
    add_trust_bundle(&mut facts);
    facts.multicluster.trust_bundles = Ok(Vec::new());
    forget(&mut facts);
    let advice = row(&facts, ANCHORS).advice;
    assert!(advice.contains("link-gen --trust-bundle"), "{advice}");
    target(&mut facts).mesh.as_mut().unwrap().trust_domain = "cluster.local".to_owned();
    let advice = row(&facts, ANCHORS).advice;
    assert!(!advice.contains("--trust-bundle"), "{advice}");
    assert!(
        advice.contains("both clusters have the trust domain"),
        "{advice}"
    );
}

#[test]
fn advice_names_cluster_and_config_map() {
    let expected = [
        (
            "does not exist, so that",
            "-n linkerd delete configmap linkerd-trust-bundle-east, or link cluster east again: meshctl --context TARGET multicluster link-gen --cluster-name east --trust-bundle",
        ),
        (
            "is the one of this cluster",
            "-n linkerd delete configmap linkerd-trust-bundle-east",
        ),
        (
            "cannot fetch",
            "kubectl -n linkerd logs linkerd-identity-a -c identity",
        ),
    ];
    expect_advice(FAULTS, &expected);
}

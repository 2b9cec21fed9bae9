//! The trust anchor is replaced under load: no request fails, no proxy is restarted, and the next
//! upgrade changes nothing.

use mesh_test_support::cluster::Cluster;
use mesh_test_support::cluster::installation::{Installation, NAMESPACE};

use crate::load::{HttpVersion, Load, STEADY};
use crate::shop::Shop;

/// Proxies renew certificates of two minutes every 84 s; by default it takes 17 hours.
const VALUES: [&str; 1] = ["identity.issuer.issuanceLifetime=2m0s"];

/// Longer than the rotation takes: the kubelet updates the files of the identity service three
/// times, within two minutes each, and every proxy renews its certificate.
const SECONDS: u32 = 720;

/// Pods and the restarts of their containers.
pub(crate) fn starts(cluster: &Cluster) -> Vec<String> {
    let path = "jsonpath={range .items[*]}{.metadata.namespace}/{.metadata.name}{range .status.initContainerStatuses[*]} {.name}={.restartCount}{end}{range .status.containerStatuses[*]} {.name}={.restartCount}{end}{\"\\n\"}{end}";
    let all = ["shop", NAMESPACE]
        .map(|namespace| cluster.kubectl(["get", "pods", "-n", namespace, "-o", path]));
    let mut lines: Vec<String> = all.concat().lines().map(str::to_owned).collect();
    lines.sort();
    lines
}

pub(crate) fn anchors(cluster: &Cluster) -> String {
    let name = "configmap/linkerd-identity-trust-roots";
    cluster.kubectl(format!(
        "get -n {NAMESPACE} {name} -o jsonpath={{.data.ca-bundle\\.crt}}"
    ))
}

#[test]
fn anchor_is_rotated_under_load_without_a_failed_request_or_a_restart() {
    let Some(cluster) = Cluster::acquire_for_long_test("a rotation of the trust anchor") else {
        return;
    };
    let mesh = Installation::by_helm(&cluster, &VALUES);
    let shop = Shop::open(&cluster);
    shop.assert_works();
    let (old, before) = (anchors(&cluster), starts(&cluster));

    let (http1, http2) = (HttpVersion::Http1, HttpVersion::Http2);
    let load = |url, version| Load::start(&cluster, url, version, STEADY, SECONDS);
    let loads = [load("http://web/", http1), load("http://web:81/", http2)];
    // The installation is new.
    let removed = cluster.try_meshctl("identity rotate --again --to remove --wait 11m");
    assert!(removed.0, "{}", removed.1);
    assert!(
        loads.iter().all(Load::is_running),
        "it took longer than the load"
    );
    assert_eq!(starts(&cluster), before, "{}", removed.1);
    let new = anchors(&cluster);
    assert!(!new.contains(old.trim()), "{new}");
    for load in loads.map(Load::finish) {
        println!("{} succeeded, {} failed", load.succeeded, load.failed);
        assert!(load.failed == 0 && load.succeeded > 0, "{}", load.report);
    }

    // The pods of the application have the old anchor in their environment.
    let (ok, waits) = cluster.try_meshctl("identity rotate");
    assert!(!ok && waits.contains("deployment/web"), "{waits}");
    let (_, row) = cluster.try_meshctl("check --proxy -o short");
    assert!(row.contains("is in step finish (5 of 5)"), "{row}");
    shop.restart();
    let (ok, finished) = cluster.try_meshctl("identity rotate --wait 3m");
    assert!(ok, "{finished}");

    mesh.upgrade(&VALUES);
    assert_eq!(anchors(&cluster), new);
    shop.assert_works();
    shop.assert_authenticated();
    let (green, output) = cluster.try_meshctl("check --proxy --wait 60s");
    assert!(green, "{output}");
}

#[test]
fn anchors_that_gitops_applies_are_left_to_it() {
    let Some(cluster) = Cluster::acquire("a rotation of anchors that GitOps applies") else {
        return;
    };
    let _mesh = Installation::by_helm(&cluster, &[]);
    let (ok, begun) = cluster.try_meshctl("identity rotate --again --to start");
    assert!(ok, "{begun}");
    let (ok, shown) = cluster.try_meshctl("identity rotate --status");
    assert!(ok && shown.contains("add     next"), "{shown}");
    // As Flux labels what it applies.
    let patch = r#"{"metadata":{"labels":{"kustomize.toolkit.fluxcd.io/name":"mesh"}}}"#;
    cluster.kubectl(format!(
        "patch -n {NAMESPACE} configmap linkerd-identity-trust-roots --type merge -p {patch}"
    ));
    let before = anchors(&cluster);
    let (ok, left) = cluster.try_meshctl("identity rotate");
    assert!(!ok && left.contains("Flux, from mesh writes it"), "{left}");
    assert_eq!(anchors(&cluster), before);
}

//! The trust anchors of two linked clusters are replaced while requests cross both ways: no request
//! fails, and no container is restarted.

use std::process::Stdio;

use mesh_test_support::cluster::Cluster;
use mesh_test_support::command::Words as _;
use mesh_test_support::eventually::eventually;
use serde_json::Value;

use crate::linked::{self, FEDERATED, Pair, Roots};
use crate::load::{HttpVersion, Load};
use crate::rotation;

/// Proxies renew certificates of two minutes every 84 s.
const LIFETIME: &str = "identity.issuer.issuanceLifetime=2m0s";

/// Requests per second of each of the four loads.
const RATE: u32 = 100;

/// Longer than a rotation takes: the kubelet updates the files of an identity service three times,
/// within two minutes each, and every proxy renews its certificate.
const SECONDS: u32 = 840;

/// Requests of both clusters through the gateway of the other one, and to pods of both.
fn loads<'a>(pair: &Pair<'a>, clusters: [&'a Cluster; 2]) -> Vec<Load<'a>> {
    for cluster in clusters {
        linked::label(cluster, "web", "mirror.linkerd.io/exported=true");
        linked::label(cluster, "web", FEDERATED);
    }
    let sides = [(0, clusters[1]), (1, clusters[0])];
    for (side, other) in sides {
        let (link, shop, pods) = (&pair.links[side], &pair.shops[side], linked::pods(other));
        linked::expect(shop, &link.mirror("web"), &pods, &link.gateway());
        linked::expect(shop, "web-federated", &pods, &link.client());
    }
    let load = |side: usize, service: &str| {
        let url = format!("http://{service}/");
        Load::start(clusters[side], &url, HttpVersion::Http1, RATE, SECONDS)
    };
    let services = |side: usize| [pair.links[side].mirror("web"), "web-federated".to_owned()];
    let started = [0, 1].map(|side| services(side).map(|service| load(side, &service)));
    started.into_iter().flatten().collect()
}

fn judge(loads: Vec<Load<'_>>) {
    let is_running = loads.iter().all(Load::is_running);
    assert!(is_running, "the rotation took longer than the load");
    for load in loads.into_iter().map(Load::finish) {
        println!("{} succeeded, {} failed", load.succeeded, load.failed);
        assert!(load.failed == 0 && load.succeeded > 0, "{}", load.report);
    }
}

/// Runs the command that rotates, and kills it when a step is under way.
fn rotate_until(cluster: &Cluster, step: &str, options: &str) {
    let command = format!("identity rotate --to remove --wait 11m {options}");
    let mut rotating = cluster
        .program("meshctl")
        .args(command.words())
        .stdout(Stdio::null())
        .spawn()
        .expect("meshctl");
    eventually(&format!("step {step} is under way"), || {
        let text = cluster.meshctl("identity rotate --status -o json");
        let status: Value = serde_json::from_str(&text).map_err(|error| error.to_string())?;
        let steps = status["rotation"]["steps"].as_array();
        let found = steps.into_iter().flatten().find(|it| it["step"] == step);
        let state = found.and_then(|it| it["state"].as_str());
        let is_under_way = matches!(state, Some("waiting" | "done"));
        is_under_way.then_some(()).ok_or(text)
    });
    rotating.kill().expect("a process that can be killed");
    rotating.wait().expect("the end of the process");
}

#[test]
fn rotation_that_is_killed_at_each_step_fails_no_request_between_clusters_with_own_roots() {
    let Some((west, east)) = Cluster::acquire_two_for_long_test("a rotation in linked clusters")
    else {
        return;
    };
    let clusters = [&west, &east];
    let pair = Pair::open_with(&west, &east, Roots::Own, &[LIFETIME]);
    let before = clusters.map(rotation::starts);
    let old = rotation::anchors(&west);
    let loads = loads(&pair, clusters);

    // The installation is new.
    rotate_until(&west, "start", "--again");
    rotate_until(&west, "add", "");
    rotate_until(&west, "switch", "");
    let switched = west.try_meshctl("identity rotate --to switch --wait 6m");
    assert!(switched.0, "{}", switched.1);
    rotate_until(&west, "remove", "");
    let removed = west.try_meshctl("identity rotate --to remove --wait 6m");
    assert!(removed.0, "{}", removed.1);

    let new = rotation::anchors(&west);
    assert!(!new.contains(old.trim()), "{new}");
    judge(loads);
    assert_eq!(clusters.map(rotation::starts), before);
    let (green, output) = east.try_meshctl("multicluster check --wait 180s");
    assert!(green, "{output}");
}

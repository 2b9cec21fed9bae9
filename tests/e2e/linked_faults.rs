//! Faults of linked clusters under load: the API server of the other one is away, its credentials
//! change, a gateway is killed, a member leaves, everything restarts, and all of it is lost,
//! without a packet that says so.

use std::process::Command;
use std::time::{Duration, SystemTime};

use mesh_test_support::cluster::Cluster;
use mesh_test_support::command::{feed, text};
use mesh_test_support::eventually::eventually;

use crate::linked::{self, CLIENT, FEDERATED, Pair, Roots};
use crate::load::{HttpVersion, Load, LoggedLoad, Request, STEADY};
use crate::node::Nodes;
use crate::shop;

const TIMES: u32 = 20;

/// Requests per second.
const RATE: u32 = 500;

/// Seconds of each load. It ends after the bound, with seconds to judge.
const SECONDS: u32 = 26;

/// Seconds of load while a cluster restarts.
const RESTART_SECONDS: u32 = 90;

/// The published bound (docs/operations/multicluster.md). A lost endpoint is noticed after the
/// interval of the keep-alive and its timeout.
const BOUND: Duration = Duration::from_secs(15);

/// Failures end within this time after the bound.
const AFTER_BOUND: Duration = Duration::from_secs(1);

/// The table of nftables that cuts a cluster off.
const TABLE: &str = "mesh-lost-cluster";

/// The packets that are lost.
#[derive(Clone, Copy)]
enum Lost {
    All,
    /// The ones of connections to the API server.
    ApiServer,
}

/// Drops packets to and from a cluster that are forwarded here. This machine reaches it still.
struct Cut;

impl Cut {
    fn off(cluster: &Cluster, lost: Lost) -> Self {
        let addresses: Vec<String> = cluster
            .list("nodes")
            .iter()
            .flat_map(|node| {
                let own = linked::internal_ip(node);
                let pods = node["spec"]["podCIDR"].as_str().unwrap_or_default();
                [own, pods.to_owned()]
            })
            .collect();
        let set = format!("{{ {} }}", addresses.join(", "));
        let [sent, received] = match lost {
            Lost::All => ["", ""],
            Lost::ApiServer => ["tcp sport 6443", "tcp dport 6443"],
        };
        nft(&format!(
            "table ip {TABLE} {{
                chain forward {{
                    type filter hook forward priority filter
                    ip saddr {set} ip daddr != {set} {sent} drop
                    ip daddr {set} ip saddr != {set} {received} drop
                }}
            }}"
        ));
        Self
    }
}

impl Drop for Cut {
    fn drop(&mut self) {
        nft(&format!("delete table ip {TABLE}"));
    }
}

fn nft(commands: &str) {
    let output = feed(Command::new("nft").args(["-f", "-"]), commands);
    let error = text(&output.stderr);
    assert!(output.status.success(), "nft: {error}\n{commands}");
}

#[test]
fn requests_to_linked_clusters_succeed_while_their_api_server_or_credentials_change() {
    let Some((west, east)) = Cluster::acquire_two_for_long_test("faults of links") else {
        return;
    };
    let Pair { links, shops, .. } = &Pair::open(&west, &east, Roots::Shared);
    let ([link, _], [shop, _]) = (links, shops);
    let mirror = link.mirror("web");
    linked::label(&east, "web", "mirror.linkerd.io/exported=true");
    linked::label(&west, "web", FEDERATED);
    linked::label(&east, "web", FEDERATED);
    let (pods, gateway) = (linked::pods(&east), linked::GATEWAY);
    linked::expect(shop, &mirror, &pods, gateway);
    linked::expect(shop, "web-federated", &pods, CLIENT);

    let load = |service: &str, seconds| {
        let url = format!("http://{service}/");
        Load::start(&west, &url, HttpVersion::Http1, STEADY, seconds)
    };
    let expect_no_failure = |loads: [Load<'_>; 2]| {
        for load in loads.map(Load::finish) {
            println!("{} succeeded, {} failed", load.succeeded, load.failed);
            assert!(load.failed == 0 && load.succeeded > 0, "{}", load.report);
        }
    };

    // The API server is away, longer than watches and Leases take to notice. Mirrors are followed
    // again afterwards.
    let loads = [load(&mirror, 60), load("web-federated", 60)];
    let cut = Cut::off(&east, Lost::ApiServer);
    linked::label(&east, "web", "mirror.linkerd.io/exported-");
    expect_no_failure(loads);
    linked::expect(shop, &mirror, &pods, gateway);
    drop(cut);
    link.expect_no_mirror("web");
    linked::label(&east, "web", "mirror.linkerd.io/exported=true");
    linked::expect(shop, &mirror, &pods, gateway);

    // A new token replaces the one of the Link, which is withdrawn.
    let loads = [load(&mirror, 60), load("web-federated", 60)];
    let token = "secret/linkerd-service-mirror-remote-access-default-token";
    let namespace = linked::NAMESPACE;
    east.kubectl(format!("delete -n {namespace} {token}"));
    links[1].helm("upgrade");
    link.link();
    linked::label(&east, "web", "mirror.linkerd.io/federated-");
    linked::label(&east, "web", FEDERATED);
    expect_no_failure(loads);
    linked::label(&east, "web", "mirror.linkerd.io/exported-");
    link.expect_no_mirror("web");
    let (green, output) = west.try_meshctl("multicluster check --wait 60s");
    assert!(green, "{output}");
}

#[test]
fn requests_to_a_federated_service_succeed_after_the_bound_when_a_cluster_is_lost() {
    let Some((west, east)) = Cluster::acquire_two_for_long_test("the loss of a cluster") else {
        return;
    };
    let Pair { links, shops, .. } = &Pair::open(&west, &east, Roots::Shared);
    let ([link, _], [shop, _]) = (links, shops);
    for cluster in [&west, &east] {
        linked::label(cluster, "web", FEDERATED);
    }
    linked::label(&east, "web", "mirror.linkerd.io/exported=true");
    let (mirror, pods) = (link.mirror("web"), linked::pods(&east));
    for time in 1..=TIMES {
        linked::expect(shop, &mirror, &pods, linked::GATEWAY);
        linked::expect(shop, "web-federated", &pods, CLIENT);
        let load = LoggedLoad::start(&west, "http://web-federated/", RATE, SECONDS);
        let cut = Cut::off(&east, Lost::All);
        let lost = SystemTime::now();
        link.expect_not_ready("web");
        let noticed = lost.elapsed().unwrap_or_default();
        let requests = load.finish();
        drop(cut);
        let since = lost.duration_since(SystemTime::UNIX_EPOCH);
        let outcome = Outcome::of(&requests, since.unwrap_or_default());
        println!("{time} of {TIMES}: gateway noticed after {noticed:.1?}, {outcome:?}");
        assert!(noticed < BOUND + AFTER_BOUND, "{noticed:?}");
        assert_eq!(outcome.failed_late, 0, "{outcome:?}");
        assert!(outcome.last_seconds > u64::from(RATE), "{outcome:?}");
    }
}

#[test]
fn requests_to_linked_clusters_succeed_while_gateways_members_and_clusters_go_and_return() {
    let Some((west, east)) = Cluster::acquire_two_for_long_test("restarts of linked clusters")
    else {
        return;
    };
    let Pair { links, shops, .. } = &Pair::open(&west, &east, Roots::Shared);
    let ([link, _], [shop, _]) = (links, shops);
    let nodes = Nodes::observe(&east);
    for cluster in [&west, &east] {
        linked::label(cluster, "web", FEDERATED);
    }
    linked::label(&east, "web", "mirror.linkerd.io/exported=true");
    let mirror = link.mirror("web");
    let expect_both = || {
        let pods = linked::pods(&east);
        linked::expect(shop, &mirror, &pods, linked::GATEWAY);
        linked::expect(shop, "web-federated", &pods, CLIENT);
    };
    let judge = |what: &str, load: LoggedLoad<'_>, began: SystemTime, in_flight: u64| {
        let since = began.duration_since(SystemTime::UNIX_EPOCH);
        let outcome = Outcome::of(&load.finish(), since.unwrap_or_default());
        println!("{what}: {outcome:?}");
        assert_eq!(outcome.failed_late, 0, "{what}: {outcome:?}");
        assert!(outcome.failed <= in_flight, "{what}: {outcome:?}");
        assert!(outcome.last_seconds > 0, "{what}: {outcome:?}");
    };
    let load = |service: &str, seconds| {
        LoggedLoad::start(&west, &format!("http://{service}/"), STEADY, seconds)
    };

    // One of two gateways is killed. Requests on its connections may fail, one for each of the
    // load's.
    let gateway = "deployment/linkerd-gateway";
    let namespace = linked::NAMESPACE;
    east.kubectl(format!("scale -n {namespace} {gateway} --replicas 2"));
    east.rolled_out(namespace, gateway);
    expect_both();
    let requests = load(&mirror, SECONDS);
    let killed = SystemTime::now();
    let pods = east.pods(&format!("-n {namespace} -l app=linkerd-gateway"));
    nodes.kill(&pods[0]);
    judge("a gateway was killed", requests, killed, 10);
    east.rolled_out(namespace, gateway);

    // A member leaves, and comes back.
    let requests = load("web-federated", SECONDS);
    let left = SystemTime::now();
    linked::label(&east, "web", "mirror.linkerd.io/federated-");
    linked::label(&east, "web", "mirror.linkerd.io/exported-");
    link.expect_no_mirror("web");
    linked::label(&east, "web", FEDERATED);
    linked::label(&east, "web", "mirror.linkerd.io/exported=true");
    judge("a member left and came back", requests, left, 0);
    expect_both();

    // Everything in the other cluster is killed at once, its API server included.
    let requests = load("web-federated", RESTART_SECONDS);
    let restarted = SystemTime::now();
    nodes.kill_all();
    eventually("the API server is back", || {
        let (ok, output) = east.try_kubectl("get --raw /readyz");
        if ok { Ok(()) } else { Err(output) }
    });
    judge("the cluster restarted", requests, restarted, u64::MAX);
    for workload in ["web", "client"] {
        east.rolled_out(shop::NAMESPACE, &format!("deployment/{workload}"));
    }
    expect_both();
    let (green, output) = west.try_meshctl("multicluster check --wait 120s");
    assert!(green, "{output}");
}

/// The requests of one loss.
#[derive(Debug, Default)]
struct Outcome {
    succeeded: u64,
    failed: u64,
    /// From the loss to the end of the last failed request.
    last_failure: Duration,
    /// Requests that failed later than one second after the bound.
    failed_late: u64,
    /// Requests that succeeded later than this.
    last_seconds: u64,
}

impl Outcome {
    /// `lost` is the time of the loss since 1970.
    fn of(requests: &[Request], lost: Duration) -> Self {
        let mut outcome = Self::default();
        for request in requests {
            let after = request.ended.saturating_sub(lost);
            let is_late = after > BOUND + AFTER_BOUND;
            if request.succeeded {
                outcome.succeeded += 1;
                outcome.last_seconds += u64::from(is_late);
            } else {
                outcome.failed += 1;
                outcome.failed_late += u64::from(is_late);
                outcome.last_failure = outcome.last_failure.max(after);
            }
        }
        outcome
    }
}

//! Two clusters that are linked both ways. The pods of each can connect to the other's
//! (`MESH_TEST_LINKED_CLUSTER`).

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use mesh_test_support::certificates::TestCa;
use mesh_test_support::cluster::Cluster;
use mesh_test_support::cluster::installation::Installation;
use mesh_test_support::command::{Words as _, succeed};
use mesh_test_support::eventually::eventually;
use serde_json::Value;

use crate::load::{HttpVersion, Load, STEADY};
use crate::shop::{self, Shop};

pub(crate) const NAMESPACE: &str = "linkerd-multicluster";
const CHART: &str = "linkerd-multicluster";

/// The port of nodes that leads to the probes of the gateway.
const PROBE_PORT: u16 = 31_191;

pub(crate) const CLIENT: &str = "client.shop.serviceaccount.identity.linkerd.cluster.local";
pub(crate) const GATEWAY: &str =
    "linkerd-gateway.linkerd-multicluster.serviceaccount.identity.linkerd.cluster.local";

/// How long the identities of a cluster are trusted at most after its trust bundle was removed.
const TRUST_ENDS: Duration = Duration::from_secs(60);

/// Makes a Service a member of a federated one.
pub(crate) const FEDERATED: &str = "mirror.linkerd.io/federated=member";

/// The trust anchors of two clusters.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Roots {
    /// One for both.
    Shared,
    /// Each has its own, and a trust domain that is named after its context.
    Own,
}

/// The extension in a cluster, with a link to the other one.
pub(crate) struct Linked<'a> {
    cluster: &'a Cluster,
    other: &'a Cluster,
    roots: Roots,
}

impl<'a> Linked<'a> {
    fn install(cluster: &'a Cluster, other: &'a Cluster, roots: Roots) -> Self {
        let linked = Self {
            cluster,
            other,
            roots,
        };
        linked.helm("install");
        linked
    }

    pub(crate) fn helm(&self, verb: &str) {
        let chart = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
            .join("../helm")
            .join(CHART);
        let mut command = self.cluster.program("helm");
        command.args([verb, CHART]).arg(chart);
        command.args(["-n", NAMESPACE, "--create-namespace", "--timeout", "5m"]);
        let link = format!("controllers[0].link.ref.name={}", self.other.context());
        // The cluster has no load balancers. The Service of the probes has the port of the Link.
        let probe = format!("gateway.probe.nodePort={PROBE_PORT}");
        let probed = format!("controllers[0].gateway.probe.port={PROBE_PORT}");
        let trust_domain = self.roots.trust_domain(self.cluster);
        let trust_domain = format!("identityTrustDomain={trust_domain}");
        let node_port = "gateway.serviceType=NodePort";
        for value in [node_port, &link, &probe, &probed, &trust_domain] {
            command.args(["--set", value]);
        }
        succeed(&mut command);
    }

    /// Links the cluster to the other one.
    pub(crate) fn link(&self) {
        let address = internal_ip(&self.other.list("nodes")[0]);
        let mut link_gen = format!(
            "multicluster link-gen --cluster-name {} --gateway-addresses {address}",
            self.other.context()
        );
        if self.roots == Roots::Own {
            let address = bundle_address(self.other, &address);
            link_gen += &format!(
                " --trust-bundle --trust-bundle-address {address} --trusting-context {}",
                self.cluster.context()
            );
        }
        let manifests = self.other.meshctl(link_gen);
        self.cluster.apply(&manifests);
        self.cluster.rolled_out(
            NAMESPACE,
            &format!("deployment/controller-{}", self.other.context()),
        );
        self.cluster
            .rolled_out(NAMESPACE, "deployment/linkerd-gateway");
    }

    /// Returns the identity of the shop's client.
    pub(crate) fn client(&self) -> String {
        self.roots.named("client.shop", self.cluster)
    }

    /// Returns the identity of the gateway of the other cluster.
    pub(crate) fn gateway(&self) -> String {
        self.roots
            .named("linkerd-gateway.linkerd-multicluster", self.other)
    }

    /// Returns the name of a mirror of the other cluster's Service.
    pub(crate) fn mirror(&self, service: &str) -> String {
        format!("{service}-{}", self.other.context())
    }

    /// Waits until the mirror of the other cluster's Service has only endpoints that are not ready.
    pub(crate) fn expect_not_ready(&self, service: &str) {
        let name = format!("endpoints -n {} {}", shop::NAMESPACE, self.mirror(service));
        eventually("the gateway is not ready", || {
            let endpoints = self.cluster.json(format!("get {name}"));
            let subset = &endpoints["subsets"][0];
            let is_ready = !subset["addresses"].is_null();
            let is_not_ready = !is_ready && subset["notReadyAddresses"].is_array();
            is_not_ready.then_some(()).ok_or(endpoints.to_string())
        });
    }

    /// Waits until the other cluster's Service has no mirror.
    pub(crate) fn expect_no_mirror(&self, service: &str) {
        let mirror = self.mirror(service);
        eventually("the mirror is gone", || {
            let all = self
                .cluster
                .list(format!("services -n {}", shop::NAMESPACE));
            let found = all.iter().find(|it| it["metadata"]["name"] == *mirror);
            found.map_or(Ok(()), |found| Err(found.to_string()))
        });
    }
}

impl Drop for Linked<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() && std::env::var_os("MESH_TEST_KEEP").is_some() {
            return;
        }
        // Only what runs now may still remove mirrors, and a failed test must not fail twice.
        let _ = self.cluster.try_kubectl("delete links --all -A --wait");
        let uninstall = format!("uninstall {CHART} -n {NAMESPACE} --wait --timeout 3m");
        let _ = self
            .cluster
            .program("helm")
            .args(uninstall.words())
            .output();
        self.cluster.delete_namespace(NAMESPACE);
    }
}

impl Roots {
    fn trust_domain(self, cluster: &Cluster) -> String {
        match self {
            Self::Shared => "cluster.local".to_owned(),
            Self::Own => format!("{}.example", cluster.context()),
        }
    }

    /// Returns the identity of a ServiceAccount, as `NAME.NAMESPACE`.
    fn named(self, account: &str, cluster: &Cluster) -> String {
        let trust_domain = self.trust_domain(cluster);
        format!("{account}.serviceaccount.identity.linkerd.{trust_domain}")
    }
}

/// Returns where the other cluster reaches the trust bundle: a port of the node.
fn bundle_address(cluster: &Cluster, node: &str) -> String {
    let service = cluster.json("get service -n linkerd linkerd-identity-bundle");
    let port = &service["spec"]["ports"][0]["nodePort"];
    format!("{node}:{port}")
}

/// Returns the address of a node.
pub(crate) fn internal_ip(node: &Value) -> String {
    let addresses = node["status"]["addresses"].as_array();
    let is_internal = |address: &&Value| address["type"] == "InternalIP";
    let found = addresses.into_iter().flatten().find(is_internal);
    let address = found.and_then(|address| address["address"].as_str());
    address.expect("a node with an address").to_owned()
}

/// Labels a Service of the shop; `KEY-` removes the label.
pub(crate) fn label(cluster: &Cluster, service: &str, label: &str) {
    cluster.kubectl(format!(
        "label service -n {} {service} --overwrite {label}",
        shop::NAMESPACE
    ));
}

/// Returns the names of the pods of `web`.
pub(crate) fn pods(cluster: &Cluster) -> BTreeSet<String> {
    let pods = cluster.pods(&format!("-n {} -l app=web", shop::NAMESPACE));
    let names = pods
        .iter()
        .filter_map(|pod| pod["metadata"]["name"].as_str());
    names.map(str::to_owned).collect()
}

/// Requests `/` of a Service as the shop's client, and returns the pod that responded and the
/// client that it saw.
fn request(shop: &Shop<'_>, service: &str) -> Result<(String, String), String> {
    let url = format!("http://{service}/");
    let (ok, output) = shop.client(["curl", "-sS", "--fail", "-m", "5", &url]);
    match output.trim().split_once(' ') {
        Some((pod, client)) if ok => Ok((pod.to_owned(), client.to_owned())),
        _ => Err(output),
    }
}

/// Waits until one of these pods responds to a request to a Service and sees this client.
pub(crate) fn expect(shop: &Shop<'_>, service: &str, pods: &BTreeSet<String>, client: &str) {
    eventually(
        &format!("{service} responds to {client}"),
        || match request(shop, service)? {
            (pod, seen) if pods.contains(&pod) && seen == client => Ok(()),
            other => Err(format!("{other:?}; expected one of {pods:?} and {client}")),
        },
    );
}

/// The values of a control plane with this trust anchor.
fn identity(anchor: &TestCa) -> Vec<String> {
    let issuer = anchor.intermediate();
    let (certificate, key) = issuer.issuer_pem();
    vec![
        format!("identityTrustAnchorsPEM={}", anchor.anchor_pem()),
        format!("identity.issuer.tls.crtPEM={certificate}"),
        format!("identity.issuer.tls.keyPEM={key}"),
    ]
}

/// The values of a control plane that makes a trust anchor for a trust domain of its own.
fn own_domain(cluster: &Cluster) -> Vec<String> {
    vec![
        format!("identityTrustDomain={}", Roots::Own.trust_domain(cluster)),
        "identity.bundleEndpoint.enabled=true".to_owned(),
        "identity.bundleEndpoint.serviceType=NodePort".to_owned(),
    ]
}

/// Two clusters with a mesh and the shop, linked both ways.
pub(crate) struct Pair<'a> {
    pub(crate) links: [Linked<'a>; 2],
    pub(crate) shops: [Shop<'a>; 2],
    _meshes: [Installation<'a>; 2],
}

impl<'a> Pair<'a> {
    pub(crate) fn open(west: &'a Cluster, east: &'a Cluster, roots: Roots) -> Self {
        Self::open_with(west, east, roots, &[])
    }

    /// Installs both control planes with further values.
    pub(crate) fn open_with(
        west: &'a Cluster,
        east: &'a Cluster,
        roots: Roots,
        further: &[&str],
    ) -> Self {
        let anchor = TestCa::new();
        let install = |cluster| {
            let values = match roots {
                Roots::Shared => identity(&anchor),
                Roots::Own => own_domain(cluster),
            };
            let values: Vec<&str> = values.iter().map(String::as_str).collect();
            Installation::by_helm(cluster, &[&values[..], further].concat())
        };
        let meshes = [install(west), install(east)];
        let shops = [Shop::open(west), Shop::open(east)];
        let links = [
            Linked::install(west, east, roots),
            Linked::install(east, west, roots),
        ];
        for link in &links {
            link.link();
        }
        Self {
            links,
            shops,
            _meshes: meshes,
        }
    }
}

#[test]
fn clients_use_services_of_linked_clusters() {
    let Some((west, east)) = Cluster::acquire_two("links between two clusters") else {
        return;
    };
    let Pair { links, shops, .. } = &Pair::open(&west, &east, Roots::Shared);
    let of_west = (&links[0], &shops[0], &east);
    uses_services(links, shops);
    follows_the_gateway(of_west);
    loses_a_cluster(of_west);
}

#[test]
fn clients_use_services_of_clusters_with_roots_of_their_own_until_the_trust_ends() {
    let Some((west, east)) = Cluster::acquire_two("links between two trust domains") else {
        return;
    };
    let Pair { links, shops, .. } = &Pair::open(&west, &east, Roots::Own);
    uses_services(links, shops);

    let mirror = links[0].mirror("web");
    label(&east, "web", "mirror.linkerd.io/exported=true");
    expect(&shops[0], &mirror, &pods(&east), &links[0].gateway());
    let name = format!("linkerd-trust-bundle-{}", east.context());
    west.kubectl(format!("delete configmap -n linkerd {name}"));
    let removed = Instant::now();
    eventually(
        "the trust in the other cluster has ended",
        || match request(&shops[0], &mirror) {
            Ok(response) => Err(format!("{response:?}")),
            Err(_refused) => Ok(()),
        },
    );
    let elapsed = removed.elapsed();
    println!("the trust ended after {elapsed:.1?}");
    assert!(elapsed < TRUST_ENDS, "{elapsed:?}");
}

/// Both clusters use Services of the other one in all three forms.
fn uses_services(links: &[Linked<'_>; 2], shops: &[Shop<'_>; 2]) {
    let [west, east] = [links[0].cluster, links[1].cluster];
    let of_west = (&links[0], &shops[0], east);
    let of_east = (&links[1], &shops[1], west);
    for (link, shop, other) in [of_west, of_east] {
        let mirror = link.mirror("web");
        label(other, "web", "mirror.linkerd.io/exported=true");
        expect(shop, &mirror, &pods(other), &link.gateway());
        label(other, "web", "mirror.linkerd.io/exported=remote-discovery");
        expect(shop, &mirror, &pods(other), &link.client());
        label(other, "web", "mirror.linkerd.io/exported-");
        link.expect_no_mirror("web");
    }

    for cluster in [west, east] {
        label(cluster, "web", FEDERATED);
    }
    for (link, shop, other) in [of_west, of_east] {
        expect(shop, "web-federated", &pods(other), &link.client());
        expect(shop, "web-federated", &pods(shop.cluster()), &link.client());
    }
    for cluster in [west, east] {
        let (green, output) = cluster.try_meshctl("multicluster check --wait 60s");
        assert!(green, "{output}");
    }
}

/// A mirror has no ready endpoints while the gateway does not respond, and again afterwards.
fn follows_the_gateway((link, shop, other): (&Linked<'_>, &Shop<'_>, &Cluster)) {
    let mirror = link.mirror("web");
    label(other, "web", "mirror.linkerd.io/exported=true");
    expect(shop, &mirror, &pods(other), GATEWAY);
    let scale = |replicas: u32| {
        other.kubectl(format!(
            "scale -n {NAMESPACE} deployment/linkerd-gateway --replicas {replicas}"
        ));
    };
    let gateways = |alive: bool| {
        eventually("the liveness of the gateway is known", || {
            let text = link.cluster.meshctl("multicluster gateways -o json");
            let rows: Value = serde_json::from_str(&text).map_err(|error| error.to_string())?;
            let is_alive = rows[0]["alive"] == alive;
            is_alive.then_some(()).ok_or(text)
        });
    };
    gateways(true);
    scale(0);
    gateways(false);
    link.expect_not_ready("web");
    scale(1);
    gateways(true);
    expect(shop, &mirror, &pods(other), GATEWAY);
}

/// A federated Service loses the endpoints of a cluster that has none any longer, without a failed
/// request.
fn loses_a_cluster((_, shop, other): (&Linked<'_>, &Shop<'_>, &Cluster)) {
    let own = shop.cluster();
    let load = Load::start(own, "http://web-federated/", HttpVersion::Http1, STEADY, 30);
    let scale = |replicas: u32| {
        other.kubectl(format!(
            "scale -n {} deployment/web --replicas {replicas}",
            shop::NAMESPACE
        ));
    };
    scale(0);
    eventually("the pods are gone", || {
        let pods = pods(other);
        pods.is_empty().then_some(()).ok_or(format!("{pods:?}"))
    });
    scale(3);
    other.rolled_out(shop::NAMESPACE, "deployment/web");
    let load = load.finish();
    assert!(load.failed == 0 && load.succeeded > 0, "{}", load.report);
}

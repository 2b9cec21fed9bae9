//! Trust bundles of other trust domains: identity services with API servers in memory, and servers
//! and clients of bundles that are made of go-spiffe.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use mesh_api::identity::trust_bundle;
use mesh_api::mesh::identity::trust_anchors_client::TrustAnchorsClient;
use mesh_api::mesh::identity::{TrustBundle, WatchRequest};
use mesh_cluster::certificate::pem_blocks;
use mesh_cluster::trust_bundle::document;
use mesh_core::identity::Identity;
use mesh_core::trust_domain::ForeignAnchors;
use mesh_k8s::foreign_domain::{BundleEndpoint, EndpointProfile, ForeignDomain, LinkName};
use mesh_k8s::trust::bundle_server_id;
use mesh_test_support::certificates::TestCa;
use mesh_test_support::command::{are_installed, command, output_text};
use mesh_test_support::controller::Controller;
use mesh_test_support::eventually::eventually_async as eventually;
use mesh_test_support::kube_api::{self, ScriptedApi};
use mesh_test_support::network::free_address;
use mesh_test_support::program::Program;
use serde_json::{Value, json};
use tonic::Streaming;

const PROGRAM: &str = "mesh-workload-api";
pub(crate) const EAST: &str = "cluster.local";
const WEST: &str = "west.example";
const ROOTS: &str = "/api/v1/namespaces/linkerd/configmaps/linkerd-identity-trust-roots";
pub(crate) const RECORD: &str =
    "/api/v1/namespaces/linkerd/configmaps/linkerd-identity-trust-bundle";
const LINK: &str =
    "/apis/multicluster.linkerd.io/v1alpha3/namespaces/linkerd-multicluster/links/west";

/// A cluster with an identity service of a trust domain.
pub(crate) struct Cluster {
    domain: &'static str,
    pub(crate) api: ScriptedApi,
    kube: SocketAddr,
    files: tempfile::TempDir,
    /// Where it serves its bundle.
    endpoint: SocketAddr,
}

impl Cluster {
    pub(crate) async fn new(domain: &'static str) -> Self {
        let api = ScriptedApi::default();
        let cluster = Self {
            domain,
            kube: api.listen("identity").await,
            api,
            files: tempfile::tempdir().unwrap(),
            endpoint: free_address(),
        };
        kube_api::write_kubeconfig(&cluster.path("kubeconfig"), cluster.kube);
        let name = "linkerd-identity-trust-bundle";
        let record = json!({ "metadata": { "name": name, "namespace": "linkerd" } });
        cluster.api.put(RECORD, record);
        cluster
    }

    fn path(&self, name: &str) -> PathBuf {
        self.files.path().join(name)
    }

    /// Has the mesh trust these anchors, in the object of the operator and in all volumes.
    pub(crate) fn trust(&self, anchors: &str) {
        fs::write(self.path("anchors.pem"), anchors).unwrap();
        let name = "linkerd-identity-trust-roots";
        let roots = json!({
            "metadata": { "name": name, "namespace": "linkerd" },
            "data": { "ca-bundle.crt": anchors },
        });
        self.api.put(ROOTS, roots);
    }

    /// Has the mesh issue by an issuer below this anchor.
    pub(crate) fn issue(&self, anchor: &TestCa) {
        let issuer = anchor.intermediate();
        let (certificate, key) = issuer.issuer_pem();
        fs::write(self.path("key.pem"), key).unwrap();
        fs::write(self.path("crt.pem"), certificate).unwrap();
    }

    pub(crate) async fn replica(&self, more: &[String]) -> Controller {
        let publish = ["--publish-trust-roots".to_owned()];
        self.start(&[&publish, more].concat()).await
    }

    /// A replica that sends proxies nothing.
    pub(crate) async fn silent_replica(&self) -> Controller {
        self.start(&[]).await
    }

    async fn start(&self, more: &[String]) -> Controller {
        let mut args = vec![
            format!("--identity-trust-domain={}", self.domain),
            format!("--issuer-dir={}", self.files.path().display()),
            format!("--trust-anchors={}", self.path("anchors.pem").display()),
            format!("--kubeconfig={}", self.path("kubeconfig").display()),
        ];
        args.extend_from_slice(more);
        let controller = Controller::start("identity", "--addr", "--admin-addr", &args);
        controller.ready().await
    }

    /// A replica that serves its bundle.
    async fn serving(&self) -> Controller {
        let flag = format!("--trust-bundle-addr={}", self.endpoint);
        self.replica(&[flag]).await
    }

    fn put_foreign(&self, domain: &ForeignDomain) -> String {
        let object = serde_json::to_value(domain.config_map("linkerd")).unwrap();
        let name = object["metadata"]["name"].as_str().unwrap();
        let path = format!("/api/v1/namespaces/linkerd/configmaps/{name}");
        self.api.put(&path, object);
        path
    }
}

/// A trust domain with this first bundle, and a Link.
fn foreign(domain: &str, at: SocketAddr, id: &str, first: &str) -> ForeignDomain {
    let profile = EndpointProfile::Spiffe(Identity::parse(id).unwrap());
    ForeignDomain {
        cluster: "west".to_owned(),
        trust_domain: domain.to_owned(),
        endpoint: BundleEndpoint::from_url(&format!("https://{at}/"), profile).unwrap(),
        bundle: Some(first.to_owned()),
        link: Some(LinkName {
            namespace: "linkerd-multicluster".to_owned(),
            name: "west".to_owned(),
        }),
    }
}

fn first_bundle(anchors: &str) -> String {
    document::write(anchors, 1, std::time::Duration::from_secs(60)).unwrap()
}

/// The stream that a proxy has.
struct Proxy(Streaming<TrustBundle>);

impl Proxy {
    async fn of(replica: &Controller) -> Self {
        let mut client = TrustAnchorsClient::new(replica.channel().await);
        let watched = client.watch(WatchRequest {}).await;
        Self(watched.unwrap().into_inner())
    }

    /// Waits for a bundle with these foreign anchors, and returns its number.
    async fn until(&mut self, foreign: &ForeignAnchors) -> u64 {
        let received = async {
            loop {
                let message = self.0.message().await.unwrap().unwrap();
                let bundle = trust_bundle(message).unwrap();
                if bundle.foreign == *foreign {
                    return bundle.number;
                }
            }
        };
        let waited = mesh_test_support::eventually::TIMEOUT;
        let received = tokio::time::timeout(waited, received).await;
        received.unwrap_or_else(|_elapsed| panic!("no bundle with {foreign:?}"))
    }
}

fn anchors(domain: &str, pem: &str) -> ForeignAnchors {
    [(domain.to_owned(), pem.to_owned())].into()
}

/// A server of a bundle that is made of go-spiffe.
struct GoEndpoint {
    program: Program,
    addr: SocketAddr,
}

impl GoEndpoint {
    /// Returns the server and its bundle, or `None` with an explanation if this machine does not
    /// have the program.
    fn start(domain: &str) -> Option<(Self, String)> {
        if !are_installed(&[PROGRAM]) {
            return None;
        }
        let addr = free_address();
        let program = Program::start(&mut command([
            PROGRAM,
            "endpoint",
            &addr.to_string(),
            domain,
        ]));
        let endpoint = Self { program, addr };
        let first = endpoint.program.next_line().unwrap();
        Some((endpoint, first))
    }

    /// Has the server do this, and returns its anchors then.
    fn order(&mut self, command: &str) -> String {
        self.program.write_line(command);
        let document = self.program.next_line().unwrap();
        document::read(document.as_bytes()).unwrap().bundle.anchors
    }
}

async fn failing(replica: &Controller, wanted: &str) {
    let line = format!("mesh_foreign_bundle_failing{{trust_domain=\"{WEST}\"}} {wanted}");
    eventually(&line, async || {
        let (_, metrics) = replica.admin_get("/metrics")?;
        metrics.lines().any(|it| it == line).then_some(())
    })
    .await;
}

#[tokio::test]
async fn bundle_of_go_spiffe_is_followed_by_all_replicas_until_the_link_is_removed() {
    let Some((mut west, first)) = GoEndpoint::start(WEST) else {
        return;
    };
    let east = Cluster::new(EAST).await;
    let ca = TestCa::new();
    east.trust(ca.anchor_pem());
    east.issue(&ca);
    east.api
        .put(LINK, json!({ "metadata": { "name": "west" } }));
    let id = format!("spiffe://{WEST}/bundle");
    east.put_foreign(&foreign(WEST, west.addr, &id, &first));
    let replicas = [east.replica(&[]).await, east.replica(&[]).await];
    let mut proxies = [Proxy::of(&replicas[0]).await, Proxy::of(&replicas[1]).await];
    let first = document::read(first.as_bytes()).unwrap().bundle.anchors;
    let old = anchors(WEST, &first);
    let mut number = 0;
    let mut all_have = async |foreign: &ForeignAnchors| {
        let (one, other) = (
            proxies[0].until(foreign).await,
            proxies[1].until(foreign).await,
        );
        assert_eq!(one, other, "replicas have one number for one bundle");
        assert!(one > number);
        number = one;
    };
    all_have(&old).await;

    let both = anchors(WEST, &west.order("prepare"));
    all_have(&both).await;
    west.order("activate");
    // The server authenticates itself by the new authority.
    let new = anchors(WEST, &west.order("retire"));
    all_have(&new).await;
    assert!(old != new && both != new);

    // The first bundle no longer verifies the server; the record has the last one.
    let restarted = east.replica(&[]).await;
    Proxy::of(&restarted).await.until(&new).await;
    failing(&restarted, "0").await;

    west.order("pretend");
    failing(&replicas[0], "1").await;
    replicas[0]
        .logged("its certificate has the identity [\\\"spiffe://pretended.example/bundle")
        .await;
    Proxy::of(&replicas[0]).await.until(&new).await;

    east.api.delete(LINK);
    all_have(&ForeignAnchors::new()).await;
    let record = east.api.get(RECORD).unwrap();
    assert_eq!(record["data"]["foreign"], "{}");
}

#[tokio::test]
async fn two_meshes_exchange_their_roots_and_a_rotation() {
    let (east, west) = (Cluster::new(EAST).await, Cluster::new(WEST).await);
    let (east_ca, west_ca) = (TestCa::new(), TestCa::new());
    for (cluster, ca) in [(&east, &east_ca), (&west, &west_ca)] {
        cluster.trust(ca.anchor_pem());
        cluster.issue(ca);
        cluster
            .api
            .put(LINK, json!({ "metadata": { "name": "west" } }));
    }
    for (here, there, ca) in [(&east, &west, &west_ca), (&west, &east, &east_ca)] {
        let id = bundle_server_id(there.domain, "linkerd");
        let first = first_bundle(ca.anchor_pem());
        here.put_foreign(&foreign(there.domain, there.endpoint, &id, &first));
    }
    let (at_east, at_west) = (east.serving().await, west.serving().await);
    let mut in_east = Proxy::of(&at_east).await;
    let mut in_west = Proxy::of(&at_west).await;
    in_east.until(&anchors(WEST, west_ca.anchor_pem())).await;
    in_west.until(&anchors(EAST, east_ca.anchor_pem())).await;
    failing(&at_east, "0").await;

    // Old, both, new.
    let next = TestCa::new();
    let both = format!("{}{}", west_ca.anchor_pem(), next.anchor_pem());
    west.trust(&both);
    in_east.until(&anchors(WEST, &both)).await;
    west.issue(&next);
    at_west.logged("Reloaded issuer credentials").await;
    west.trust(next.anchor_pem());
    in_east.until(&anchors(WEST, next.anchor_pem())).await;
    failing(&at_east, "0").await;

    // Without the ConfigMap the trust ends, too.
    let path = west.put_foreign(&foreign(
        EAST,
        east.endpoint,
        &bundle_server_id(EAST, "linkerd"),
        "{}",
    ));
    west.api.delete(&path);
    in_west.until(&ForeignAnchors::new()).await;
}

#[tokio::test]
async fn go_spiffe_fetches_the_bundle_of_the_mesh() {
    if !are_installed(&[PROGRAM]) {
        return;
    }
    let west = Cluster::new(WEST).await;
    let ca = TestCa::new();
    west.trust(ca.anchor_pem());
    west.issue(&ca);
    let replica = west.serving().await;
    Proxy::of(&replica)
        .await
        .until(&ForeignAnchors::new())
        .await;
    let url = format!("https://{}/", west.endpoint);
    let file = west.path("first.json");
    fs::write(&file, first_bundle(ca.anchor_pem())).unwrap();
    let id = bundle_server_id(WEST, "linkerd");
    let fetch = async |id: &str, file: &Path| {
        let mut fetch = command([PROGRAM, "bundle", &url, id]);
        fetch.arg(file);
        let ended = tokio::task::spawn_blocking(move || fetch.output().unwrap());
        ended.await.unwrap()
    };
    let fetched = fetch(&id, &file).await;
    assert!(fetched.status.success(), "{}", output_text(&fetched));
    let bundle: Value = serde_json::from_slice(&fetched.stdout).unwrap();
    assert_eq!(x5c(&bundle), certificates(ca.anchor_pem()));
    let sequence = bundle["spiffe_sequence"].as_u64().unwrap();
    assert!(sequence > 1_000_000_000, "{sequence}");

    let other = format!("spiffe://{WEST}/ns/linkerd/sa/other");
    let refused = fetch(&other, &file).await;
    assert!(!refused.status.success());
    let unrelated = west.path("unrelated.json");
    fs::write(&unrelated, first_bundle(TestCa::new().anchor_pem())).unwrap();
    let refused = fetch(&id, &unrelated).await;
    assert!(!refused.status.success());

    let both = format!("{}{}", ca.anchor_pem(), TestCa::new().anchor_pem());
    west.trust(&both);
    eventually("the bundle with both anchors", async || {
        let fetched = fetch(&id, &file).await;
        let bundle: Value = serde_json::from_slice(&fetched.stdout).ok()?;
        let is_later = bundle["spiffe_sequence"].as_u64()? > sequence;
        (is_later && x5c(&bundle) == certificates(&both)).then_some(())
    })
    .await;
}

fn x5c(bundle: &Value) -> Vec<String> {
    let keys = bundle["keys"].as_array().unwrap().iter();
    keys.map(|key| key["x5c"][0].as_str().unwrap().to_owned())
        .collect()
}

fn certificates(pem: &str) -> Vec<String> {
    let blocks = pem_blocks(pem);
    let blocks = blocks.iter().map(|block| STANDARD.encode(&block.der));
    blocks.collect()
}

#[tokio::test]
async fn domains_that_cannot_be_trusted_are_refused_by_name() {
    let east = Cluster::new(EAST).await;
    let ca = TestCa::new();
    east.trust(ca.anchor_pem());
    east.issue(&ca);
    let first = first_bundle(TestCa::new().anchor_pem());
    let closed = free_address();
    let mut without_link = foreign(EAST, closed, "spiffe://cluster.local/a", &first);
    without_link.link = None;
    east.put_foreign(&without_link);
    let replica = east.replica(&[]).await;
    let own = "is the one of this cluster: roots can differ only where trust domains differ";
    replica.logged(own).await;
    let id = format!("spiffe://{WEST}/bundle");
    let mut west = foreign(WEST, closed, &id, &first);
    east.put_foreign(&west);
    replica
        .logged("Link linkerd-multicluster/west does not exist")
        .await;
    // A server that cannot be reached changes nothing: the first bundle is used.
    east.api
        .put(LINK, json!({ "metadata": { "name": "west" } }));
    let mut proxy = Proxy::of(&replica).await;
    let trusted = document::read(first.as_bytes()).unwrap().bundle.anchors;
    proxy.until(&anchors(WEST, &trusted)).await;
    failing(&replica, "1").await;
    west.bundle = Some("{}".to_owned());
    east.put_foreign(&west);
    replica.logged("data[bundle.json] is refused").await;
    proxy.until(&ForeignAnchors::new()).await;
}

#[test]
fn server_of_the_bundle_needs_a_bundle() {
    let flag = format!("--trust-bundle-addr={}", free_address());
    let mut controller = std::process::Command::new(env!("CARGO_BIN_EXE_mesh-controller"));
    let refused = controller.args(["identity", &flag]).output().unwrap();
    assert!(!refused.status.success());
    let text = output_text(&refused);
    assert!(text.contains("needs --publish-trust-roots"), "{text}");
}

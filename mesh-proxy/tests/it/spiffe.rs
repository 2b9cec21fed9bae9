//! Proxies with identities of the SPIFFE Workload API, as on machines outside Kubernetes, and its
//! server, which is made of go-spiffe (mesh-test-support/workload-api).

use std::os::unix::fs::PermissionsExt;
use std::sync::atomic::{AtomicBool, Ordering};

use mesh_core::endpoint::{Endpoint, TlsPeer};
use mesh_core::identity::Identity;
use mesh_test_support::command::{are_installed, command};
use mesh_test_support::program::Program;
use tempfile::TempDir;

use crate::harness::{HttpApp, Mesh, Pod, WORKLOAD_API, eventually, policies};

const PROGRAM: &str = "mesh-workload-api";

const SERVICE: ([u8; 4], u16) = ([10, 96, 0, 1], 80);
/// An opaque one: each connection of a client is a handshake between the proxies.
const OPAQUE: ([u8; 4], u16) = ([10, 96, 0, 2], 80);
const OK: &str = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";
const CLOSE: &str = "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\nok";

/// A server of the Workload API, with a socket for each identity.
struct WorkloadApi {
    program: Program,
    directory: TempDir,
    commands: usize,
}

impl WorkloadApi {
    /// Returns `None` with an explanation if this machine does not have the program.
    async fn start(ids: &[&str]) -> Option<Self> {
        if !are_installed(&[PROGRAM]) {
            return None;
        }
        let directory = tempfile::tempdir().unwrap();
        // The proxies' user must reach the sockets.
        std::fs::set_permissions(directory.path(), PermissionsExt::from_mode(0o755)).unwrap();
        let mut serve = command([PROGRAM, "serve"]);
        let program = Program::start(serve.arg(directory.path()).args(ids));
        let api = Self {
            program,
            directory,
            commands: 0,
        };
        api.wait().await;
        Some(api)
    }

    /// Has the server do this, and waits until it has. It prints a line when it listens, and one
    /// for each command.
    async fn order(&mut self, command: &str) {
        self.program.write_line(command);
        self.commands += 1;
        self.wait().await;
    }

    async fn wait(&self) {
        eventually("the Workload API has done it", || async {
            self.program.log().lines().count() > self.commands
        })
        .await;
    }

    fn socket(&self, name: &str) -> String {
        format!("{}/{name}.sock", self.directory.path().display())
    }

    /// A pod whose proxy has this identity.
    async fn pod(&self, mesh: &Mesh, id: &str) -> Pod {
        let (_, name) = id.rsplit_once('/').unwrap();
        let socket = format!("unix://{}", self.socket(name));
        let environment = [
            (WORKLOAD_API, socket.as_str()),
            ("IDENTITY_SERVER_ID", id),
            ("IDENTITY_SERVER_NAME", &server_name(name)),
        ];
        mesh.pod(name).meshed_with(&environment).await
    }
}

fn server_name(pod: &str) -> String {
    format!("{pod}.example.org")
}

/// A port of a pod as discovery describes an ExternalWorkload: its identity is not its server name.
fn external(endpoint: Endpoint, pod: &Pod, id: &str) -> Endpoint {
    let tls = TlsPeer {
        id: Identity::parse(id).unwrap(),
        server_name: server_name(&pod.name).into(),
    };
    Endpoint {
        tls: Some(tls),
        ..endpoint
    }
}

async fn certified(pod: &Pod) -> f64 {
    pod.metric(&["control_identity_cert_refreshes_total", "result=\"ok\""])
        .await
}

/// Waits until the proxies have had this number of certificates.
async fn until_certified(pods: [&Pod; 2], times: f64) {
    for pod in pods {
        eventually("another certificate", || async {
            certified(pod).await >= times
        })
        .await;
    }
}

/// Waits until the proxies have logged this number of changed bundles.
async fn until_bundles_changed(pods: [&Pod; 2], times: usize) {
    for pod in pods {
        eventually("changed bundles", || async {
            let log = pod.proxy().log();
            log.matches("Bundles of trust domains changed").count() >= times
        })
        .await;
    }
}

async fn until_api_is(pods: [&Pod; 2], unreachable: f64) {
    for pod in pods {
        eventually("the state of the Workload API", || async {
            pod.metric(&["mesh_proxy_workload_api_unreachable"]).await == unreachable
        })
        .await;
    }
}

#[tokio::test]
async fn identities_and_bundles_rotate_under_load_and_no_request_fails() {
    const SERVER: &str = "spiffe://example.org/server";
    const CLIENT: &str = "spiffe://example.org/client";
    let Some(mut api) = WorkloadApi::start(&[SERVER, CLIENT]).await else {
        return;
    };
    let Some(mesh) = Mesh::new() else { return };
    let server = api.pod(&mesh, SERVER).await;
    let client = api.pod(&mesh, CLIENT).await;
    let both = [&server, &client];
    let _app = HttpApp::start(&server, 8080, OK).await;
    let endpoint = external(policies::meshed(&server, 8080), &server, SERVER);
    mesh.control.service(SERVICE, "web", [endpoint]);
    let opaque = policies::opaque_service("tcp", 80);
    mesh.control.outbound(OPAQUE, opaque);
    let _closing = HttpApp::start(&server, 8081, CLOSE).await;
    let endpoint = external(policies::meshed_opaque(&server, 8081), &server, SERVER);
    mesh.control
        .endpoints(&policies::authority("tcp", 80), vec![endpoint]);

    let over = AtomicBool::new(false);
    let load = async {
        let mut runs = 0;
        while !over.load(Ordering::Relaxed) {
            let load = "h2load --h1 -n 400 -c 4 --rps 50 http://10.96.0.1/";
            let report = client.run(load).await;
            let all = "400 succeeded, 0 failed, 0 errored, 0 timeout";
            assert!(report.contains(all), "{report}");
            assert!(report.contains("400 2xx"), "{report}");
            runs += 1;
        }
        runs
    };
    let handshakes = async {
        let mut made = 0.0;
        while !over.load(Ordering::Relaxed) {
            let answer = client.get(OPAQUE, "web", "/").await;
            assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
            made += 1.0;
        }
        made
    };
    let story = async {
        // The proxies' environment has the anchors of the mesh, which sign none of this.
        for pod in both {
            pod.proxy()
                .logged("chains to none of the mesh's trust anchors")
                .await;
        }
        api.order("renew").await;
        until_certified(both, 2.0).await;
        api.order("prepare").await;
        until_bundles_changed(both, 1).await;
        api.order("activate").await;
        until_certified(both, 3.0).await;
        api.order("retire").await;
        until_bundles_changed(both, 2).await;
        api.order("close").await;
        until_api_is(both, 1.0).await;
        api.order("open").await;
        until_api_is(both, 0.0).await;
        api.order("renew").await;
        until_certified(both, 4.0).await;
        // Refused by the agent, a proxy keeps its certificate, too.
        api.order("forget").await;
        until_api_is(both, 1.0).await;
        over.store(true, Ordering::Relaxed);
    };
    let (runs, made, ()) = tokio::join!(load, handshakes, story);
    assert!(runs > 0);
    let of_server = format!("server_id=\"{SERVER}\"");
    let opened = client
        .metric(&["tcp_open_total", "peer=\"dst\"", &of_server])
        .await;
    assert!(made > 1.0 && opened > made, "{opened} opened for {made}");
    for pod in both {
        pod.wait_for_proxy("/ready").await;
        assert!(
            certified(pod).await == 4.0,
            "a reopened stream renews nothing"
        );
    }
}

#[tokio::test]
async fn policies_admit_spiffe_identities_and_go_spiffe_is_a_peer() {
    const SERVER: &str = "spiffe://example.org/server";
    const CLIENT: &str = "spiffe://example.org/ns/shop/client";
    const GO: &str = "spiffe://example.org/go";
    let Some(api) = WorkloadApi::start(&[SERVER, CLIENT, GO]).await else {
        return;
    };
    let Some(mesh) = Mesh::new() else { return };
    let server = api.pod(&mesh, SERVER).await;
    let client = api.pod(&mesh, CLIENT).await;
    let outsider = mesh.pod("outsider");
    let endpoint = external(policies::meshed(&server, 8080), &server, SERVER);
    mesh.control.service(SERVICE, "web", [endpoint]);
    let mut app = HttpApp::start(&server, 8080, CLOSE).await;
    let admit = |id: &str| {
        let policy = policies::server(policies::detect(), vec![policies::only(id)]);
        mesh.control.server("server", 8080, policy);
    };
    let status_of_client = async |status: &str| {
        eventually("the policy takes effect", || async {
            let answer = client.get(SERVICE, "web", "/").await;
            answer.starts_with(&format!("HTTP/1.1 {status}"))
        })
        .await;
    };
    let go = async || {
        let (socket, addr) = (api.socket("go"), server.addr(8080).to_string());
        let name = server_name("server");
        outsider
            .run([PROGRAM, "get", &socket, &addr, &name, SERVER])
            .await
    };
    admit(CLIENT);
    status_of_client("200").await;
    let request = app.received().await;
    assert_eq!(request.header("l5d-client-id"), [CLIENT]);
    let refused = go().await;
    assert!(refused.starts_with("HTTP/1.1 403"), "{refused}");

    admit(GO);
    status_of_client("403").await;
    let admitted = go().await;
    assert!(admitted.starts_with("HTTP/1.1 200"), "{admitted}");
    for (family, id) in [
        ("inbound_http_authz_deny_total", CLIENT),
        ("inbound_http_authz_allow_total", GO),
    ] {
        let client_id = format!("client_id=\"{id}\"");
        assert!(server.metric(&[family, &client_id]).await >= 1.0);
    }
}

#[tokio::test]
async fn foreign_trust_domain_is_trusted_while_its_bundle_is_there() {
    const SERVER: &str = "spiffe://server.example/server";
    const CLIENT: &str = "spiffe://client.example/client";
    let Some(mut api) = WorkloadApi::start(&[SERVER, CLIENT]).await else {
        return;
    };
    let Some(mesh) = Mesh::new() else { return };
    let server = api.pod(&mesh, SERVER).await;
    let client = api.pod(&mesh, CLIENT).await;
    let opaque = policies::opaque_service("tcp", 80);
    mesh.control.outbound(OPAQUE, opaque);
    let endpoint = external(policies::meshed_opaque(&server, 8080), &server, SERVER);
    mesh.control
        .endpoints(&policies::authority("tcp", 80), vec![endpoint]);
    let mut app = HttpApp::start(&server, 8080, CLOSE).await;
    let until = async |is_served: bool| {
        eventually("connections to the foreign domain", || async {
            let answer = client.get(OPAQUE, "web", "/").await;
            answer.starts_with("HTTP/1.1 200") == is_served
        })
        .await;
    };
    until(false).await;
    assert!(app.is_untouched());
    api.order("federate").await;
    until_bundles_changed([&server, &client], 1).await;
    until(true).await;
    app.received().await;
    api.order("part").await;
    until_bundles_changed([&server, &client], 2).await;
    until(false).await;
}

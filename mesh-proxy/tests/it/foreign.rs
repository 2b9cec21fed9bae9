//! Two meshes with trust domains and roots of their own, whose identity services send the proxies
//! the root of the other one.

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::harness::{ControlPlane, HttpApp, Mesh, Pod, echo, eventually, policies, within};

const SERVICE: ([u8; 4], u16) = ([10, 96, 0, 1], 80);
/// An opaque one: each connection of a client is a handshake between the proxies.
const OPAQUE: ([u8; 4], u16) = ([10, 96, 0, 2], 7000);
const CLOSE: &str = "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\nok";

const EAST: &str = "cluster.local";
const WEST: &str = "west.example";

/// A mesh `east`, and a mesh `west` on the same network.
struct Meshes {
    east: Mesh,
    west: ControlPlane,
}

impl Meshes {
    fn new() -> Option<Self> {
        Some(Self {
            east: Mesh::new()?,
            west: ControlPlane::new(WEST),
        })
    }

    /// Sends all proxies the root of the other mesh.
    fn link(&self, number: u64) {
        let (east, west) = (self.east.control.anchors(), self.west.anchors());
        self.east
            .control
            .send_foreign_anchors(number, &east, &[(WEST, &west)]);
        self.west
            .send_foreign_anchors(number, &west, &[(EAST, &east)]);
    }

    /// Sends all proxies that the other mesh is not trusted any longer.
    fn part(&self, number: u64) {
        for control in [&self.east.control, &self.west] {
            control.send_anchors(number, &control.anchors());
        }
    }
}

/// Has the client's mesh know the server's port 8080 as a Service, and 7000 as an opaque one.
fn discover(client: &Pod, server: &Pod) {
    let control = &client.control;
    control.service(SERVICE, "web", [policies::meshed(server, 8080)]);
    control.outbound(OPAQUE, policies::opaque_service("db", 7000));
    let endpoint = policies::meshed_opaque(server, 7000);
    control.endpoints(&policies::authority("db", 7000), vec![endpoint]);
}

async fn until_received(pods: &[&Pod], number: u64, foreign: usize) {
    for pod in pods {
        let line = format!("number={number} foreign_domains={foreign}");
        pod.proxy().logged(&line).await;
    }
}

async fn status(client: &Pod) -> String {
    let answer = client.get(SERVICE, "web", "/").await;
    answer.lines().next().unwrap_or_default().to_owned()
}

/// Opens a connection to the opaque Service and exchanges a byte. The task ends with the
/// connection.
async fn open_tunnel(client: &Pod) -> JoinHandle<()> {
    let (opened, is_open) = oneshot::channel();
    let task = client.start(async move {
        let mut tcp = TcpStream::connect(std::net::SocketAddr::from(OPAQUE))
            .await
            .unwrap();
        tcp.write_all(b"a").await.unwrap();
        let mut byte = [0];
        tcp.read_exact(&mut byte).await.unwrap();
        opened.send(()).unwrap();
        // The end of the stream, or a reset.
        let ended = tcp.read(&mut byte).await;
        assert!(matches!(ended, Ok(0) | Err(_)), "{ended:?}");
    });
    within("a byte crosses the tunnel", is_open).await.unwrap();
    task
}

#[tokio::test]
async fn requests_cross_both_ways_with_the_identities_of_their_domains_until_the_link_is_removed() {
    let Some(meshes) = Meshes::new() else { return };
    let east = meshes.east.pod("east").meshed().await;
    let west = meshes.east.pod_of(&meshes.west, "west").meshed().await;
    let both = [(&east, &west), (&west, &east)];
    let mut apps = Vec::new();
    for (client, server) in both {
        discover(client, server);
        apps.push(HttpApp::start(server, 8080, CLOSE).await);
        server.listen(7000, echo).await;
        // The policy names the foreign identity.
        let policy = policies::server(policies::detect(), vec![policies::only(&client.identity())]);
        server.control.server(&server.name, 8080, policy);
    }
    for (client, _) in both {
        assert!(!status(client).await.contains("200"));
    }
    assert!(apps.iter_mut().all(HttpApp::is_untouched));

    meshes.link(7);
    until_received(&[&east, &west], 7, 1).await;
    let mut tunnels = Vec::new();
    for ((client, _), app) in both.iter().zip(&mut apps) {
        eventually("requests cross", || async {
            status(client).await == "HTTP/1.1 200 OK"
        })
        .await;
        let request = app.received().await;
        assert_eq!(request.header("l5d-client-id"), [client.identity()]);
        tunnels.push(open_tunnel(client).await);
    }

    meshes.part(8);
    until_received(&[&east, &west], 8, 0).await;
    for tunnel in tunnels {
        within("the tunnel ends", tunnel).await.unwrap();
    }
    for (client, _) in both {
        eventually("requests are refused", || async {
            !status(client).await.contains("200")
        })
        .await;
    }
}

#[tokio::test]
async fn connections_end_where_only_one_side_removes_the_link() {
    let Some(meshes) = Meshes::new() else { return };
    let east = meshes.east.pod("east").meshed().await;
    let west = meshes.east.pod_of(&meshes.west, "west").meshed().await;
    discover(&east, &west);
    west.listen(7000, echo).await;
    for (number, parting) in [(7, &meshes.west), (9, &meshes.east.control)] {
        meshes.link(number);
        until_received(&[&east, &west], number, 1).await;
        let tunnel = open_tunnel(&east).await;
        parting.send_anchors(number + 1, &parting.anchors());
        within("the tunnel ends", tunnel).await.unwrap();
    }
}

#[tokio::test]
async fn root_of_a_domain_issues_no_identity_of_another() {
    let Some(meshes) = Meshes::new() else { return };
    let server = meshes.east.pod("server").meshed().await;
    let client = meshes.east.pod("client").meshed().await;
    let honest = meshes.east.pod_of(&meshes.west, "honest").meshed().await;
    // Its certificate has a name of the other mesh, by the root of its own.
    let name = client.identity();
    let environment = [("IDENTITY_LOCAL_NAME", &*name)];
    let imposter = meshes.east.pod_of(&meshes.west, "imposter");
    let imposter = imposter.meshed_with(&environment).await;
    let mut app = HttpApp::start(&server, 8080, CLOSE).await;
    let mut forged = HttpApp::start(&imposter, 8080, CLOSE).await;
    meshes.link(7);
    // The imposter's own proxy does not accept a domain that it claims to be of.
    until_received(&[&server, &client, &honest], 7, 1).await;
    until_received(&[&imposter], 7, 0).await;
    for client in [&honest, &imposter] {
        discover(client, &server);
    }
    eventually("requests of an honest client cross", || async {
        status(&honest).await == "HTTP/1.1 200 OK"
    })
    .await;
    app.received().await;
    assert!(!status(&imposter).await.contains("200"));
    assert!(app.is_untouched());

    // As a server it claims to be the pod `client`.
    let endpoint = policies::meshed(&imposter, 8080);
    let tls = policies::meshed(&client, 8080).tls;
    let endpoint = mesh_core::endpoint::Endpoint { tls, ..endpoint };
    server.control.service(SERVICE, "web", [endpoint]);
    assert!(!status(&server).await.contains("200"));
    assert!(forged.is_untouched());
}

#[tokio::test]
async fn foreign_root_is_exchanged_while_connections_stay() {
    let Some(meshes) = Meshes::new() else { return };
    // A new certificate every second.
    let environment = [
        ("IDENTITY_MIN_REFRESH", "1s"),
        ("IDENTITY_MAX_REFRESH", "1s"),
    ];
    let east = meshes.east.pod("east").meshed().await;
    let west = meshes.east.pod_of(&meshes.west, "west");
    let west = west.meshed_with(&environment).await;
    discover(&east, &west);
    let _app = HttpApp::start(&west, 8080, CLOSE).await;
    west.listen(7000, echo).await;
    meshes.link(7);
    until_received(&[&east, &west], 7, 1).await;
    let tunnel = open_tunnel(&east).await;
    let east_root = meshes.east.control.anchors();
    let old = meshes.west.anchors();
    let new = meshes.west.rotate();
    let united = format!("{old}{new}");
    for (number, roots) in [(8, &united), (9, &new)] {
        meshes
            .west
            .send_foreign_anchors(number, roots, &[(EAST, &east_root)]);
        meshes
            .east
            .control
            .send_foreign_anchors(number, &east_root, &[(WEST, roots)]);
        until_received(&[&east, &west], number, 1).await;
        eventually("requests by the new root", || async {
            status(&east).await == "HTTP/1.1 200 OK"
        })
        .await;
    }
    assert!(!tunnel.is_finished());
    tunnel.abort();
}

//! Identities that the mesh denies while proxies run: their connections end in both roles, whatever
//! they wait for, and no handshake with them succeeds until they are allowed again.

use std::net::SocketAddr;

use mesh_core::endpoint::{Endpoint, ProtocolHint};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::harness::{HttpApp, Issuing, Mesh, Pod, echo, eventually, policies, within};

const SERVICE: ([u8; 4], u16) = ([10, 96, 0, 1], 80);
/// Opaque ones of `server`: one that echoes, and one that reads nothing.
const ECHO: ([u8; 4], u16) = ([10, 96, 0, 2], 7000);
const SILENT: ([u8; 4], u16) = ([10, 96, 0, 3], 7001);
/// An opaque one of `other` that echoes.
const OTHER: ([u8; 4], u16) = ([10, 96, 0, 4], 7002);
const OK: &str = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";

struct Pods {
    mesh: Mesh,
    client: Pod,
    server: Pod,
    other: Pod,
}

impl Pods {
    async fn start() -> Option<Self> {
        Self::start_with(&[]).await
    }

    /// Starts the client's proxy with these variables.
    async fn start_with(environment: &[(&str, &str)]) -> Option<Self> {
        let mesh = Mesh::new()?;
        let client = mesh.pod("client").meshed_with(environment).await;
        let server = mesh.pod("server").meshed().await;
        let other = mesh.pod("other").meshed().await;
        let control = &mesh.control;
        control.service(SERVICE, "web", [policies::meshed(&server, 8080)]);
        for (service, pod, name) in [
            (ECHO, &server, "echo"),
            (SILENT, &server, "silent"),
            (OTHER, &other, "other"),
        ] {
            let port = service.1;
            control.outbound(service, policies::opaque_service(name, port));
            let endpoint = policies::meshed_opaque(pod, port);
            control.endpoints(&policies::authority(name, port), vec![endpoint]);
        }
        server.listen(ECHO.1, echo).await;
        other.listen(OTHER.1, echo).await;
        let silent = |tcp: TcpStream| async move {
            let _open = tcp;
            std::future::pending::<()>().await;
        };
        server.listen(SILENT.1, silent).await;
        Some(Self {
            mesh,
            client,
            server,
            other,
        })
    }

    /// Sends all proxies a list, and waits until they have it.
    async fn deny(&self, number: u64, entries: &[&str]) {
        self.mesh.control.send_denied(number, entries);
        let line = format!("mesh_denied_identities {}", entries.len());
        for pod in [&self.client, &self.server, &self.other] {
            eventually("the proxy has the list", || async {
                let metrics = pod.metrics().await;
                metrics.lines().any(|it| it == line)
            })
            .await;
        }
    }
}

/// Opens a connection to an opaque Service that echoes. The task ends with the connection, and goes
/// on sending until then if it is `busy`.
async fn open(client: &Pod, service: ([u8; 4], u16), busy: bool) -> JoinHandle<()> {
    let (opened, is_open) = oneshot::channel();
    let task = client.start(async move {
        let mut tcp = TcpStream::connect(SocketAddr::from(service)).await.unwrap();
        let mut byte = [0];
        tcp.write_all(b"a").await.unwrap();
        tcp.read_exact(&mut byte).await.unwrap();
        opened.send(()).unwrap();
        if busy {
            while tcp.write_all(b"a").await.is_ok() && tcp.read_exact(&mut byte).await.is_ok() {}
            return;
        }
        let ended = tcp.read(&mut byte).await;
        assert!(matches!(ended, Ok(0) | Err(_)), "{ended:?}");
    });
    within("a byte crosses", is_open).await.unwrap();
    task
}

/// Sends until nothing more is accepted, to a server that does not read. The task ends with the
/// connection.
async fn block(client: &Pod) -> JoinHandle<()> {
    let (blocked, is_blocked) = oneshot::channel();
    let task = client.start(async move {
        let mut tcp = TcpStream::connect(SocketAddr::from(SILENT)).await.unwrap();
        let chunk = vec![0; 64 * 1024];
        let pause = std::time::Duration::from_millis(500);
        while let Ok(written) = tokio::time::timeout(pause, tcp.write_all(&chunk)).await {
            written.unwrap();
        }
        blocked.send(()).unwrap();
        while tcp.write_all(&chunk).await.is_ok() {}
    });
    within("writes are blocked", is_blocked).await.unwrap();
    task
}

async fn status(client: &Pod) -> String {
    let answer = client.get(SERVICE, "web", "/").await;
    answer.lines().next().unwrap_or_default().to_owned()
}

#[tokio::test]
async fn connections_with_a_denied_peer_end_in_both_roles_until_it_is_allowed() {
    let Some(pods) = Pods::start().await else {
        return;
    };
    let mut app = HttpApp::start(&pods.server, 8080, OK).await;
    let mut number = 1;
    for denied in [&pods.server, &pods.client] {
        // By its client's proxy if the server is denied, and by the server's if the client is.
        let (ending, stays) = if denied.name == "server" {
            (&pods.client, open(&pods.client, OTHER, false).await)
        } else {
            (&pods.server, open(&pods.other, ECHO, false).await)
        };
        let connections = [
            open(&pods.client, ECHO, false).await,
            open(&pods.client, ECHO, true).await,
            block(&pods.client).await,
        ];
        assert_eq!(status(&pods.client).await, "HTTP/1.1 200 OK");
        app.received().await;

        pods.deny(number, &[&denied.identity()]).await;
        for connection in connections {
            within("the connection ends", connection).await.unwrap();
        }
        assert!(!status(&pods.client).await.contains("200"));
        assert!(app.is_untouched());
        for stage in ["established", "handshake"] {
            let labels = format!("stage=\"{stage}\"");
            let parts = ["mesh_revoked_connections_total", "denied_identity", &labels];
            assert!(ending.metric(&parts).await >= 1.0, "{stage}");
        }
        assert!(!stays.is_finished());

        // The list has another entry, which denies none of the pods.
        pods.deny(number + 1, &["*.elsewhere.test"]).await;
        eventually("requests cross again", || async {
            status(&pods.client).await == "HTTP/1.1 200 OK"
        })
        .await;
        app.received().await;
        assert!(!stays.is_finished());
        stays.abort();
        number += 2;
    }
}

#[tokio::test]
async fn idle_http1_connection_to_a_denied_server_is_closed_while_nothing_uses_it() {
    // Nothing else closes the connection.
    let environment = [
        ("OUTBOUND_HTTP1_CONNECTION_POOL_IDLE_TIMEOUT", "1h"),
        ("OUTBOUND_DISCOVERY_IDLE_TIMEOUT", "1h"),
    ];
    let Some(pods) = Pods::start_with(&environment).await else {
        return;
    };
    // Without the hint of HTTP/2 the proxies pool connections of HTTP/1 with mutual TLS.
    let endpoint = Endpoint {
        hint: ProtocolHint::Unknown,
        ..policies::meshed(&pods.server, 8080)
    };
    pods.mesh.control.service(SERVICE, "web", [endpoint]);
    let _app = HttpApp::start(&pods.server, 8080, OK).await;
    assert_eq!(status(&pods.client).await, "HTTP/1.1 200 OK");
    let pooled = [
        "tcp_open_connections{",
        "direction=\"outbound\"",
        "peer=\"dst\"",
        "tls=\"true\"",
        "target_port=\"8080\"",
    ];
    assert_eq!(pods.client.metric(&pooled).await, 1.0);

    pods.deny(1, &[&pods.server.identity()]).await;
    eventually("the idle connection is closed", || async {
        pods.client.metric(&pooled).await == 0.0
    })
    .await;
}

#[tokio::test]
async fn list_is_kept_from_a_service_without_one_and_reaches_a_proxy_that_starts_later() {
    let Some(pods) = Pods::start().await else {
        return;
    };
    let control = &pods.mesh.control;
    let mut app = HttpApp::start(&pods.server, 8080, OK).await;
    let denied = pods.client.identity();
    pods.deny(5, &[&denied]).await;
    let number = async |pod: &Pod, number: u64| {
        let line = format!("number={number} ");
        pod.proxy().logged(&line).await;
    };
    // An earlier version, and a replica that is behind.
    control.send_anchors(6, &control.anchors());
    number(&pods.server, 6).await;
    control.send_denied(4, &[]);
    let refused = "its number 4 is lower than 6";
    pods.server.proxy().logged(refused).await;
    assert!(!status(&pods.client).await.contains("200"));
    assert!(app.is_untouched());

    control.send_denied(7, &[&denied]);
    let late = pods.mesh.pod("late").meshed().await;
    eventually("the new proxy has the list", || async {
        let metrics = late.metrics().await;
        metrics.lines().any(|it| it == "mesh_denied_identities 1")
    })
    .await;
}

#[tokio::test]
async fn proxy_says_that_its_own_identity_is_denied_and_asks_for_certificates_until_it_is_allowed()
{
    let Some(mesh) = Mesh::new() else { return };
    let environment = [
        ("IDENTITY_MIN_REFRESH", "1s"),
        ("IDENTITY_MAX_REFRESH", "1s"),
    ];
    let pod = mesh.pod("denied").meshed_with(&environment).await;
    mesh.control.send_denied(1, &[&pod.identity()]);
    mesh.control.issue(Issuing::Denied);
    let own = "The identity of this proxy is denied";
    pod.proxy().logged(own).await;
    pod.proxy()
        .logged("is denied (ConfigMap linkerd-denied-identities")
        .await;
    pod.metric(&["mesh_own_identity_denied 1"]).await;
    let refreshed = "control_identity_cert_refreshes_total";
    let before = pod.metric(&[refreshed, "result=\"ok\""]).await;
    mesh.control.issue(Issuing::Valid(-60, 3600));
    mesh.control.send_denied(2, &[]);
    pod.metric(&["mesh_own_identity_denied 0"]).await;
    eventually("another certificate", || async {
        pod.metric(&[refreshed, "result=\"ok\""]).await > before
    })
    .await;
}

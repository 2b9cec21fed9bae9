//! The kubelet's requests under a policy that denies all other clients (docs/adr/0188).

use std::net::IpAddr;

use bytes::Bytes;
use futures_util::FutureExt as _;
use mesh_core::policy::inbound::{PortProbes, ProbeClients};

use super::*;
use crate::tests::app::{expect, http2, read, send};
use crate::tests::world::while_time_passes;
use crate::tls::{self, Purpose};
use crate::transport::Io;

/// The kubelet in these tests, as every client outside of the mesh.
const NODE: [IpAddr; 1] = [IpAddr::V4(POD)];

/// Denies all but the probes from every address, and from the node what their port needs.
fn deny_but(probes: PortProbes, node: &[IpAddr], opaque: bool) -> Server {
    let policy = DefaultPolicy::Deny.server_policy(&[], Duration::from_secs(10), opaque);
    let networks = ["0.0.0.0/0".parse().unwrap()];
    let clients = ProbeClients {
        networks: &networks,
        node,
    };
    mesh_api::inbound::to_proto(&policy.admitting(&probes, clients))
}

fn paths(paths: &[&str]) -> PortProbes {
    PortProbes {
        paths: paths.iter().map(|&path| path.to_owned()).collect(),
        ..PortProbes::default()
    }
}

fn grpc() -> PortProbes {
    PortProbes {
        grpc: true,
        ..PortProbes::default()
    }
}

fn https() -> PortProbes {
    PortProbes {
        tls: true,
        ..PortProbes::default()
    }
}

impl Scene {
    /// Sends a request as the kubelet does, on a connection of its own.
    async fn expect(&self, request: &str, status: u16) {
        let mut client = self.proxy.inbound(self.app).await;
        let head = "host: a.example\r\nuser-agent: kube-probe/1.34\r\nconnection: close\r\n\r\n";
        send(&mut client, &format!("{request} HTTP/1.1\r\n{head}")).await;
        expect(&mut client, status).await;
    }

    /// Sends a call of gRPC, and returns the status of HTTP and gRPC.
    async fn call(&self, path: &str) -> (u16, Option<String>) {
        let mut client = http2(self.proxy.inbound(self.app).await).await;
        let request = http::Request::post(format!("http://{}{path}", self.app))
            .header("content-type", "application/grpc")
            .header("te", "trailers")
            .body(())
            .unwrap();
        let (response, mut body) = client.send_request(request, false).unwrap();
        // An empty message.
        body.send_data(Bytes::from_static(&[0; 5]), true).unwrap();
        let (head, mut body) = response.await.unwrap().into_parts();
        let status = head.headers.get("grpc-status");
        read(&mut body).await;
        let status = status.map(|status| status.to_str().unwrap().to_owned());
        (head.status.as_u16(), status)
    }
}

#[test]
fn path_of_probe_is_served_and_others_are_refused() {
    run(async || {
        let probes = paths(&["/healthz", "/a%20b", "/a;b//c/../d"]);
        let (app, scene, _policy) = under(deny_but(probes, &[], false)).await;
        app.named("web");
        scene.expect("GET /healthz", 200).await;
        scene.expect("GET /healthz?verbose=1", 200).await;
        scene.expect("GET /a%20b", 200).await;
        scene.expect("GET /a;b//c/../d", 200).await;
        scene.expect("POST /healthz", 403).await;
        scene.expect("GET /healthz/", 403).await;
        scene.expect("GET /a;b//c/../e", 403).await;
        // The target of a redirect.
        scene.expect("GET /login", 403).await;
    });
}

#[test]
fn health_check_of_grpc_is_served_and_other_calls_are_refused() {
    run(async || {
        let (app, scene, _policy) = under(deny_but(grpc(), &[], false)).await;
        app.named("web");
        let served = scene.call("/grpc.health.v1.Health/Check").await;
        assert_eq!(served, (200, None));
        let refused = (200, Some("7".to_owned()));
        assert_eq!(scene.call("/grpc.health.v1.Health/Watch").await, refused);
        assert_eq!(scene.call("/shop.Cart/Add").await, refused);
        scene.expect("GET /grpc.health.v1.Health/Check", 403).await;
    });
}

#[test]
fn redirected_probe_is_served_from_the_node_only() {
    run(async || {
        for (node, status) in [
            (NODE.as_slice(), 200),
            (&[IpAddr::from([192, 0, 2, 1])], 403),
        ] {
            let policy = deny_but(paths(&["/ready"]), node, false);
            let (app, scene, _policy) = under(policy).await;
            app.named("web");
            scene.expect("GET /ready", 200).await;
            scene.expect("GET /login", status).await;
        }
    });
}

/// Completes a handshake with the application itself.
async fn shake_hands(app: &App, scene: &Scene) {
    const OTHER: &str = "other.test";
    let tcp = scene.proxy.inbound(scene.app).await;
    let credentials = scene.world.credentials(OTHER);
    let accepted = async {
        // The proxy also connects for the client that has closed before the policy arrived.
        let tcp = loop {
            let tcp = app.accept().await;
            if tcp.peek(&mut [0]).await.unwrap() > 0 {
                break tcp;
            }
        };
        let io = Io::plain(tcp);
        let shaken = tls::server::terminate(io, &credentials, false, Purpose::Traffic);
        shaken.await.unwrap().0
    };
    let (mut client, mut server) =
        tokio::join!(scene.world.connected_to(OTHER, WEB, tcp), accepted);
    send(&mut server, "HTTP/1.1 204 No Content\r\n\r\n").await;
    expect(&mut client, 204).await;
}

#[test]
fn probe_over_tls_and_of_opaque_port_is_served_from_the_node() {
    run(async || {
        for policy in [
            deny_but(https(), &NODE, false),
            deny_but(https(), &NODE, true),
        ] {
            let (app, scene, _policy) = under(policy).await;
            shake_hands(&app, &scene).await;
        }
        for probes in [paths(&["/ready"]), grpc()] {
            let (app, scene, _policy) = under(deny_but(probes, &NODE, true)).await;
            app.named("web");
            scene.expect("GET /ready", 200).await;
        }
    });
}

#[test]
fn probe_over_tls_is_refused_from_other_addresses() {
    run(async || {
        let others = [IpAddr::from([192, 0, 2, 1])];
        for node in [&[], others.as_slice()] {
            let (app, scene, _policy) = under(deny_but(https(), node, false)).await;
            let tcp = scene.proxy.inbound(scene.app).await;
            let client = scene.world.connected_to("other.test", WEB, tcp);
            let refused = std::panic::AssertUnwindSafe(client).catch_unwind();
            assert!(while_time_passes(refused).await.is_err());
            assert!(app.accept().now_or_never().is_none());
        }
    });
}

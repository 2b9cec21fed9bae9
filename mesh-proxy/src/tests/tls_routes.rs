//! Connections to destinations whose policy routes the application's own TLS by its server name.

use std::io::ErrorKind;
use std::net::SocketAddr;

use mesh_core::meta::Meta;
use mesh_core::policy::outbound::{
    BackendTarget, Distribution, OutboundProtocol, TcpVerdict, TlsRoute,
};
use mesh_test_support::tls::client_hello;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::answers::{Answers, backend, first, forward, host, service, weighted};
use super::app::{App, rest, unused_addr};
use super::world::{Proxy, WEB, World, run, settle, while_time_passes};

const DST: &str = "10.0.0.7:443";

fn dst() -> SocketAddr {
    DST.parse().unwrap()
}

fn route(name: &str, snis: &[&str], backends: Distribution) -> TlsRoute {
    TlsRoute {
        meta: Meta::new_default(name),
        snis: snis.iter().map(|name| host(name)).collect(),
        backends,
        verdict: TcpVerdict::Forward,
    }
}

/// A proxy whose destination has these routes.
async fn routed(routes: Vec<TlsRoute>) -> (World, Answers, Proxy) {
    let (world, answers) = Answers::start().await;
    answers.policy(dst(), OutboundProtocol::Tls(routes));
    let proxy = world.proxy_with(WEB, &[("DESTINATION_PROFILE_NETWORKS", Some(""))]);
    (world, answers, proxy)
}

/// Sends the first bytes of a client.
async fn client(proxy: &Proxy, bytes: &[u8]) -> TcpStream {
    let mut client = proxy.outbound(dst()).await;
    client.write_all(bytes).await.unwrap();
    client
}

/// The proxy resets the connection: a mere close would be the end of an empty stream.
async fn refused(proxy: &Proxy, bytes: &[u8]) {
    let mut client = client(proxy, bytes).await;
    let mut received = Vec::new();
    let ended = while_time_passes(client.read_to_end(&mut received)).await;
    assert_eq!(ended.unwrap_err().kind(), ErrorKind::ConnectionReset);
    assert!(received.is_empty());
}

fn closed(proxy: &Proxy, route: &str, error: &str) -> u64 {
    let text = String::from_utf8(proxy.registry.encode()).unwrap();
    let of_route = format!("route_name=\"{route}\"");
    let with_error = format!("error=\"{error}\"");
    let lines = text.lines().filter(|line| {
        line.starts_with("outbound_tls_route_close_total")
            && line.contains(&of_route)
            && line.contains(&with_error)
    });
    lines
        .map(|line| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap())
        .sum()
}

#[test]
fn most_specific_server_name_selects_route_and_bytes_are_unchanged() {
    run(async || {
        let apps = [
            App::start().await,
            App::start().await,
            App::start().await,
            App::start().await,
        ];
        let to = |n: usize| first(forward(apps[n].addr));
        let (_world, _answers, proxy) = routed(vec![
            route("any", &[], to(0)),
            route("short", &["*.example"], to(1)),
            route("long", &["*.b.example"], to(2)),
            route("exact", &["A.b.example"], to(3)),
        ])
        .await;
        for (name, at) in [
            ("other.test", 0),
            ("example", 0),
            ("x.example", 1),
            ("B.Example", 1),
            ("x.b.example", 2),
            ("a.B.EXAMPLE", 3),
        ] {
            let mut hello = client_hello(name);
            hello.extend(b"early data");
            let mut client = client(&proxy, &hello).await;
            let mut server = apps[at].accept().await;
            let mut received = vec![0; hello.len()];
            server.read_exact(&mut received).await.unwrap();
            assert_eq!(received, hello, "{name}");
            server.write_all(b"from the server").await.unwrap();
            drop(server);
            assert_eq!(rest(&mut client).await, "from the server", "{name}");
        }
        assert_eq!(proxy.metric("outbound_tls_route_open_total"), 6);
        let tls = "outbound_tcp_protocol_connections_total{protocol=\"tls\"";
        assert_eq!(proxy.metric(tls), 6);
    });
}

#[test]
fn client_hello_in_small_segments_is_routed() {
    run(async || {
        let app = App::start().await;
        let only = route("only", &["a.test"], first(forward(app.addr)));
        let (_world, _answers, proxy) = routed(vec![only]).await;
        let hello = client_hello("a.test");
        let mut client = proxy.outbound(dst()).await;
        client.set_nodelay(true).unwrap();
        for byte in hello.chunks(7) {
            client.write_all(byte).await.unwrap();
            settle().await;
        }
        let mut received = vec![0; hello.len()];
        app.accept().await.read_exact(&mut received).await.unwrap();
        assert_eq!(received, hello);
    });
}

#[test]
fn connection_without_routable_server_name_is_closed() {
    run(async || {
        let app = App::start().await;
        let only = route("only", &["a.test"], first(forward(app.addr)));
        let (_world, _answers, proxy) = routed(vec![only]).await;
        // No route, no TLS, an address instead of a name, and nothing within the time limit.
        refused(&proxy, &client_hello("b.test")).await;
        refused(&proxy, b"GET / HTTP/1.1\r\n\r\n").await;
        refused(&proxy, &client_hello("not a name")).await;
        refused(&proxy, &client_hello("a.test")[..20]).await;
        refused(&proxy, b"").await;
        let errors = "outbound_tcp_errors_total";
        assert_eq!(proxy.metric(errors), 5);
        assert_eq!(proxy.metric("outbound_tls_route_open_total"), 0);
        // A client that closes without sending is not an error.
        drop(proxy.outbound(dst()).await);
        while_time_passes(settle()).await;
        assert_eq!(proxy.metric(errors), 5);
    });
}

/// The bound of detection: a longer ClientHello has no server name.
#[test]
fn endless_client_hello_is_closed() {
    run(async || {
        let app = App::start().await;
        let any = route("any", &[], first(forward(app.addr)));
        let (_world, _answers, proxy) = routed(vec![any]).await;
        // Records of a handshake message that never ends.
        let mut bytes = Vec::new();
        for n in 0..6 {
            bytes.extend([22, 3, 1, 0x40, 0]);
            let mut record = vec![0; 0x4000];
            if n == 0 {
                record[..4].copy_from_slice(&[1, 0, 0xff, 0xff]);
            }
            bytes.extend(record);
        }
        let mut client = proxy.outbound(dst()).await;
        let (mut read, mut write) = client.split();
        let mut answer = Vec::new();
        // The proxy closes with unread bytes, which resets the connection.
        let _reset = tokio::join!(write.write_all(&bytes), read.read_to_end(&mut answer));
        assert!(answer.is_empty());
        assert_eq!(proxy.metric("outbound_tls_route_open_total"), 0);
    });
}

#[test]
fn rejecting_verdicts_close_the_connection_and_are_counted() {
    run(async || {
        let to_nowhere = || first(backend("none", BackendTarget::None));
        let app = App::start().await;
        let mut rejecting = forward(app.addr);
        rejecting.verdict = TcpVerdict::Forbidden;
        let with = |verdict, name: &str| TlsRoute {
            verdict,
            ..route(name, &[&format!("{name}.test")], first(forward(app.addr)))
        };
        let (_world, _answers, proxy) = routed(vec![
            with(TcpVerdict::Forbidden, "forbidden"),
            with(TcpVerdict::Invalid("no such port".into()), "invalid"),
            route("backend", &["backend.test"], first(rejecting)),
            route("missing", &["missing.test"], to_nowhere()),
            route("empty", &["empty.test"], Distribution::Empty),
        ])
        .await;
        for (name, error) in [
            ("forbidden", "forbidden"),
            ("invalid", "invalid_policy"),
            ("backend", "forbidden"),
            ("missing", "invalid_backend"),
            ("empty", "unexpected"),
        ] {
            let mut client = client(&proxy, &client_hello(&format!("{name}.test"))).await;
            // Without waiting.
            assert_eq!(rest(&mut client).await, "", "{name}");
            assert_eq!(closed(&proxy, name, error), 1, "{name}");
        }
    });
}

/// A step of a connection that was answered.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// The client, or the server, sends an alert.
    Client,
    Server,
    ClientReads,
    ServerReads,
    /// Closes its socket. The kernel resets the connection if there are unread bytes.
    ClientCloses,
    ServerCloses,
}

/// Peers that close their sockets completely are reset by what arrives afterwards, as the alert
/// close_notify.
#[test]
fn close_after_the_answer_is_counted_without_error_in_every_order() {
    use Step::{Client, ClientCloses, ClientReads, Server, ServerCloses, ServerReads};
    for (steps, error) in [
        // The client closes first; the server sends close_notify, or more, to a closed socket.
        (&[Client, ClientCloses, ServerReads, ServerCloses][..], ""),
        (
            &[Client, ClientCloses, ServerReads, Server, ServerCloses],
            "",
        ),
        (
            &[
                Client,
                ClientCloses,
                ServerReads,
                Server,
                Server,
                Server,
                ServerCloses,
            ],
            "",
        ),
        // The server closes first.
        (&[Server, ServerCloses, ClientReads, ClientCloses], ""),
        (
            &[Server, ServerCloses, ClientReads, Client, ClientCloses],
            "",
        ),
        (
            &[
                Server,
                ServerCloses,
                ClientReads,
                Client,
                Client,
                Client,
                ClientCloses,
            ],
            "",
        ),
        // The client does not read the server's alert.
        (&[Server, ServerCloses, ClientCloses], ""),
        // A side that resets before the other one has ended has not closed in order.
        (&[Server, ClientCloses, ServerCloses], "unexpected"),
        (&[Client, ServerCloses, ClientCloses], "unexpected"),
    ] {
        run(async || {
            let app = App::start().await;
            let only = route("only", &["a.test"], first(forward(app.addr)));
            let (_world, _answers, proxy) = routed(vec![only]).await;
            let hello = client_hello("a.test");
            let mut client = Some(client(&proxy, &hello).await);
            let mut server = Some(app.accept().await);
            let mut bytes = vec![0; hello.len()];
            let at_server = server.as_mut().unwrap();
            at_server.read_exact(&mut bytes).await.unwrap();
            at_server.write_all(b"answer").await.unwrap();
            let at_client = client.as_mut().unwrap();
            at_client.read_exact(&mut bytes[..6]).await.unwrap();
            for step in steps {
                let (of_client, of_server) = (client.as_mut(), server.as_mut());
                match (step, of_client, of_server) {
                    // The reset that the first alert has caused may have arrived.
                    (Client, Some(client), _) => {
                        let _reset = client.write_all(b"alert").await;
                    }
                    (Server, _, Some(server)) => {
                        let _reset = server.write_all(b"alert").await;
                    }
                    (ClientReads, Some(client), _) => {
                        client.read_exact(&mut bytes[..5]).await.unwrap();
                    }
                    (ServerReads, _, Some(server)) => {
                        server.read_exact(&mut bytes[..5]).await.unwrap();
                    }
                    (ClientCloses, ..) => client = None,
                    (ServerCloses, ..) => server = None,
                    _ => {}
                }
                settle().await;
            }
            drop((client, server));
            // The kernel may need a moment for what closes the connections.
            while_time_passes(async {
                while proxy.metric("outbound_tls_route_close_total") == 0 {
                    settle().await;
                }
            })
            .await;
            assert_eq!(closed(&proxy, "only", error), 1, "{steps:?}");
        });
    }
}

#[test]
fn backends_without_endpoints_receive_no_connections_once_known() {
    run(async || {
        let app = App::start().await;
        let split = weighted([(service("full.ns:443"), 1), (service("empty.ns:443"), 1000)]);
        let (_world, answers, proxy) = routed(vec![route("split", &["a.test"], split)]).await;
        answers.endpoints("full.ns:443", &[app.addr]);
        answers.endpoints("empty.ns:443", &[]);
        let hello = client_hello("a.test");
        // With near certainty, the first connection waits until the fail-fast timeout.
        refused(&proxy, &hello).await;
        for _ in 0..20 {
            let _client = client(&proxy, &hello).await;
            let mut received = vec![0; hello.len()];
            app.accept().await.read_exact(&mut received).await.unwrap();
        }
        assert_eq!(proxy.metric("outbound_tls_balancer_endpoints{"), 1);
        let failed = "outbound_tcp_errors_total";
        assert_eq!(proxy.metric(failed), 1);
    });
}

#[test]
fn another_endpoint_is_tried_if_one_cannot_be_reached() {
    run(async || {
        let app = App::start().await;
        let any = route("any", &[], first(service("web.ns:443")));
        let (_world, answers, proxy) = routed(vec![any]).await;
        answers.endpoints("web.ns:443", &[unused_addr().await, app.addr]);
        for _ in 0..4 {
            let hello = client_hello("a.test");
            let _client = client(&proxy, &hello).await;
            let mut received = vec![0; hello.len()];
            app.accept().await.read_exact(&mut received).await.unwrap();
            assert_eq!(received, hello);
        }
    });
}

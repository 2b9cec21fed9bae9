//! Direct connections between proxies, with a transport header.

use mesh_core::endpoint::ProtocolHint;

use super::app::{App, Client, Speaks, message, send};
use super::world::{CLIENT, World, run};

#[test]
fn http2_peer_receives_http2_transport_header() {
    Speaks::each(async |speaks| {
        let world = World::new().await;
        let app = App::start().await.named("web");
        let web = world.meshed_directly(app, ProtocolHint::Http2).await;
        let client = world.proxy(CLIENT);
        let mut client = Client::new(client.outbound(app).await, speaks).await;
        assert_eq!(client.get().await, (200, "web".to_owned()), "{speaks:?}");
        assert_eq!(web.metric(&header("http/2")), 1, "{speaks:?}");
    });
}

/// HTTP is not announced to a proxy whose port is opaque
/// (<https://github.com/linkerd/linkerd2/issues/9888>).
#[test]
fn http_to_opaque_peer_is_forwarded_without_session_protocol() {
    run(async || {
        let world = World::new().await;
        let app = App::start().await;
        let web = world.meshed_directly(app.addr, ProtocolHint::Opaque).await;
        let client = world.proxy(CLIENT);
        let mut client = client.outbound(app.addr).await;
        send(&mut client, "GET /a HTTP/1.1\r\nhost: web\r\n\r\n").await;
        let (mut app, request) = app.receive().await;
        assert!(request.starts_with("GET /a HTTP/1.1\r\n"), "{request}");
        send(&mut app, "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok").await;
        let response = message(&mut client).await;
        assert!(response.ends_with("\r\n\r\nok"), "{response}");
        assert_eq!(web.metric(&header("")), 1);
    });
}

fn header(session: &str) -> String {
    format!("inbound_tcp_transport_header_connections_total{{session_protocol=\"{session}\"")
}

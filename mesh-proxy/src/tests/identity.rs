//! Client identities, and connections before the first certificate. `crate::identity` tests how
//! certificates are requested and renewed.

use mesh_core::endpoint::ProtocolHint;
use tokio::task::spawn_local;

use super::app::{App, Client, Speaks, send};
use super::world::{CLIENT, POD, WEB, World, pod, run, settle};
use crate::transport::listen;
use crate::worker::{self, Listeners, WorkerParts};

#[test]
fn silent_client_does_not_block_others() {
    run(async || {
        let world = World::new().await;
        let app = App::start().await.named("web");
        let (proxy, _) = world.meshed(app).await;
        let _silent = proxy.inbound(app).await;
        let mut client = Client::new(proxy.inbound(app).await, Speaks::Http1).await;
        assert_eq!(client.get().await, (200, "web".to_owned()));
    });
}

#[test]
fn tls_connections_wait_for_first_certificate() {
    Speaks::each(async |speaks| {
        let world = World::new().await;
        let app = App::start().await.named("web");
        let web = world.uncertified_proxy();
        let bind = |addr| listen::bind(addr, 8, 1).unwrap().remove(0);
        let parts = WorkerParts {
            config: web.context.config.clone(),
            discovery: web.context.discovery.clone(),
            credentials: web.context.credentials.clone(),
            families: web.context.families.clone(),
            shared: web.context.shared.clone(),
            probe_listener: None,
            drain: web.context.drain.clone(),
            listeners: Listeners {
                inbound: bind((POD, 4143).into()),
                outbound: vec![bind((POD, 4140).into())],
            },
        };
        spawn_local(worker::run(parts));
        world.knows(app, pod(app, ProtocolHint::Http2, Some(4143)));
        let client = world.proxy(CLIENT);
        let tcp = client.outbound(app).await;
        let asking = spawn_local(async move { Client::new(tcp, speaks).await.get().await });
        settle().await;
        assert!(!asking.is_finished(), "{speaks:?}");
        web.certified.send(Some(world.credentials(WEB))).unwrap();
        assert_eq!(asking.await.unwrap(), (200, "web".to_owned()), "{speaks:?}");
    });
}

#[test]
fn client_id_header_of_client_is_replaced() {
    const REQUEST: &str = "GET / HTTP/1.1\r\nhost: web\r\nl5d-client-id: forged\r\n\r\n";
    run(async || {
        let world = World::new().await;
        let app = App::start().await;
        let (proxy, _) = world.meshed(app.addr).await;

        let mut plain = proxy.inbound(app.addr).await;
        send(&mut plain, REQUEST).await;
        let (_served, request) = app.receive().await;
        assert!(!request.contains("l5d-client-id"), "{request}");

        let mut meshed = world.connected(proxy.inbound(app.addr).await).await;
        send(&mut meshed, REQUEST).await;
        let request = app.receive().await.1;
        let said = format!("l5d-client-id: {CLIENT}\r\n");
        assert!(
            request.contains(&said) && !request.contains("forged"),
            "{request}"
        );
    });
}

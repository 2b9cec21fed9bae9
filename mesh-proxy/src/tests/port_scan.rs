//! Clients that connect to many ports before they are authorized (docs/adr/0162).

use std::time::Duration;

use tokio::time::advance;

use super::app::{App, Client, Speaks, expect, send};
use super::world::{POD, Proxy, WEB, World, run, settle, while_time_passes};
use crate::inbound::MAX_ENFORCERS;

/// Connects to `count` ports, and closes each connection.
async fn scan(proxy: &Proxy, ports: usize) {
    for port in (1..=u16::MAX).rev().take(ports) {
        if port % 64 == 0 {
            settle().await;
        }
        drop(proxy.inbound((POD, port).into()).await);
    }
    // The last ones wait for the policies of their ports.
    for _ in 0..20 {
        advance(Duration::from_millis(100)).await;
        settle().await;
    }
}

#[test]
fn port_scan_creates_at_most_the_limit_and_is_forgotten_without_a_look_up() {
    run(async || {
        let world = World::new().await;
        let proxy = world.proxy_with(WEB, &[("INBOUND_DEFAULT_POLICY", Some("deny"))]);
        proxy.evict_idle();
        scan(&proxy, MAX_ENFORCERS + 200).await;
        let created = proxy.enforcers();
        assert!((1000..=MAX_ENFORCERS).contains(&created), "{created}");
        // No client connects any more.
        for _ in 0..30 {
            advance(Duration::from_secs(10)).await;
            settle().await;
        }
        assert_eq!(proxy.enforcers(), 0);
    });
}

#[test]
fn connection_beyond_the_kinds_of_clients_is_closed_until_one_of_them_closes() {
    run(async || {
        let world = World::new().await;
        let proxy = world.proxy(WEB);
        let app = App::start().await.named("web");
        let mut held = proxy.hold_enforcers(MAX_ENFORCERS);
        let mut refused = proxy.inbound(app).await;
        assert_eq!(super::app::rest(&mut refused).await, "");
        let counted = "mesh_proxy_refused_total{direction=\"inbound\",protocol=\"tcp\",reason=\"kinds_of_clients\"";
        assert_eq!(proxy.metric(counted), 1);
        held.pop();
        let client = proxy.inbound(app).await;
        let mut client = Client::new(client, Speaks::Http1).await;
        let answer = while_time_passes(client.get()).await;
        assert_eq!(answer, (200, "web".to_owned()));
    });
}

#[test]
fn connection_refused_for_memory_frees_what_is_unused() {
    run(async || {
        let world = World::new().await;
        // Less than the test itself uses.
        let little = ("MESH_PROXY_MAX_MEMORY", Some("8388608"));
        let proxy = world.proxy_with(WEB, &[little]);
        let app = App::start().await.named("web");
        let client = proxy.inbound(app).await;
        let mut client = Client::new(client, Speaks::Http1).await;
        assert_eq!(client.get().await.0, 200);
        scan(&proxy, 100).await;
        assert!(proxy.enforcers() > 1);
        let mut named = proxy.inbound(app).await;
        send(
            &mut named,
            "GET / HTTP/1.1\r\nhost: web.shop.svc.cluster.local\r\n\r\n",
        )
        .await;
        expect(&mut named, 200).await;
        drop(named);
        settle().await;
        assert_eq!(proxy.profiles(), 1);
        assert!(
            !proxy.accepts(|limits| &limits.inbound_connections),
            "memory is short"
        );
        assert_eq!(proxy.enforcers(), 1, "that of the open connection");
        assert_eq!(proxy.profiles(), 0);
        assert_eq!(client.get().await.0, 200);
    });
}

#[test]
fn clients_of_the_application_are_limited_and_freed_like_enforcers() {
    run(async || {
        let world = World::new().await;
        let little = ("MESH_PROXY_MAX_MEMORY", Some("8388608"));
        let denied = ("INBOUND_DEFAULT_POLICY", Some("deny"));
        let proxy = world.proxy_with(WEB, &[little, denied]);
        // A request makes one before it is denied.
        let client = proxy.inbound((POD, 8080).into()).await;
        let mut client = Client::new(client, Speaks::Http1).await;
        assert_eq!(while_time_passes(client.get()).await.0, 403);
        assert_eq!(proxy.app_clients(), 1);
        drop(client);
        settle().await;
        let limit = u16::try_from(MAX_ENFORCERS).unwrap();
        proxy.make_app_clients(limit + 200);
        assert_eq!(proxy.app_clients(), MAX_ENFORCERS);

        assert!(
            !proxy.accepts(|limits| &limits.inbound_connections),
            "memory is short"
        );
        assert_eq!(proxy.app_clients(), 0);

        proxy.evict_idle();
        proxy.make_app_clients(10);
        for _ in 0..30 {
            advance(Duration::from_secs(10)).await;
            settle().await;
        }
        assert_eq!(proxy.app_clients(), 0);
    });
}

/// The application itself may have connected to many addresses.
#[test]
fn outbound_connection_refused_for_memory_frees_what_is_unused() {
    run(async || {
        let world = World::new().await;
        let little = ("MESH_PROXY_MAX_MEMORY", Some("8388608"));
        let proxy = world.proxy_with(WEB, &[little]);
        let fill = async || {
            for _ in 0..10 {
                let app = App::start().await.named("web");
                let client = proxy.outbound(app).await;
                let mut client = Client::new(client, Speaks::Http1).await;
                assert_eq!(while_time_passes(client.get()).await.0, 200);
            }
            settle().await;
            assert!(
                proxy.outbound_cached().0 >= 10,
                "{:?}",
                proxy.outbound_cached()
            );
        };
        fill().await;
        assert!(
            !proxy.accepts(|limits| &limits.outbound_connections),
            "memory is short"
        );
        assert_eq!(proxy.outbound_cached(), (0, 0));

        fill().await;
        proxy.evict_idle();
        for _ in 0..60 {
            advance(Duration::from_secs(10)).await;
            settle().await;
        }
        assert_eq!(proxy.outbound_cached(), (0, 0), "without a look-up");
    });
}

//! Inbound authorization with, before and without responses of the policy service.

use std::net::SocketAddr;
use std::time::Duration;

use mesh_api::proto::inbound::Server;
use mesh_core::policy::inbound::DefaultPolicy;
use tokio::net::TcpStream;
use tokio::task::{JoinHandle, spawn_local};
use tokio::time::advance;

use super::app::{App, Client, Speaks, rest};
use super::world::{POD, Proxy, WEB, World, all_unauthenticated, run, settle};
use crate::tests::fake_control_plane::{ControlPlane, MessageSender};

mod hosts;
mod http_only;
mod paths;
mod probes;
mod revoked;
mod terminating;

/// A policy that denies all clients.
fn deny() -> Server {
    let policy = DefaultPolicy::Deny.server_policy(&[], Duration::from_secs(10), false);
    mesh_api::inbound::to_proto(&policy)
}

/// A pod whose application listens on a port that it does not declare.
struct Scene {
    world: World,
    proxy: Proxy,
    control: ControlPlane,
    app: SocketAddr,
}

impl Scene {
    async fn new(app: SocketAddr) -> Self {
        let (world, control) = World::scripted().await;
        let proxy = world.proxy(WEB);
        Self {
            world,
            proxy,
            control,
            app,
        }
    }

    /// Sends the policy of the application's port.
    async fn asked(&mut self) -> MessageSender<Server> {
        loop {
            let call = self.control.inbound.recv().await.unwrap();
            if call.request.port == u32::from(self.app.port()) {
                return call.stream();
            }
        }
    }

    /// A request on a new connection.
    async fn get(&self, speaks: Speaks) -> JoinHandle<u16> {
        let client = self.proxy.inbound(self.app).await;
        spawn_local(async move { Client::new(client, speaks).await.get().await.0 })
    }

    fn unanswered(&self, policy: &str) -> u64 {
        let family = "mesh_proxy_inbound_unanswered_total";
        self.proxy.metric(&format!("{family}{{policy=\"{policy}\""))
    }
}

/// An application whose port has this policy, and the scene.
async fn under(policy: Server) -> (App, Scene, MessageSender<Server>) {
    let app = App::start().await;
    let mut scene = Scene::new(app.addr).await;
    drop(scene.proxy.inbound(app.addr).await);
    let policies = scene.asked().await;
    policies.send(Ok(policy)).unwrap();
    settle().await;
    (app, scene, policies)
}

/// The application and a client's connection to it, which the policy allows.
async fn allowed() -> (Scene, App, TcpStream, MessageSender<Server>) {
    let app = App::start().await;
    let mut scene = Scene::new(app.addr).await;
    let client = scene.proxy.inbound(app.addr).await;
    let policy = scene.asked().await;
    policy.send(Ok(all_unauthenticated())).unwrap();
    (scene, app, client, policy)
}

#[test]
fn first_connection_to_undeclared_port_waits_for_its_policy() {
    Speaks::each(async |speaks| {
        let mut scene = Scene::new(App::start().await.named("web")).await;
        let asking = scene.get(speaks).await;
        let policy = scene.asked().await;
        advance(Duration::from_millis(900)).await;
        settle().await;
        assert!(!asking.is_finished(), "{speaks:?}");
        policy.send(Ok(deny())).unwrap();
        assert_eq!(asking.await.unwrap(), 403, "{speaks:?}");
        policy.send(Ok(all_unauthenticated())).unwrap();
        while scene.get(speaks).await.await.unwrap() != 200 {}
        assert_eq!(scene.unanswered(""), 0, "{speaks:?}");
    });
}

#[test]
fn port_without_policy_response_has_default_policy_and_is_counted() {
    Speaks::each(async |speaks| {
        let mut scene = Scene::new(App::start().await.named("web")).await;
        let asking = scene.get(speaks).await;
        let policy = scene.asked().await;
        advance(Duration::from_secs(1)).await;
        assert_eq!(asking.await.unwrap(), 200, "{speaks:?}");
        assert_eq!(scene.unanswered("default"), 1, "{speaks:?}");
        let again = scene.get(speaks).await;
        assert_eq!(again.await.unwrap(), 200, "without waiting, {speaks:?}");
        assert_eq!(scene.unanswered("default"), 2, "{speaks:?}");
        policy.send(Ok(deny())).unwrap();
        while scene.get(speaks).await.await.unwrap() != 403 {}
    });
}

#[test]
fn invalid_policy_denies_clients() {
    Speaks::each(async |speaks| {
        let mut scene = Scene::new(App::start().await.named("web")).await;
        let asking = scene.get(speaks).await;
        let policy = scene.asked().await;
        policy.send(Ok(all_unauthenticated())).unwrap();
        assert_eq!(asking.await.unwrap(), 200, "{speaks:?}");
        let unreadable = Server {
            protocol: None,
            ..all_unauthenticated()
        };
        policy.send(Ok(unreadable)).unwrap();
        while scene.get(speaks).await.await.unwrap() != 403 {}
        policy.send(Ok(all_unauthenticated())).unwrap();
        while scene.get(speaks).await.await.unwrap() != 200 {}
    });
}

#[test]
fn connection_beyond_undeclared_port_limit_is_closed_and_counted() {
    run(async || {
        let world = World::new().await;
        let proxy = world.proxy(WEB);
        let mut port = 10_000;
        while let Ok(used) = proxy.context.discovery.inbound(port) {
            assert!(used.try_acquire());
            port += 1;
        }
        let mut client = proxy.inbound((POD, port).into()).await;
        assert_eq!(rest(&mut client).await, "");
        let refused = proxy.metric(
            "mesh_proxy_refused_total{direction=\"inbound\",protocol=\"tcp\",reason=\"ports\"",
        );
        assert_eq!(refused, 1);
    });
}

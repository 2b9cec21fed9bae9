//! Connections of clients to a pod that is being deleted.

use mesh_api::proto::inbound::Server;
use mesh_core::policy::inbound::{DefaultPolicy, ServerPolicy};

use super::*;
use crate::tests::app::{ask, expect, get, head, http2, message, send, status_of};
use crate::tests::world::while_time_passes;

const GET: &str = "GET / HTTP/1.1\r\nhost: web\r\n\r\n";
const OK: &str = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";

/// A policy that allows all clients, of a pod that is being deleted.
fn terminating() -> Server {
    let policy = DefaultPolicy::AllUnauthenticated;
    mesh_api::inbound::to_proto(&ServerPolicy {
        is_terminating: true,
        ..policy.server_policy(&[], Duration::from_secs(10), false)
    })
}

/// Responds to a request on a connection of the application.
async fn answer(served: &mut TcpStream) {
    head(served).await;
    send(served, OK).await;
}

#[test]
fn idle_http1_connections_are_closed_when_pod_is_deleted() {
    run(async || {
        let (scene, app, mut client, policy) = allowed().await;
        send(&mut client, GET).await;
        let (mut served, _) = app.receive().await;
        send(&mut served, OK).await;
        expect(&mut client, 200).await;
        policy.send(Ok(terminating())).unwrap();
        assert_eq!(rest(&mut client).await, "");

        // The client's node has not yet removed the pod from the Service.
        let mut late = scene.proxy.inbound(app.addr).await;
        send(&mut late, GET).await;
        answer(&mut served).await;
        let response = message(&mut late).await;
        assert!(!response.contains("connection"), "{response}");
        assert_eq!(while_time_passes(rest(&mut late)).await, "");
    });
}

#[test]
fn request_in_flight_is_answered_with_connection_close_when_pod_is_deleted() {
    run(async || {
        let (_scene, app, mut client, policy) = allowed().await;
        send(&mut client, GET).await;
        let (mut served, _) = app.receive().await;
        policy.send(Ok(terminating())).unwrap();
        settle().await;
        send(&mut served, OK).await;
        let response = rest(&mut client).await;
        assert!(response.starts_with("HTTP/1.1 200 "), "{response}");
        assert!(response.contains("connection: close\r\n"), "{response}");
    });
}

#[test]
fn http2_connections_accept_no_more_streams_when_pod_is_deleted() {
    run(async || {
        let mut scene = Scene::new(App::start().await.named("web")).await;
        let mut client = http2(scene.proxy.inbound(scene.app).await).await;
        let asking = ask(&mut client, get());
        let policy = scene.asked().await;
        policy.send(Ok(all_unauthenticated())).unwrap();
        assert_eq!(status_of(asking).await, 200);
        policy.send(Ok(terminating())).unwrap();
        while client.clone().ready().await.is_ok() {
            tokio::task::yield_now().await;
        }
    });
}

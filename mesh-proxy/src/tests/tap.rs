//! Requests through proxies, as an observer sees them.

use hyper::client::conn::http2::handshake;
use hyper_util::rt::{TokioExecutor, TokioIo};
use mesh_api::proto::tap::TapEvent as Message;
use mesh_api::proto::tap::tap_client::TapClient;
use mesh_core::labels::Labels;
use mesh_core::tap::{
    TapDirection, TapEvent, TapEventKind, TapFilter, TapRequest, TapStreamEnd, TextFilter,
};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::spawn_local;
use tonic::{Code, Status};

use super::app::{App, Client, Speaks};
use super::world::{CLIENT, WEB, World, run, while_time_passes};
use crate::transport::Io;

const OBSERVER: &str = "tap.linkerd-viz.serviceaccount.identity.linkerd.cluster.local";

/// Subscribes over a connection.
async fn observe(io: Io, request: &TapRequest) -> Result<tonic::Streaming<Message>, Status> {
    let (sender, connection) = handshake(TokioExecutor::new(), TokioIo::new(io))
        .await
        .unwrap();
    spawn_local(connection);
    let service = tower::service_fn(move |request| sender.clone().send_request(request));
    let request = mesh_api::tap::request_to_proto(request);
    let response = TapClient::with_origin(service, "http://proxy".parse().unwrap())
        .observe(request)
        .await?;
    Ok(response.into_inner())
}

fn everything(limit: u32) -> TapRequest {
    TapRequest {
        limit,
        filter: TapFilter::All(Vec::new()),
        with_headers: false,
    }
}

async fn next(events: &mut tonic::Streaming<Message>) -> Option<TapEvent> {
    let message = events.message().await.unwrap()?;
    Some(mesh_api::tap::event(message).unwrap())
}

#[test]
fn observer_sees_a_request_at_both_proxies() {
    run(async || {
        let world = World::new().await;
        let app = App::start().await.named("web");
        let (server, addr) = world.meshed(app).await;
        let client = world.proxy(CLIENT);
        let mut taps = Vec::new();
        for (name, proxy) in [(CLIENT, &client), (WEB, &server)] {
            let tcp = TcpStream::connect(proxy.tap(OBSERVER).await).await.unwrap();
            let io = world.connected_to(name, OBSERVER, tcp).await;
            taps.push(observe(io, &everything(1)).await.unwrap());
        }
        let mut sender = Client::new(client.outbound(addr).await, Speaks::Http1).await;
        assert_eq!(sender.get().await, (200, "web".to_owned()));

        let mut seen = Vec::new();
        for mut tap in taps {
            let mut events = Vec::new();
            // Events wait a little for others.
            while let Some(event) = while_time_passes(next(&mut tap)).await {
                events.push(event);
            }
            seen.push(events);
        }
        for (events, direction) in seen
            .iter()
            .zip([TapDirection::Outbound, TapDirection::Inbound])
        {
            let [request, response, end] = &events[..] else {
                panic!("{events:?}");
            };
            assert_eq!(request.context.direction, direction);
            assert!(matches!(&request.kind, TapEventKind::Request { path, .. } if path == "/"));
            assert!(
                matches!(&response.kind, TapEventKind::Response { status, .. } if *status == 200)
            );
            let TapEventKind::End {
                end,
                response_bytes,
                ..
            } = &end.kind
            else {
                panic!("{end:?}");
            };
            assert_eq!((*end, *response_bytes), (TapStreamEnd::Complete, 3));
        }
        let [outbound, inbound] = [0, 1].map(|proxy: usize| seen[proxy][0].context.clone());
        assert_eq!(outbound.destination, addr);
        assert_eq!(outbound.destination_labels.get("server_id"), Some(WEB));
        let tls = Labels::from([("tls", "true"), ("client_id", CLIENT)]);
        assert_eq!(inbound.source_labels, tls);
        assert_eq!(
            inbound.destination_labels.get("srv_name"),
            Some("all-unauthenticated")
        );
    });
}

#[test]
fn only_the_observer_may_subscribe() {
    run(async || {
        let world = World::new().await;
        let proxy = world.proxy(WEB);
        let addr = proxy.tap(OBSERVER).await;
        let connect = async || TcpStream::connect(addr).await.unwrap();
        let denied = observe(
            world.connected_as(CLIENT, connect().await).await,
            &everything(1),
        )
        .await;
        let denied = denied.unwrap_err();
        assert_eq!(denied.code(), Code::Unauthenticated);
        assert!(denied.message().contains(CLIENT), "{denied}");
        let plain = observe(Io::plain(connect().await), &everything(1))
            .await
            .unwrap_err();
        assert_eq!(plain.code(), Code::Unauthenticated);
        assert!(plain.message().contains("no mTLS"), "{plain}");
        assert!(!proxy.context.shared.tap.is_active());

        let io = world.connected_as(OBSERVER, connect().await).await;
        let invalid = observe(io, &everything(0)).await.unwrap_err();
        assert_eq!(invalid.code(), Code::InvalidArgument);
        assert!(invalid.message().contains("limit"), "{invalid}");
    });
}

#[test]
fn observer_that_leaves_ends_its_subscription() {
    run(async || {
        let world = World::new().await;
        let proxy = world.proxy(WEB);
        let tcp = TcpStream::connect(proxy.tap(OBSERVER).await).await.unwrap();
        let io = world.connected_as(OBSERVER, tcp).await;
        let never = TapRequest {
            filter: TapFilter::Path(TextFilter::Exact("/never".to_owned())),
            ..everything(1)
        };
        let events = observe(io, &never).await.unwrap();
        let tap = &proxy.context.shared.tap;
        assert!(tap.is_active());
        drop(events);
        while tap.is_active() {
            tokio::task::yield_now().await;
        }
    });
}

/// As the same flood of any other port. An observer is not trusted with more.
#[test]
fn flood_of_settings_ends_the_connection() {
    run(async || {
        let world = World::new().await;
        let proxy = world.proxy(WEB);
        let addr = proxy.tap(OBSERVER).await;
        for is_observer in [false, true] {
            let tcp = TcpStream::connect(addr).await.unwrap();
            let mut io = if is_observer {
                world.connected_as(OBSERVER, tcp).await
            } else {
                Io::plain(tcp)
            };
            let settings = [0, 0, 0, 4, 0, 0, 0, 0, 0];
            let flood = [
                b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec(),
                settings.repeat(200),
            ];
            io.write_all(&flood.concat()).await.unwrap();
            io.flush().await.unwrap();
            let mut received = Vec::new();
            let _reset = while_time_passes(io.read_to_end(&mut received)).await;
            // GOAWAY with ENHANCE_YOUR_CALM.
            let is_calmed = |frame: &[u8]| frame[3] == 7 && frame[13..] == [0, 0, 0, 11];
            assert!(received.windows(17).any(is_calmed), "{is_observer}");
        }
    });
}

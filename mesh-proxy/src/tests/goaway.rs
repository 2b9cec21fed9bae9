//! Streams that a server has not processed, and responses that it does not complete: HTTP/2 and
//! gRPC clients learn of it through one or two proxies as they do without any.

use h2::client::SendRequest;
use h2::{Reason, RecvStream, SendStream};
use mesh_core::endpoint::ProtocolHint;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::spawn_local;

use super::app::{App, Pending, Stream, expect, http2, read, send, status_of, streams};
use super::world::{CLIENT, Proxy, WEB, World, pod, run};

/// The proxies between a client and the application.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Path {
    Inbound,
    Outbound,
    Both,
}

/// A client and the proxies on its path to an application.
struct Scene {
    tcp: Option<TcpStream>,
    _world: World,
    _proxies: Vec<Proxy>,
}

impl Path {
    fn each(test: impl AsyncFn(Scene, App) + Sync) {
        for path in [Self::Inbound, Self::Outbound, Self::Both] {
            run(async || {
                let app = App::start().await;
                test(path.scene(&app).await, app).await;
            });
        }
    }

    async fn scene(self, app: &App) -> Scene {
        let world = World::new().await;
        let (tcp, proxies) = match self {
            Self::Inbound => {
                let proxy = world.proxy(WEB);
                (proxy.inbound(app.addr).await, vec![proxy])
            }
            Self::Outbound => {
                let proxy = world.proxy(CLIENT);
                (proxy.outbound(app.addr).await, vec![proxy])
            }
            Self::Both => {
                let (web, addr) = world.meshed(app.addr).await;
                let proxy = world.proxy(CLIENT);
                (proxy.outbound(addr).await, vec![proxy, web])
            }
        };
        Scene {
            tcp: Some(tcp),
            _world: world,
            _proxies: proxies,
        }
    }
}

impl Scene {
    async fn http2(&mut self) -> SendRequest<bytes::Bytes> {
        http2(self.tcp.take().unwrap()).await
    }
}

/// A call that the client has not completed.
fn call(client: &mut SendRequest<bytes::Bytes>) -> (Pending, SendStream<bytes::Bytes>) {
    let request = http::Request::post("http://web/service/method")
        .header("te", "trailers")
        .header("content-type", "application/grpc")
        .body(())
        .unwrap();
    let (response, body) = client.send_request(request, false).unwrap();
    (spawn_local(response), body)
}

/// The kind and stream of the next frame.
async fn frame(io: &mut impl Stream) -> (u8, u32) {
    let mut head = [0; 9];
    io.read_exact(&mut head).await.unwrap();
    let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
    io.read_exact(&mut vec![0; length as usize]).await.unwrap();
    let stream = u32::from_be_bytes([head[5], head[6], head[7], head[8]]);
    (head[3], stream)
}

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const NO_SETTINGS: [u8; 9] = [0, 0, 0, 4, 0, 0, 0, 0, 0];

/// Begins a connection as a server, and reads frames up to this one of the first stream.
async fn begin(io: &mut impl Stream, kind: u8) {
    io.read_exact(&mut [0; 24]).await.unwrap();
    io.write_all(&NO_SETTINGS).await.unwrap();
    io.flush().await.unwrap();
    while frame(io).await != (kind, 1) {}
}

async fn accept_until(app: &App, kind: u8) -> TcpStream {
    let mut served = app.accept().await;
    begin(&mut served, kind).await;
    served
}

/// Ends the connection without having processed a stream.
const GOAWAY: [u8; 17] = [0, 0, 8, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
const REFUSED_STREAM: [u8; 13] = [0, 0, 4, 3, 0, 0, 0, 0, 1, 0, 0, 0, 7];

/// The library of the client repeats it then.
#[test]
fn call_that_the_server_has_not_processed_is_refused() {
    for ending in [&GOAWAY[..], &REFUSED_STREAM] {
        Path::each(async |mut scene, app| {
            let mut client = scene.http2().await;
            let (asking, mut body) = call(&mut client);
            body.send_data("message".into(), true).unwrap();
            let mut served = accept_until(&app, DATA).await;
            served.write_all(ending).await.unwrap();
            let error = asking.await.unwrap().unwrap_err();
            assert_eq!(error.reason(), Some(Reason::REFUSED_STREAM), "{error}");
        });
    }
}

/// An HTTP/1 client has no such signal.
#[test]
fn http1_request_with_a_body_that_the_peers_proxy_has_not_processed_gets_502() {
    run(async || {
        let (world, app) = (World::new().await, App::start().await);
        world.knows(app.addr, pod(app.addr, ProtocolHint::Http2, None));
        let proxy = world.proxy(CLIENT);
        let mut client = proxy.outbound(app.addr).await;
        let post = "POST / HTTP/1.1\r\nhost: web\r\ncontent-length: 2\r\n\r\nhi";
        send(&mut client, post).await;
        let mut served = world.terminated(app.accept().await).await;
        begin(&mut served, DATA).await;
        served.write_all(&GOAWAY).await.unwrap();
        served.flush().await.unwrap();
        expect(&mut client, 502).await;
    });
}

/// The client has sent the headers of the call, and its first message comes later.
#[test]
fn call_whose_body_is_untouched_is_sent_again() {
    Path::each(async |mut scene, app| {
        let mut client = scene.http2().await;
        let (asking, mut body) = call(&mut client);
        let mut served = accept_until(&app, HEADERS).await;
        served.write_all(&GOAWAY).await.unwrap();
        let mut calls = streams(app.accept().await).await;
        let (request, mut respond) = calls.recv().await.unwrap();
        body.send_data("message".into(), true).unwrap();
        assert_eq!(read(&mut request.into_body()).await, "message");
        respond
            .send_response(http::Response::new(()), true)
            .unwrap();
        assert_eq!(status_of(asking).await, 200);
    });
}

/// `:status: 200` and this content type, and a message of five bytes.
fn begun(content_type: &str) -> Vec<u8> {
    // Index 8 of the static table, and a literal field whose name has index 31.
    let mut fields = vec![0x88, 0x0f, 0x10, content_type.len() as u8];
    fields.extend_from_slice(content_type.as_bytes());
    let mut frames = vec![0, 0, fields.len() as u8, 1, 4, 0, 0, 0, 1];
    frames.extend(fields);
    frames.extend([0, 0, 5, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0]);
    frames
}

/// A response to a call that has begun, after whose first message the server's connection breaks.
async fn broken_off(scene: &mut Scene, app: &App, content_type: &str) -> RecvStream {
    let mut client = scene.http2().await;
    let (asking, _body) = call(&mut client);
    let mut served = accept_until(app, HEADERS).await;
    served.write_all(&begun(content_type)).await.unwrap();
    let mut body = asking.await.unwrap().unwrap().into_body();
    assert_eq!(body.data().await.unwrap().unwrap().len(), 5);
    drop(served);
    body
}

#[test]
fn grpc_call_whose_server_goes_away_is_unavailable() {
    for content_type in ["application/grpc", "application/grpc+proto"] {
        Path::each(async |mut scene, app| {
            let mut body = broken_off(&mut scene, &app, content_type).await;
            assert!(body.data().await.is_none());
            let trailers = body.trailers().await.unwrap().unwrap();
            assert_eq!(trailers["grpc-status"], "14");
            assert!(!trailers["grpc-message"].is_empty());
        });
    }
}

/// With trailers it would look complete.
#[test]
fn broken_response_that_is_not_grpc_is_reset() {
    for content_type in ["text/plain", "application/grpc-web"] {
        Path::each(async |mut scene, app| {
            let mut body = broken_off(&mut scene, &app, content_type).await;
            assert!(body.data().await.unwrap().is_err());
        });
    }
}

//! Applications that stop while their proxy, a native sidecar, keeps running. Clients must observe
//! what the application itself would have shown them.

use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt as _;
use h2::client::{ResponseFuture, SendRequest};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::{mpsc, oneshot};
use tokio::task::{JoinHandle, spawn_local};
use tokio::time::advance;

use super::app::{
    App, Calls, Client, Speaks, ask, expect, get, head, http2, message, read, reset, respond, rest,
    send, status_of,
};
use super::world::{Proxy, WEB, World, run, settle, while_time_passes};

const GET: &str = "GET / HTTP/1.1\r\nhost: web\r\n\r\n";
const OK: &str = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";
const LAST: &str = "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\nok";

/// Runs a test with a proxy, its application, and the connection of a client outside the mesh.
fn run_unmeshed(test: impl AsyncFn(&Proxy, App, TcpStream) + Sync) {
    run(async || {
        let world = World::new().await;
        let proxy = world.proxy(WEB);
        let app = App::start().await;
        let client = proxy.inbound(app.addr).await;
        test(&proxy, app, client).await;
    });
}

/// Runs a test with an application and the HTTP/2 connection of a peer to its proxy.
fn run_meshed(test: impl AsyncFn(App, SendRequest<Bytes>) + Sync) {
    run(async || {
        let world = World::new().await;
        let proxy = world.proxy(WEB);
        let app = App::start().await;
        let tls = world.connected(proxy.inbound(app.addr).await).await;
        test(app, http2(tls).await).await;
    });
}

/// One request and its response over a new connection to the application.
async fn first(client: &mut TcpStream, app: &App, answer: &str) -> TcpStream {
    send(client, GET).await;
    let (mut served, _) = app.receive().await;
    send(&mut served, answer).await;
    let response = expect(client, 200).await;
    assert!(!response.contains("connection"), "{response}");
    served
}

/// The application no longer listens. Another test that starts a program holds a copy of the
/// listener until that program has begun.
async fn stop(app: App) {
    let addr = app.addr;
    drop(app);
    while TcpStream::connect(addr).await.is_ok() {
        settle().await;
    }
}

async fn time_passes(seconds: u64) {
    for _ in 0..seconds * 10 {
        advance(Duration::from_millis(100)).await;
        settle().await;
    }
}

/// Another request and its response over the same connections.
async fn again(client: &mut TcpStream, served: &mut TcpStream, answer: &str) -> String {
    send(client, GET).await;
    head(served).await;
    send(served, answer).await;
    message(client).await
}

/// The last response on a connection to the client, which is then closed.
async fn assert_last(client: &mut TcpStream) {
    let response = rest(client).await;
    assert!(response.starts_with("HTTP/1.1 200 "), "{response}");
    assert!(response.contains("connection: close\r\n"), "{response}");
}

#[test]
fn idle_http1_connections_are_closed_when_application_stops() {
    run_unmeshed(async |proxy, app, mut one| {
        let mut served = first(&mut one, &app, OK).await;
        let mut two = proxy.inbound(app.addr).await;
        again(&mut two, &mut served, OK).await;
        stop(app).await;
        drop(served);
        assert_eq!(rest(&mut one).await, "");
        assert_eq!(rest(&mut two).await, "");
    });
}

#[test]
fn busy_http1_connections_are_closed_after_response_when_application_stops() {
    run_unmeshed(async |proxy, app, mut busy| {
        let mut idle = proxy.inbound(app.addr).await;
        send(&mut busy, GET).await;
        let (mut answering, _) = app.receive().await;
        let served = first(&mut idle, &app, OK).await;
        stop(app).await;
        drop(served);
        assert_eq!(rest(&mut idle).await, "");
        send(&mut answering, OK).await;
        assert_last(&mut busy).await;
    });
}

#[test]
fn last_response_of_stopping_application_closes_client_connection() {
    run_unmeshed(async |_, app, mut client| {
        let mut served = first(&mut client, &app, OK).await;
        send(&mut client, GET).await;
        head(&mut served).await;
        stop(app).await;
        send(&mut served, LAST).await;
        assert_last(&mut client).await;
    });
}

#[test]
fn application_that_closes_one_connection_keeps_its_clients() {
    run_unmeshed(async |_, app, mut client| {
        let mut served = first(&mut client, &app, OK).await;
        // First an idle connection, then one after its response.
        for how in [None, Some(LAST)] {
            if let Some(last) = how {
                let response = again(&mut client, &mut served, last).await;
                assert!(!response.contains("connection"), "{response}");
            }
            drop(served);
            // The proxy has probed the listener, and uses the probe's connection.
            served = while_time_passes(app.accept()).await;
            again(&mut client, &mut served, OK).await;
        }
    });
}

/// An HTTP/2 application that stops gracefully: it closes its listener and sends GOAWAY.
struct Http2App {
    stop: oneshot::Sender<()>,
    calls: Calls,
    serving: JoinHandle<()>,
}

impl Http2App {
    fn serve(app: App) -> Self {
        let (stop, stopped) = oneshot::channel();
        let (called, calls) = mpsc::unbounded_channel();
        let serving = spawn_local(async move {
            let mut connection = h2::server::handshake(app.accept().await).await.unwrap();
            let mut stopped = stopped.fuse();
            let mut app = Some(app);
            loop {
                tokio::select! {
                    _ = &mut stopped, if app.is_some() => {
                        app = None;
                        connection.graceful_shutdown();
                    }
                    call = connection.accept() => match call {
                        Some(Ok(call)) => called.send(call).unwrap(),
                        _ => return,
                    }
                }
            }
        });
        Self {
            stop,
            calls,
            serving,
        }
    }
}

#[test]
fn http2_connections_accept_no_streams_when_application_stops() {
    run_unmeshed(async |_, app, client| {
        let mut app = Http2App::serve(app);
        let mut client = http2(client).await;
        let asking = ask(&mut client, get());
        let (_, answer) = app.calls.recv().await.unwrap();
        let mut body = respond(answer);
        body.send_data("begun, ".into(), false).unwrap();
        let mut response = asking.await.unwrap().unwrap().into_body();
        app.stop.send(()).unwrap();
        gone_away(&client).await;
        body.send_data("finished".into(), true).unwrap();
        assert_eq!(read(&mut response).await, "begun, finished");
        app.serving.await.unwrap();
    });
}

/// Waits until a client may open no more streams.
async fn gone_away(client: &SendRequest<Bytes>) {
    while client.clone().ready().await.is_ok() {
        tokio::task::yield_now().await;
    }
}

/// HTTP/1 clients retry an idempotent request whose connection was closed before a response.
#[test]
fn reused_connection_is_closed_without_response_when_application_is_gone() {
    run_unmeshed(async |_, app, mut client| {
        // The application keeps no connection, so the proxy cannot detect that it stops.
        drop(first(&mut client, &app, LAST).await);
        stop(app).await;
        settle().await;
        send(&mut client, GET).await;
        assert_eq!(rest(&mut client).await, "");
    });
}

/// The application has accepted the connection, and exits before it responds.
#[test]
fn connection_is_closed_without_response_when_application_exits_during_request() {
    run_unmeshed(async |_, app, mut client| {
        drop(first(&mut client, &app, LAST).await);
        send(&mut client, GET).await;
        let (served, _) = app.receive().await;
        stop(app).await;
        drop(served);
        assert_eq!(rest(&mut client).await, "");
    });
}

#[test]
fn stream_on_reused_connection_is_refused_when_application_is_gone() {
    run_unmeshed(async |_, app, client| {
        let mut app = Http2App::serve(app);
        let mut client = http2(client).await;
        let asking = ask(&mut client, get());
        let (_, answer) = app.calls.recv().await.unwrap();
        respond(answer).send_data("ok".into(), true).unwrap();
        asking.await.unwrap().unwrap();
        // Immediately, before the proxy can have detected it.
        app.serving.abort();
        let (response, _) = client.send_request(get(), true).unwrap();
        let error = response.await.unwrap_err();
        let is_repeated = error.is_go_away() || error.reason() == Some(h2::Reason::REFUSED_STREAM);
        assert!(is_repeated, "{error}");
        gone_away(&client).await;
    });
}

/// For a client, an application that never listened must not look like a closed connection.
#[test]
fn first_request_gets_502_when_application_does_not_listen() {
    Speaks::each(async |speaks| {
        let world = World::new().await;
        let proxy = world.proxy(WEB);
        let app = App::start().await;
        let addr = app.addr;
        stop(app).await;
        let mut client = Client::new(proxy.inbound(addr).await, speaks).await;
        assert_eq!(client.get().await.0, 502, "{speaks:?}");
    });
}

/// Peers receive what they need to retry the request on another endpoint.
#[test]
fn mesh_peers_get_response_when_application_is_gone() {
    run_meshed(async |app, mut client| {
        let asking = ask(&mut client, of_http1());
        let (mut served, _) = app.receive().await;
        send(&mut served, LAST).await;
        assert_eq!(status_of(asking).await, 200);
        stop(app).await;
        drop(served);
        settle().await;
        let (response, _) = client.send_request(of_http1(), true).unwrap();
        let response = response.await.unwrap();
        assert_eq!(response.status(), 502);
        assert_eq!(response.headers()["l5d-proxy-undelivered"], "unsent");
    });
}

/// A peer's second request, whose connection the application closes after it has kept it.
async fn lost_on_a_kept_connection(app: &App, client: &mut SendRequest<Bytes>) -> ResponseFuture {
    let asking = ask(client, of_http1());
    let (mut served, _) = app.receive().await;
    send(&mut served, OK).await;
    let mut response = asking.await.unwrap().unwrap();
    assert_eq!(read(response.body_mut()).await, "ok");
    let (response, _) = client.send_request(of_http1(), true).unwrap();
    head(&mut served).await;
    response
}

/// The repeated request gets a connection that the kernel accepts and resets, because a killed
/// process closes its listener last.
#[test]
fn mesh_peers_get_response_when_application_is_killed_before_it_accepts() {
    run_meshed(async |app, mut client| {
        let response = lost_on_a_kept_connection(&app, &mut client).await;
        settle().await;
        stop(app).await;
        let response = while_time_passes(response).await.unwrap();
        assert_eq!(response.status(), 502);
        assert_eq!(response.headers()["l5d-proxy-undelivered"], "unsent");
    });
}

/// It still listens, so the reset is its response.
#[test]
fn request_is_not_repeated_when_application_resets_a_new_connection() {
    run_meshed(async |app, mut client| {
        let response = lost_on_a_kept_connection(&app, &mut client).await;
        let (again, _) = app.receive().await;
        reset(again);
        let response = while_time_passes(response).await.unwrap();
        assert_eq!(response.status(), 502);
        assert!(!response.headers().contains_key("l5d-proxy-undelivered"));
        let (_probe, no_request) = (app.accept().await, app.receive().now_or_never());
        assert!(no_request.is_none());
    });
}

/// A request that the proxy forwards in HTTP/1.1.
fn of_http1() -> http::Request<()> {
    let mut request = get();
    let was = "HTTP/1.1".parse().unwrap();
    request.headers_mut().insert("l5d-orig-proto", was);
    // Without it the request would have a connection of its own.
    request.headers_mut().insert("host", "web".parse().unwrap());
    request
}

#[test]
fn clients_keep_connections_after_application_restart() {
    run_unmeshed(async |proxy, app, mut client| {
        let addr = app.addr;
        let served = first(&mut client, &app, OK).await;
        stop(app).await;
        drop(served);
        assert_eq!(rest(&mut client).await, "");
        let app = App::start_at(addr).await;
        let mut client = proxy.inbound(addr).await;
        let mut served = first(&mut client, &app, OK).await;
        time_passes(1).await;
        let response = again(&mut client, &mut served, OK).await;
        assert!(!response.contains("connection"), "{response}");
    });
}

/// The proxy keeps one idle connection beyond the idle timeout, to detect that the application
/// stops.
#[test]
fn long_idle_clients_are_closed_when_application_stops() {
    run_unmeshed(async |_, app, mut client| {
        let mut old = first(&mut client, &app, OK).await;
        time_passes(20).await;
        send(&mut client, GET).await;
        let mut served = app.accept().await;
        assert_eq!(rest(&mut old).await, "", "an old connection got a request");
        head(&mut served).await;
        send(&mut served, OK).await;
        message(&mut client).await;
        time_passes(20).await;
        stop(app).await;
        drop(served);
        assert_eq!(rest(&mut client).await, "");
    });
}

#[test]
fn idle_connection_is_not_kept_without_clients() {
    run_unmeshed(async |_, app, mut client| {
        let mut served = first(&mut client, &app, OK).await;
        drop(client);
        time_passes(7).await;
        let ended = served.read_u8().now_or_never();
        assert!(matches!(ended, Some(Err(_))), "{ended:?}");
    });
}

#[test]
fn application_that_closes_connections_is_probed_at_most_ten_times_per_second() {
    run_unmeshed(async |_, app, mut client| {
        drop(first(&mut client, &app, OK).await);
        let mut accepted = 0;
        for _ in 0..100 {
            advance(Duration::from_millis(100)).await;
            settle().await;
            while app.accept().now_or_never().is_some() {
                accepted += 1;
                settle().await;
            }
        }
        assert!((50..=101).contains(&accepted), "{accepted}");
    });
}

#[test]
fn application_without_persistent_connections_is_not_probed() {
    run_unmeshed(async |_, app, mut client| {
        for _ in 0..3 {
            drop(first(&mut client, &app, LAST).await);
            time_passes(1).await;
            assert!(app.accept().now_or_never().is_none());
        }
    });
}

/// Reads one HTTP/2 frame; returns its type and stream.
async fn frame(tcp: &mut TcpStream) -> (u8, u32) {
    let mut head = [0; 9];
    tcp.read_exact(&mut head).await.unwrap();
    let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
    tcp.read_exact(&mut vec![0; length as usize]).await.unwrap();
    let stream = u32::from_be_bytes([head[5], head[6], head[7], head[8]]);
    (head[3], stream)
}

async fn headers_on(tcp: &mut TcpStream, stream: u32) {
    while frame(tcp).await != (1, stream) {}
}

/// An HTTP/2 application that has responded to one request, and sends GOAWAY at the next one
/// without processing it. The test decides whether it accepts another connection.
async fn leaves_with_the_second(client: TcpStream, app: &App) -> (SendRequest<Bytes>, TcpStream) {
    let mut client = http2(client).await;
    let asking = ask(&mut client, get());
    let mut served = app.accept().await;
    served.read_exact(&mut [0; 24]).await.unwrap();
    let settings = [0, 0, 0, 4, 0, 0, 0, 0, 0];
    served.write_all(&settings).await.unwrap();
    headers_on(&mut served, 1).await;
    let ok = [0, 0, 1, 1, 5, 0, 0, 0, 1, 0x88];
    served.write_all(&ok).await.unwrap();
    asking.await.unwrap().unwrap();
    (client, served)
}

const GOAWAY_AFTER_1: [u8; 17] = [0, 0, 8, 7, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0];

#[test]
fn unprocessed_stream_is_retried() {
    run_unmeshed(async |_, app, client| {
        let (mut client, mut served) = leaves_with_the_second(client, &app).await;
        let asking = ask(&mut client, get());
        headers_on(&mut served, 3).await;
        served.write_all(&GOAWAY_AFTER_1).await.unwrap();
        app.named("again");
        assert_eq!(status_of(asking).await, 200);
    });
}

#[test]
fn unprocessed_stream_is_refused_when_application_is_gone() {
    run_unmeshed(async |_, app, client| {
        let (mut client, mut served) = leaves_with_the_second(client, &app).await;
        // With a body, as in gRPC calls.
        let (response, _body) = client.send_request(get(), false).unwrap();
        let asking = spawn_local(response);
        headers_on(&mut served, 3).await;
        stop(app).await;
        served.write_all(&GOAWAY_AFTER_1).await.unwrap();
        let error = asking.await.unwrap().unwrap_err();
        assert_eq!(error.reason(), Some(h2::Reason::REFUSED_STREAM), "{error}");
        gone_away(&client).await;
    });
}

/// The application exits without GOAWAY.
#[test]
fn stream_is_refused_when_application_exits_during_request() {
    run_unmeshed(async |_, app, client| {
        let (mut client, mut served) = leaves_with_the_second(client, &app).await;
        let asking = ask(&mut client, get());
        headers_on(&mut served, 3).await;
        stop(app).await;
        drop(served);
        let error = asking.await.unwrap().unwrap_err();
        assert_eq!(error.reason(), Some(h2::Reason::REFUSED_STREAM), "{error}");
        gone_away(&client).await;
    });
}

/// The application may have processed the call.
#[test]
fn call_with_body_gets_502_when_application_closes_connection() {
    run_unmeshed(async |_, app, client| {
        let (mut client, mut served) = leaves_with_the_second(client, &app).await;
        let post = http::Request::post("http://web/").body(()).unwrap();
        let (response, _body) = client.send_request(post, false).unwrap();
        let asking = spawn_local(response);
        headers_on(&mut served, 3).await;
        stop(app).await;
        drop(served);
        assert_eq!(status_of(asking).await, 502);
    });
}

//! Applications that stop while their proxy, a native sidecar that is not told of it, goes on: what
//! their clients see must be what the application would have shown them.

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt as _;
use h2::client::SendRequest;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tokio::task::{JoinHandle, spawn_local};
use tokio::time::advance;

use super::app::{App, Client, Speaks, head, http2, message, read, respond, rest, send};
use super::world::{Proxy, WEB, World, a_while, run, while_time_passes};

const GET: &str = "GET / HTTP/1.1\r\nhost: web\r\n\r\n";
const OK: &str = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";
const LAST: &str = "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\nok";

/// A proxy, and clients of its application that are in no mesh.
async fn unmeshed() -> (World, Proxy, App) {
    let world = World::new().await;
    let proxy = world.proxy(WEB);
    (world, proxy, App::start().await)
}

/// One request and its answer over a connection that the application has not had before.
async fn first(client: &mut TcpStream, app: &App, answer: &str) -> TcpStream {
    send(client, GET).await;
    let mut served = app.accept().await;
    head(&mut served).await;
    send(&mut served, answer).await;
    let response = message(client).await;
    assert!(response.starts_with("HTTP/1.1 200 "), "{response}");
    assert!(!response.contains("connection"), "{response}");
    served
}

/// The application no longer listens. Another test that starts a program holds a copy of the
/// listener until that program has begun.
async fn stop(app: App) {
    let addr = app.addr;
    drop(app);
    while TcpStream::connect(addr).await.is_ok() {
        a_while().await;
    }
}

async fn time_passes(seconds: u64) {
    for _ in 0..seconds * 10 {
        advance(Duration::from_millis(100)).await;
        a_while().await;
    }
}

fn get() -> http::Request<()> {
    http::Request::get("http://web/").body(()).unwrap()
}

#[test]
fn idle_http1_connections_are_closed_when_the_application_stops() {
    run(async || {
        let (_world, proxy, app) = unmeshed().await;
        let mut one = proxy.inbound(app.addr).await;
        let mut served = first(&mut one, &app, OK).await;
        let mut two = proxy.inbound(app.addr).await;
        send(&mut two, GET).await;
        head(&mut served).await;
        send(&mut served, OK).await;
        message(&mut two).await;
        stop(app).await;
        drop(served);
        assert_eq!(rest(&mut one).await, "");
        assert_eq!(rest(&mut two).await, "");
    });
}

#[test]
fn busy_http1_connections_are_closed_behind_the_response_when_the_application_stops() {
    run(async || {
        let (_world, proxy, app) = unmeshed().await;
        let mut busy = proxy.inbound(app.addr).await;
        let mut idle = proxy.inbound(app.addr).await;
        send(&mut busy, GET).await;
        let mut answering = app.accept().await;
        head(&mut answering).await;
        let served = first(&mut idle, &app, OK).await;
        stop(app).await;
        drop(served);
        assert_eq!(rest(&mut idle).await, "");
        send(&mut answering, OK).await;
        let response = rest(&mut busy).await;
        assert!(response.starts_with("HTTP/1.1 200 "), "{response}");
        assert!(response.contains("connection: close\r\n"), "{response}");
    });
}

/// The application says so itself with the last response of a connection that it has kept before.
#[test]
fn the_last_response_of_an_application_that_stops_closes_the_connection() {
    run(async || {
        let (_world, proxy, app) = unmeshed().await;
        let mut client = proxy.inbound(app.addr).await;
        let mut served = first(&mut client, &app, OK).await;
        send(&mut client, GET).await;
        head(&mut served).await;
        stop(app).await;
        send(&mut served, LAST).await;
        let response = rest(&mut client).await;
        assert!(response.starts_with("HTTP/1.1 200 "), "{response}");
        assert!(response.contains("connection: close\r\n"), "{response}");
    });
}

#[test]
fn an_application_that_only_closes_a_connection_keeps_its_clients() {
    run(async || {
        let (_world, proxy, app) = unmeshed().await;
        let mut client = proxy.inbound(app.addr).await;
        let mut served = first(&mut client, &app, OK).await;
        // First an idle one, then one behind its response.
        for how in [None, Some(LAST)] {
            if let Some(last) = how {
                send(&mut client, GET).await;
                head(&mut served).await;
                send(&mut served, last).await;
                let response = message(&mut client).await;
                assert!(!response.contains("connection"), "{response}");
            }
            drop(served);
            // Its listener has been tried, and the connection of that is used.
            served = while_time_passes(app.accept()).await;
            send(&mut client, GET).await;
            head(&mut served).await;
            send(&mut served, OK).await;
            message(&mut client).await;
        }
    });
}

/// An application that speaks HTTP/2, until it is told to stop as servers do: it closes its
/// listener and says GOAWAY.
struct Http2App {
    addr: SocketAddr,
    stop: oneshot::Sender<()>,
    calls: tokio::sync::mpsc::UnboundedReceiver<super::app::Call>,
    serving: JoinHandle<()>,
}

impl Http2App {
    fn serve(app: App) -> Self {
        let addr = app.addr;
        let (stop, stopped) = oneshot::channel();
        let (called, calls) = tokio::sync::mpsc::unbounded_channel();
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
            addr,
            stop,
            calls,
            serving,
        }
    }
}

#[test]
fn http2_connections_take_no_more_streams_when_the_application_stops() {
    run(async || {
        let (_world, proxy, app) = unmeshed().await;
        let mut app = Http2App::serve(app);
        let mut client = http2(proxy.inbound(app.addr).await).await;
        let (response, _) = client.send_request(get(), true).unwrap();
        let asking = spawn_local(response);
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

/// A client of HTTP/1 repeats a request whose connection was closed before an answer, if it may be
/// repeated.
#[test]
fn a_request_on_a_used_connection_gets_no_answer_when_the_application_is_gone() {
    run(async || {
        let (_world, proxy, app) = unmeshed().await;
        // The application keeps no connection, so that nothing shows that it goes.
        let mut client = proxy.inbound(app.addr).await;
        drop(first(&mut client, &app, LAST).await);
        stop(app).await;
        a_while().await;
        send(&mut client, GET).await;
        assert_eq!(rest(&mut client).await, "");
    });
}

/// The application has accepted the connection, and is ended before it answers.
#[test]
fn a_request_whose_connection_the_application_closes_gets_no_answer_when_it_is_gone() {
    run(async || {
        let (_world, proxy, app) = unmeshed().await;
        let mut client = proxy.inbound(app.addr).await;
        drop(first(&mut client, &app, LAST).await);
        send(&mut client, GET).await;
        let mut served = app.accept().await;
        head(&mut served).await;
        stop(app).await;
        drop(served);
        assert_eq!(rest(&mut client).await, "");
    });
}

#[test]
fn a_stream_on_a_used_connection_is_refused_when_the_application_is_gone() {
    run(async || {
        let (_world, proxy, app) = unmeshed().await;
        let addr = app.addr;
        let mut app = Http2App::serve(app);
        let mut client = http2(proxy.inbound(addr).await).await;
        let (response, _) = client.send_request(get(), true).unwrap();
        let asking = spawn_local(response);
        let (_, answer) = app.calls.recv().await.unwrap();
        respond(answer).send_data("ok".into(), true).unwrap();
        asking.await.unwrap().unwrap();
        // At once, before the proxy can have noticed.
        app.serving.abort();
        let (response, _) = client.send_request(get(), true).unwrap();
        let error = response.await.unwrap_err();
        let is_repeated = error.is_go_away() || error.reason() == Some(h2::Reason::REFUSED_STREAM);
        assert!(is_repeated, "{error}");
        gone_away(&client).await;
    });
}

/// An application that has never been there must not look like a connection that was closed for no
/// reason.
#[test]
fn the_first_request_of_a_connection_is_answered_with_502_when_nothing_listens() {
    Speaks::each(async |speaks| {
        let (_world, proxy, app) = unmeshed().await;
        let addr = app.addr;
        stop(app).await;
        let mut client = Client::new(proxy.inbound(addr).await, speaks).await;
        assert_eq!(client.get().await.0, 502, "{speaks:?}");
    });
}

/// They are told what they need to send the request elsewhere, whatever it is.
#[test]
fn peers_of_the_mesh_are_answered_when_the_application_is_gone() {
    run(async || {
        let (world, proxy, app) = unmeshed().await;
        let tls = world.connected(proxy.inbound(app.addr).await).await;
        let mut client = http2(tls).await;
        let request = || {
            let mut request = get();
            let was = http::HeaderValue::from_static("HTTP/1.1");
            request.headers_mut().insert("l5d-orig-proto", was);
            request
        };
        let (response, _) = client.send_request(request(), true).unwrap();
        let asking = spawn_local(response);
        let mut served = app.accept().await;
        head(&mut served).await;
        send(&mut served, LAST).await;
        assert_eq!(asking.await.unwrap().unwrap().status(), 200);
        stop(app).await;
        drop(served);
        a_while().await;
        let (response, _) = client.send_request(request(), true).unwrap();
        let response = response.await.unwrap();
        assert_eq!(response.status(), 502);
        assert_eq!(response.headers()["l5d-proxy-undelivered"], "unsent");
    });
}

#[test]
fn clients_of_an_application_that_is_back_keep_their_connections() {
    run(async || {
        let (_world, proxy, app) = unmeshed().await;
        let addr = app.addr;
        let mut client = proxy.inbound(addr).await;
        let served = first(&mut client, &app, OK).await;
        stop(app).await;
        drop(served);
        assert_eq!(rest(&mut client).await, "");
        let app = App::start_at(addr).await;
        let mut client = proxy.inbound(addr).await;
        let mut served = first(&mut client, &app, OK).await;
        time_passes(1).await;
        send(&mut client, GET).await;
        head(&mut served).await;
        send(&mut served, OK).await;
        let response = message(&mut client).await;
        assert!(!response.contains("connection"), "{response}");
    });
}

/// Long after the proxy's idle connections would have been closed: one is kept, though no request
/// uses it.
#[test]
fn clients_that_have_been_idle_for_long_are_closed_when_the_application_stops() {
    run(async || {
        let (_world, proxy, app) = unmeshed().await;
        let mut client = proxy.inbound(app.addr).await;
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
fn no_idle_connection_is_kept_for_clients_that_are_gone() {
    run(async || {
        let (_world, proxy, app) = unmeshed().await;
        let mut client = proxy.inbound(app.addr).await;
        let mut served = first(&mut client, &app, OK).await;
        drop(client);
        time_passes(7).await;
        let ended = served.read_u8().now_or_never();
        assert!(matches!(ended, Some(Err(_))), "{ended:?}");
    });
}

#[test]
fn an_application_that_closes_what_it_accepts_is_tried_ten_times_a_second_at_most() {
    run(async || {
        let (_world, proxy, app) = unmeshed().await;
        let mut client = proxy.inbound(app.addr).await;
        drop(first(&mut client, &app, OK).await);
        let mut accepted = 0;
        for _ in 0..100 {
            advance(Duration::from_millis(100)).await;
            a_while().await;
            while app.accept().now_or_never().is_some() {
                accepted += 1;
                a_while().await;
            }
        }
        assert!((50..=101).contains(&accepted), "{accepted}");
    });
}

#[test]
fn an_application_that_never_keeps_a_connection_is_not_tried() {
    run(async || {
        let (_world, proxy, app) = unmeshed().await;
        let mut client = proxy.inbound(app.addr).await;
        for _ in 0..3 {
            drop(first(&mut client, &app, LAST).await);
            time_passes(1).await;
            assert!(app.accept().now_or_never().is_none());
        }
    });
}

/// One frame of HTTP/2: its kind and stream.
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

/// An application of HTTP/2 that has answered one request and leaves when the next one comes, which
/// it has not begun with. Whether there is another connection to it is the test's business.
async fn leaves_with_the_second(client: &SendRequest<Bytes>, app: &App) -> TcpStream {
    let mut client = client.clone();
    let (response, _) = client.send_request(get(), true).unwrap();
    let asking = spawn_local(response);
    let mut served = app.accept().await;
    served.read_exact(&mut [0; 24]).await.unwrap();
    served
        .write_all(&[0, 0, 0, 4, 0, 0, 0, 0, 0])
        .await
        .unwrap();
    headers_on(&mut served, 1).await;
    let ok = [0, 0, 1, 1, 5, 0, 0, 0, 1, 0x88];
    served.write_all(&ok).await.unwrap();
    asking.await.unwrap().unwrap();
    served
}

const GOAWAY_AFTER_1: [u8; 17] = [0, 0, 8, 7, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0];

#[test]
fn a_stream_that_the_application_has_not_begun_with_is_sent_again() {
    run(async || {
        let (_world, proxy, app) = unmeshed().await;
        let mut client = http2(proxy.inbound(app.addr).await).await;
        let mut served = leaves_with_the_second(&client, &app).await;
        let (response, _) = client.send_request(get(), true).unwrap();
        let asking = spawn_local(response);
        headers_on(&mut served, 3).await;
        served.write_all(&GOAWAY_AFTER_1).await.unwrap();
        app.named("again");
        assert_eq!(asking.await.unwrap().unwrap().status(), 200);
    });
}

#[test]
fn a_stream_that_the_application_has_not_begun_with_is_refused_when_it_is_gone() {
    run(async || {
        let (_world, proxy, app) = unmeshed().await;
        let mut client = http2(proxy.inbound(app.addr).await).await;
        let mut served = leaves_with_the_second(&client, &app).await;
        // It has a body, as the calls of gRPC have.
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

/// An application that is ended at once says nothing about its streams.
#[test]
fn a_stream_whose_connection_the_application_closes_is_refused_when_it_is_gone() {
    run(async || {
        let (_world, proxy, app) = unmeshed().await;
        let mut client = http2(proxy.inbound(app.addr).await).await;
        let mut served = leaves_with_the_second(&client, &app).await;
        let (response, _) = client.send_request(get(), true).unwrap();
        let asking = spawn_local(response);
        headers_on(&mut served, 3).await;
        stop(app).await;
        drop(served);
        let error = asking.await.unwrap().unwrap_err();
        assert_eq!(error.reason(), Some(h2::Reason::REFUSED_STREAM), "{error}");
        gone_away(&client).await;
    });
}

/// What the application may have done with it is not known.
#[test]
fn a_call_whose_connection_the_application_closes_is_answered_with_502() {
    run(async || {
        let (_world, proxy, app) = unmeshed().await;
        let mut client = http2(proxy.inbound(app.addr).await).await;
        let mut served = leaves_with_the_second(&client, &app).await;
        let post = http::Request::post("http://web/").body(()).unwrap();
        let (response, _body) = client.send_request(post, false).unwrap();
        let asking = spawn_local(response);
        headers_on(&mut served, 3).await;
        stop(app).await;
        drop(served);
        assert_eq!(asking.await.unwrap().unwrap().status(), 502);
    });
}

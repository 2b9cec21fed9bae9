//! Ends of connections and messages: what one side does to its connection, the other one sees.

use std::io::ErrorKind;

use tokio::time::timeout;

use super::super::app::reset;
use super::*;
use crate::inbound::MAX_ENFORCERS;
use crate::telemetry::labels::Direction;

/// Longer than any time limit of the proxy that applies here.
const LIMIT: Duration = Duration::from_secs(60);

/// How a connection ends for its reader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Fin,
    Rst,
}

/// Reads the rest of a connection.
async fn to_end(socket: &mut TcpStream) -> (String, End) {
    let mut bytes = Vec::new();
    let reading = timeout(LIMIT, socket.read_to_end(&mut bytes));
    let read = while_time_passes(reading).await;
    let end = match read.expect("the connection does not end") {
        Ok(_) => End::Fin,
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{error}");
            End::Rst
        }
    };
    (String::from_utf8(bytes).unwrap(), end)
}

/// Both sides of an opaque connection after an exchange of bytes.
async fn opaque(way: Way) -> (TcpStream, TcpStream, (App, Between)) {
    let (mut client, app, between) = open(way).await;
    client.write_all(b"\0hello").await.unwrap();
    let mut server = app.accept().await;
    let mut hello = [0; 6];
    server.read_exact(&mut hello).await.unwrap();
    talk(&mut client, &mut server).await;
    (client, server, (app, between))
}

#[test]
fn reset_of_an_opaque_connection_reaches_the_other_peer_after_its_bytes() {
    each_way(async |way| {
        for is_client in [true, false] {
            let (client, server, _proxies) = opaque(way).await;
            let (mut ending, mut other) = if is_client {
                (client, server)
            } else {
                (server, client)
            };
            send(&mut ending, "half a file").await;
            let mut start = [0; 11];
            other.read_exact(&mut start).await.unwrap();
            reset(ending);
            let ended = to_end(&mut other).await;
            assert_eq!(ended, (String::new(), End::Rst), "{way:?}, {is_client}");
        }
    });
}

#[test]
fn reset_after_a_fin_reaches_the_other_peer_after_the_fin() {
    each_way(async |way| {
        let (mut client, mut server, _proxies) = opaque(way).await;
        client.shutdown().await.unwrap();
        assert_eq!(to_end(&mut server).await, (String::new(), End::Fin));
        // The server's reset is the end of a response that the client waits for.
        reset(server);
        assert_eq!(
            to_end(&mut client).await,
            (String::new(), End::Rst),
            "{way:?}"
        );
    });
}

#[test]
fn reset_of_a_tunnel_reaches_the_client() {
    each_way(async |way| {
        let (mut client, app, _between) = open(way).await;
        let upgrade = "connection: upgrade\r\nupgrade: chat\r\n\r\n";
        send(
            &mut client,
            &format!("GET / HTTP/1.1\r\nhost: web\r\n{upgrade}"),
        )
        .await;
        let (mut server, _) = app.receive().await;
        send(
            &mut server,
            &format!("HTTP/1.1 101 Switching Protocols\r\n{upgrade}"),
        )
        .await;
        head(&mut client).await;
        talk(&mut client, &mut server).await;
        reset(server);
        assert_eq!(
            to_end(&mut client).await,
            (String::new(), End::Rst),
            "{way:?}"
        );
    });
}

/// The server was connected while the client was silent, and would take a close for the end of an
/// empty stream.
#[test]
fn reset_of_a_client_that_was_silent_reaches_the_server() {
    each_way(async |way| {
        let (client, app, _between) = open(way).await;
        let mut server = while_time_passes(app.accept()).await;
        reset(client);
        let ended = to_end(&mut server).await;
        assert_eq!(ended, (String::new(), End::Rst), "{way:?}");
    });
}

/// The first proxy has accepted the connection already: without a proxy it would be refused.
#[test]
fn connection_to_a_missing_application_is_reset() {
    each_way(async |way| {
        let between = Between::new(way, unused_addr().await).await;
        let mut client = between.connect().await;
        client.write_all(b"\0hello").await.unwrap();
        assert_eq!(
            to_end(&mut client).await,
            (String::new(), End::Rst),
            "{way:?}"
        );
    });
}

/// Without a byte, and without waiting for one: it would be refused at once.
#[test]
fn silent_client_of_a_missing_application_is_reset_at_once() {
    each_way(async |way| {
        let between = Between::new(way, unused_addr().await).await;
        let mut client = between.connect().await;
        let begin = Instant::now();
        let ended = to_end(&mut client).await;
        assert_eq!(ended, (String::new(), End::Rst), "{way:?}");
        assert!(begin.elapsed() < Duration::from_secs(8), "{way:?}");
    });
}

/// The end of the connection is the end of the response, so that a reset must not become a FIN.
#[test]
fn response_until_close_that_is_reset_is_not_complete() {
    each_way(async |way| {
        for version in ["1.0", "1.1"] {
            for (is_reset, is_complete) in [(true, false), (false, true)] {
                let (mut client, app, _between) = open(way).await;
                send(
                    &mut client,
                    &format!("GET / HTTP/{version}\r\nhost: web\r\nconnection: close\r\n\r\n"),
                )
                .await;
                let (mut server, _) = app.receive().await;
                send(
                    &mut server,
                    "HTTP/1.1 200 OK\r\nconnection: close\r\n\r\nhalf",
                )
                .await;
                head(&mut client).await;
                let mut body = String::new();
                while !body.contains("half") {
                    body.push(char::from(client.read_u8().await.unwrap()));
                }
                if is_reset {
                    reset(server);
                } else {
                    drop(server);
                }
                let (rest, end) = to_end(&mut client).await;
                let ends_well =
                    end == End::Fin && (version == "1.0" || rest.ends_with("0\r\n\r\n"));
                assert_eq!(
                    ends_well, is_complete,
                    "{way:?}, {version}: {rest:?} {end:?}"
                );
            }
        }
    });
}

/// As a download that breaks off: the client can continue after the bytes that the server has sent,
/// and learns whether the server has closed or reset its connection.
#[test]
fn incomplete_response_ends_as_the_server_has_ended_it() {
    each_way(async |way| {
        for framing in [
            "content-length: 10\r\n\r\n",
            "transfer-encoding: chunked\r\n\r\n4\r\n",
        ] {
            for is_reset in [false, true] {
                let (mut client, app, _between) = open(way).await;
                send(&mut client, "GET / HTTP/1.1\r\nhost: web\r\n\r\n").await;
                let (mut server, _) = app.receive().await;
                send(&mut server, &format!("HTTP/1.1 200 OK\r\n{framing}half")).await;
                if is_reset {
                    head(&mut client).await;
                    reset(server);
                } else {
                    drop(server);
                }
                let (response, end) = to_end(&mut client).await;
                let expected = if is_reset { End::Rst } else { End::Fin };
                assert!(
                    response.contains("half") && end == expected,
                    "{way:?}, {is_reset}, {framing}: {response:?} {end:?}"
                );
            }
        }
    });
}

/// No server has failed, so that no proxy reports it.
#[test]
fn client_that_closes_its_half_within_its_request_gets_no_error_of_the_server() {
    each_way(async |way| {
        for body in [
            "content-length: 10\r\n\r\nhalf",
            "transfer-encoding: chunked\r\n\r\n4\r\nhalf\r\n",
        ] {
            let (mut client, app, _between) = open(way).await;
            let request = format!("POST / HTTP/1.1\r\nhost: web\r\n{body}");
            send(&mut client, &request).await;
            let (_server, _) = app.receive().await;
            client.shutdown().await.unwrap();
            let (response, _) = to_end(&mut client).await;
            assert_eq!(response, "", "{way:?}: {body}");
        }
    });
}

/// Its client would take the close for the end of an empty stream.
#[test]
fn opaque_connection_that_the_policy_refuses_is_reset() {
    run(async || {
        let world = World::new().await;
        let denied = ("INBOUND_DEFAULT_POLICY", Some("deny"));
        let proxy = world.proxy_with(WEB, &[denied]);
        let app = App::start().await;
        let mut client = proxy.inbound(app.addr).await;
        client.write_all(b"\0hello").await.unwrap();
        assert_eq!(to_end(&mut client).await, (String::new(), End::Rst));
    });
}

/// A client that waits for the server to speak first, and one that has nothing to say.
#[test]
fn client_without_a_byte_that_the_policy_refuses_is_reset() {
    run(async || {
        for finishes in [false, true] {
            let world = World::new().await;
            let denied = ("INBOUND_DEFAULT_POLICY", Some("deny"));
            let proxy = world.proxy_with(WEB, &[denied]);
            let app = App::start().await;
            let mut client = proxy.inbound(app.addr).await;
            if finishes {
                client.shutdown().await.unwrap();
            }
            let ended = to_end(&mut client).await;
            assert_eq!(ended, (String::new(), End::Rst), "{finishes}");
        }
    });
}

#[test]
fn connection_that_the_proxy_cannot_serve_is_reset() {
    run(async || {
        let world = World::new().await;
        let proxy = world.proxy_with(WEB, &[("INBOUND_IPS", Some("10.77.0.1"))]);
        let app = App::start().await;
        let foreign = SocketAddr::from(([10, 77, 0, 2], app.addr.port()));
        let own_port = SocketAddr::from((app.addr.ip(), 4140));
        for dst in [foreign, own_port] {
            let mut client = proxy.inbound(dst).await;
            let ended = to_end(&mut client).await;
            assert_eq!(ended, (String::new(), End::Rst), "inbound to {dst}");
        }
        let mut client = proxy.outbound(own_port).await;
        let ended = to_end(&mut client).await;
        assert_eq!(ended, (String::new(), End::Rst), "outbound to itself");
        let held = proxy.hold_enforcers(MAX_ENFORCERS);
        let mut client = proxy.inbound(app.addr).await;
        let ended = to_end(&mut client).await;
        assert_eq!(ended, (String::new(), End::Rst), "{} clients", held.len());
    });
}

#[test]
fn connection_above_the_limit_is_reset() {
    run(async || {
        let world = World::new().await;
        for direction in [Direction::Inbound, Direction::Outbound] {
            let limits = [
                ("MESH_PROXY_INBOUND_MAX_CONNECTIONS", Some("1")),
                ("MESH_PROXY_OUTBOUND_MAX_CONNECTIONS", Some("1")),
            ];
            let proxy = world.proxy_with(WEB, &limits);
            let (addr, _held) = proxy.accept_above_limit(direction).await;
            let mut client = TcpStream::connect(addr).await.unwrap();
            let ended = to_end(&mut client).await;
            assert_eq!(ended, (String::new(), End::Rst), "{direction:?}");
        }
    });
}

/// A connection that carries nothing when the proxy ends has not been served, for either side.
#[test]
fn silent_connection_is_reset_on_both_sides_when_the_proxy_drains() {
    each_way(async |way| {
        let (mut client, app, between) = open(way).await;
        let mut server = while_time_passes(app.accept()).await;
        let proxy = match way {
            Way::Outbound | Way::Both => &between.client,
            Way::Inbound => &between.server,
        };
        let _drained = proxy.drain();
        for side in [&mut client, &mut server] {
            let ended = to_end(side).await;
            assert_eq!(ended, (String::new(), End::Rst), "{way:?}");
        }
    });
}

/// As `nc -N` without input does, to a server that speaks first or only.
#[test]
fn client_that_closes_its_half_without_a_byte_gets_what_the_server_sends() {
    each_way(async |way| {
        for waits in [Duration::ZERO, Duration::from_secs(1)] {
            let (mut client, app, _between) = open(way).await;
            while_time_passes(tokio::time::sleep(waits)).await;
            client.shutdown().await.unwrap();
            let mut server = while_time_passes(app.accept()).await;
            assert_eq!(to_end(&mut server).await, (String::new(), End::Fin));
            send(&mut server, "the time").await;
            drop(server);
            let ended = to_end(&mut client).await;
            assert_eq!(ended, ("the time".to_owned(), End::Fin), "{way:?}");
        }
    });
}

/// By the error a server tells a client that has failed from one that waits or has cancelled.
#[test]
fn end_of_a_client_within_its_exchange_reaches_the_application_as_it_is() {
    const GET: &str = "\r\n";
    const LENGTH: &str = "content-length: 10\r\n\r\nhalf";
    const CHUNKS: &str = "transfer-encoding: chunked\r\n\r\n4\r\nhalf\r\n";
    each_way(async |way| {
        for body in [GET, LENGTH, CHUNKS] {
            for has_begun in [false, true] {
                for expected in [End::Fin, End::Rst] {
                    let (mut client, app, _between) = open(way).await;
                    let request = format!("POST / HTTP/1.1\r\nhost: web\r\n{body}");
                    send(&mut client, &request).await;
                    let (mut server, _) = app.receive().await;
                    if has_begun {
                        send(&mut server, "HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n").await;
                        head(&mut client).await;
                    }
                    match expected {
                        End::Fin => drop(client),
                        End::Rst => reset(client),
                    }
                    let (_, end) = to_end(&mut server).await;
                    assert_eq!(end, expected, "{way:?}: {has_begun}, {body:?}");
                }
            }
        }
    });
}

/// As a handler that waits for something: it learns that its client has closed, and may respond.
#[test]
fn close_of_a_client_during_a_silent_request_reaches_the_application() {
    each_way(async |way| {
        for (version, has_begun) in [("1.1", false), ("1.1", true), ("1.0", false)] {
            let (mut client, app, _between) = open(way).await;
            send(
                &mut client,
                &format!("GET / HTTP/{version}\r\nhost: web\r\n\r\n"),
            )
            .await;
            let (mut server, _) = app.receive().await;
            if has_begun {
                send(&mut server, "HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\n").await;
                head(&mut client).await;
            }
            client.shutdown().await.unwrap();
            let mut end = [0];
            assert_eq!(
                server.read(&mut end).await.unwrap(),
                0,
                "{way:?}, {version}"
            );
            if has_begun {
                send(&mut server, "late").await;
            } else {
                send(
                    &mut server,
                    "HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nlate",
                )
                .await;
            }
            let (response, end) = to_end(&mut client).await;
            assert!(response.ends_with("late"), "{way:?}, {version}: {response}");
            assert_eq!(end, End::Fin, "{way:?}, {version}");
        }
    });
}

#[test]
fn connection_whose_client_has_closed_is_not_used_for_another() {
    each_way(async |way| {
        let app = App::start().await;
        let between = Between::new(way, app.addr).await;
        let get = "GET / HTTP/1.1\r\nhost: web\r\n\r\n";
        let mut closing = between.connect().await;
        send(&mut closing, get).await;
        let (mut first, _) = app.receive().await;
        closing.shutdown().await.unwrap();
        let mut end = [0];
        assert_eq!(first.read(&mut end).await.unwrap(), 0, "{way:?}");
        send(&mut first, OK).await;
        message(&mut closing).await;
        let mut other = between.connect().await;
        send(&mut other, get).await;
        let (mut second, _) = app.receive().await;
        send(&mut second, OK).await;
        message(&mut other).await;
        // A client that closes after its response leaves the connection to others.
        drop(other);
        let mut third = between.connect().await;
        send(&mut third, get).await;
        head(&mut second).await;
        send(&mut second, OK).await;
        message(&mut third).await;
    });
}

/// As nginx does: the client has closed, so that it needs no response, and gets none.
#[test]
fn application_that_ends_an_abandoned_request_ends_the_client_connection() {
    each_way(async |way| {
        let (mut client, app, _between) = open(way).await;
        send(&mut client, "GET / HTTP/1.1\r\nhost: web\r\n\r\n").await;
        let (mut server, _) = app.receive().await;
        client.shutdown().await.unwrap();
        let mut end = [0];
        assert_eq!(server.read(&mut end).await.unwrap(), 0, "{way:?}");
        drop(server);
        assert_eq!(to_end(&mut client).await.0, "", "{way:?}");
    });
}

/// Immediately, and without a second connection.
#[test]
fn application_that_closes_without_a_byte_during_detection_ends_the_connection() {
    each_way(async |way| {
        for (has_reset, end) in [(false, End::Fin), (true, End::Rst)] {
            let (mut client, app, _between) = open(way).await;
            let accepted = while_time_passes(timeout(LIMIT, app.accept())).await;
            let server = accepted.unwrap_or_else(|_| panic!("{way:?}: no connection"));
            // By then the proxy knows that it is connected.
            let early = timeout(Duration::from_millis(100), client.readable());
            assert!(while_time_passes(early).await.is_err(), "{way:?}");
            let begin = Instant::now();
            if has_reset {
                reset(server);
            } else {
                drop(server);
            }
            assert_eq!(to_end(&mut client).await, (String::new(), end), "{way:?}");
            // Less than the limit on detection. Acknowledgements take real time, and the paused
            // clock advances meanwhile.
            assert!(begin.elapsed() < Duration::from_secs(8), "{way:?}");
            let second = timeout(Duration::from_secs(1), app.accept());
            assert!(while_time_passes(second).await.is_err(), "{way:?}");
        }
    });
}

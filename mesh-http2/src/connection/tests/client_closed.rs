//! The extension frame CLIENT_CLOSED between two connections, and from and to other peers.

use std::task::Poll;

use super::*;
use crate::frame::CLIENT_CLOSED;

/// Passes the output of each connection to the other until there is none.
fn exchange(client: &mut Connection, server: &mut Connection) {
    loop {
        let (up, down) = (output(client), output(server));
        if up.is_empty() && down.is_empty() {
            return;
        }
        take(server, &up);
        take(client, &down);
    }
}

fn get() -> Request<()> {
    Request::get("http://web/").body(()).unwrap()
}

#[test]
fn close_of_the_client_reaches_the_server_once() {
    let mut client = Connection::new(&config(Role::Client));
    let mut server = Connection::new(&config(Role::Server));
    // Before the server's SETTINGS, and after them.
    let early = client.open(&get(), None, true);
    client.send_client_closed(early);
    exchange(&mut client, &mut server);
    assert_eq!(server.next_client_closed(), Some(early));
    let late = client.open(&get(), None, true);
    exchange(&mut client, &mut server);
    assert!(!server.is_client_closed(late));
    client.send_client_closed(late);
    client.send_client_closed(late);
    exchange(&mut client, &mut server);
    assert!(server.is_client_closed(late));
    assert_eq!(server.next_client_closed(), Some(late));
    assert_eq!(server.next_client_closed(), None);
    // The server can still respond.
    server.respond(late, &Response::new(()), true);
    exchange(&mut client, &mut server);
    assert!(server.failure().is_none() && client.failure().is_none());
}

#[test]
fn server_that_does_not_accept_the_close_is_not_told() {
    let mut client = greeted(&config(Role::Client));
    let id = client.open(&get(), None, true);
    output(&mut client);
    client.send_client_closed(id);
    assert_eq!(output(&mut client), [0_u8; 0]);
    // Nor with the SETTINGS that it has waited for.
    let mut client = Connection::new(&config(Role::Client));
    let id = client.open(&get(), None, true);
    client.send_client_closed(id);
    output(&mut client);
    receive(&mut client, SETTINGS, 0, 0, &[]);
    assert_eq!(output(&mut client), bytes(SETTINGS, frame::ACK, 0, &[]));
}

#[test]
fn close_without_a_stream_is_ignored_and_counted_as_a_frame_without_content() {
    let mut server = greeted(&config(Role::Server));
    receive(&mut server, HEADERS, BOTH, 1, GET);
    for stream in [0, 1, 1, 3, 2] {
        receive(&mut server, CLIENT_CLOSED, 0, stream, b"payload");
    }
    assert!(server.next_client_closed().is_some());
    assert_eq!(server.next_client_closed(), None);
    let mut client = greeted(&config(Role::Client));
    let id = client.open(&get(), None, true);
    receive(&mut client, CLIENT_CLOSED, 0, id.0, &[]);
    assert_eq!(client.next_client_closed(), None);
    let frame = bytes(CLIENT_CLOSED, 0, 1, &[]);
    let flooded = (0..=2 * LIMITS.idle_frames).any(|_| server.receive(&frame).is_err());
    assert!(flooded, "the limit on idle frames applies");
}

/// Known with the SETTINGS, or when none can arrive any more.
#[test]
fn proxies_of_this_project_are_known_by_their_settings() {
    let poll = |client: &mut Connection| client.poll_is_proxy(Waker::noop());
    let mut client = Connection::new(&config(Role::Client));
    assert_eq!(poll(&mut client), Poll::Pending);
    let mut server = Connection::new(&config(Role::Server));
    exchange(&mut client, &mut server);
    assert_eq!(poll(&mut client), Poll::Ready(true));

    let mut client = Connection::new(&config(Role::Client));
    receive(&mut client, SETTINGS, 0, 0, &[]);
    assert_eq!(poll(&mut client), Poll::Ready(false));

    let mut client = Connection::new(&config(Role::Client));
    client.handle_close(None);
    assert_eq!(poll(&mut client), Poll::Ready(false));
}

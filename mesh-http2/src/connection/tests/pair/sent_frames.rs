//! The frames that a client and a server send.

use super::*;

/// Adds the types of sent frames to `kinds`. Panics at a flag that the type does not define, which
/// includes padding, at the reserved bit, and at a frame on the wrong kind of stream.
fn check_frames(sent: &[u8], kinds: &mut Vec<u8>) {
    let mut rest = sent.strip_prefix(PREFACE).unwrap_or(sent);
    while let Some((header, behind)) = rest.split_first_chunk::<{ frame::FRAME_HEADER_SIZE }>() {
        assert_eq!(header[5] & 0x80, 0, "the reserved bit");
        let header = frame::FrameHeader::parse(*header);
        let (defined, has_stream) = match header.kind {
            DATA => (END_STREAM, true),
            HEADERS => (BOTH, true),
            CONTINUATION => (END_HEADERS, true),
            RST_STREAM => (0, true),
            SETTINGS | PING => (frame::ACK, false),
            GOAWAY => (0, false),
            WINDOW_UPDATE => (0, header.stream != 0),
            _ => panic!("{header:?}"),
        };
        assert_eq!(header.flags & !defined, 0, "{header:?}");
        assert_eq!(header.stream != 0, has_stream, "{header:?}");
        assert!(header.kind != PING || header.length == 8, "{header:?}");
        kinds.push(header.kind);
        rest = &behind[header.length as usize..];
    }
}

/// Everything that a connection sends (RFC 9113, sections 4.1 and 6).
#[test]
fn sent_frames_have_only_defined_flags_and_the_stream_that_their_type_needs() {
    let limits = Limits {
        max_header_list_size: 64 * 1024,
        ..LIMITS
    };
    let with_limits = |role| {
        Connection::new(&Config {
            limits,
            ..config(role)
        })
    };
    let mut client = with_limits(Role::Client);
    let mut server = with_limits(Role::Server);
    let mut kinds = Vec::new();
    let mut send = |from: &mut Connection, to: &mut Connection| {
        let sent = output(from);
        check_frames(&sent, &mut kinds);
        take(to, &sent);
    };
    let mut exchange = |client: &mut Connection, server: &mut Connection| {
        while !(client.output().is_empty() && server.output().is_empty()) {
            send(client, server);
            send(server, client);
        }
    };
    exchange(&mut client, &mut server);
    let mut long = request();
    let value = "v".repeat(20_000).try_into().unwrap();
    long.headers_mut().insert("long", value);
    let id = client.open(&long, None, false);
    client.send_data(id, vec![0; 40_000].into(), false);
    exchange(&mut client, &mut server);
    let accepted = server.next_request().unwrap();
    assert_eq!(read(&mut server, accepted.id), 40_000);
    client.send_trailers(id, &trailers());
    server.send_informational(
        accepted.id,
        &Response::builder().status(103).body(()).unwrap(),
    );
    server.respond(accepted.id, &Response::new(()), false);
    server.send_data(accepted.id, "reply".into(), false);
    server.send_trailers(accepted.id, &trailers());
    exchange(&mut client, &mut server);
    let cancelled = client.open(&request(), None, true);
    exchange(&mut client, &mut server);
    drop_stream(&mut client, cancelled);
    client.ping();
    exchange(&mut client, &mut server);
    server.start_graceful_shutdown();
    exchange(&mut client, &mut server);
    for kind in (DATA..=CONTINUATION).filter(|kind| ![frame::PRIORITY, PUSH_PROMISE].contains(kind))
    {
        assert!(kinds.contains(&kind), "no frame of type {kind}");
    }
}

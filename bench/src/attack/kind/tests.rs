//! Tests of the frames of each attack.

use super::super::bytes::parse_frame;
use super::*;

const BOTH: u8 = END_STREAM | END_HEADERS;

/// Type, flags, stream and payload length.
type Seen = (u8, u8, u32, usize);

fn attack(kind: AttackKind) -> Attack {
    Attack::new(kind, ([10, 0, 0, 1], 80).into())
}

/// Returns the first frames after the opening, and the number of streams opened by one write.
fn frames<const N: usize>(kind: AttackKind) -> ([Seen; N], u64) {
    let mut attack = attack(kind);
    let mut bytes = Vec::new();
    let streams = attack.fill(&mut bytes, &mut FlowControl::default());
    let mut rest = &bytes[..];
    let seen = std::array::from_fn(|_| {
        let (frame, after) = parse_frame(rest).unwrap();
        rest = after;
        (frame.kind, frame.flags, frame.stream, frame.payload.len())
    });
    (seen, streams)
}

/// Returns the length of a request's field block.
fn header_block_length() -> usize {
    request(GET, "10.0.0.1:80").len()
}

#[test]
fn connection_opening_is_valid() {
    for kind in AttackKind::value_variants() {
        let opening = attack(*kind).opening();
        if !kind.is_http2() {
            assert!(opening.starts_with(b"POST / HTTP/1.1\r\nhost: 10.0.0.1:80\r\n"));
            assert!(opening.ends_with(b"\r\ntransfer-encoding: chunked\r\n\r\n"));
            continue;
        }
        let frames = opening.strip_prefix(PREFACE).unwrap();
        let (settings, rest) = parse_frame(frames).unwrap();
        assert_eq!((settings.kind, settings.flags), (SETTINGS, 0));
        let (ack, rest) = parse_frame(rest).unwrap();
        assert_eq!((ack.kind, ack.flags, rest.len()), (SETTINGS, ACK, 0));
    }
}

#[test]
fn stream_attacks_open_stream_per_unit() {
    for (kind, header_flags, (second, flags, length)) in [
        (
            AttackKind::ZeroWindowUpdate,
            END_HEADERS,
            (WINDOW_UPDATE, 0, 4),
        ),
        (AttackKind::HalfClosedData, BOTH, (DATA, 0, 1)),
        (AttackKind::RapidReset, BOTH, (RST_STREAM, 0, 4)),
    ] {
        let (seen, streams) = frames(kind);
        let expected = [
            (HEADERS, header_flags, 1, header_block_length()),
            (second, flags, 1, length),
            (HEADERS, header_flags, 3, header_block_length()),
            (second, flags, 3, length),
        ];
        assert_eq!(seen, expected, "{kind:?}");
        let unit = 9 + header_block_length() + 9 + length;
        assert_eq!(streams, WRITE.div_ceil(unit) as u64, "{kind:?}");
    }
}

#[test]
fn zero_window_update_has_zero_increment() {
    let mut bytes = Vec::new();
    attack(AttackKind::ZeroWindowUpdate).append_unit(&mut bytes, &mut FlowControl::default());
    assert!(bytes.ends_with(&[0; 4]));
}

#[test]
fn single_stream_attacks_open_one_stream() {
    let post = (HEADERS, END_HEADERS, 1, header_block_length());
    let empty = (DATA, 0, 1, 0);
    assert_eq!(frames(AttackKind::EmptyData), ([post, empty, empty], 1));
    let last = (DATA, END_STREAM, 1, 0);
    let reset = (WINDOW_UPDATE, 0, 1, 4);
    assert_eq!(
        frames(AttackKind::ResetData),
        ([post, reset, last, last], 1)
    );
    let byte = (DATA, 0, 1, 1);
    assert_eq!(frames(AttackKind::TinyData), ([post, byte, byte], 1));
    let get = (HEADERS, END_STREAM, 1, header_block_length());
    let field = (CONTINUATION, 0, 1, 1);
    assert_eq!(frames(AttackKind::Continuation), ([get, field, field], 1));
}

#[test]
fn connection_attacks_open_no_stream() {
    let settings = (SETTINGS, 0, 0, 0);
    assert_eq!(frames(AttackKind::SettingsFlood), ([settings, settings], 0));
    let ping = (PING, 0, 0, 8);
    assert_eq!(frames(AttackKind::PingFlood), ([ping, ping], 0));
}

#[test]
fn hpack_bomb_inserts_field_once_and_references_it_repeatedly() {
    let (seen, streams) = frames(AttackKind::HpackBomb);
    let first_bomb_request = header_block_length() + BOMB_FIELD.len() + BOMB_VALUE;
    let expected = [
        (HEADERS, BOTH, 1, first_bomb_request),
        (HEADERS, BOTH, 3, header_block_length() + BOMB_FIELDS),
        (HEADERS, BOTH, 5, header_block_length() + BOMB_FIELDS),
    ];
    assert_eq!(seen, expected);
    assert!(streams > 60, "{streams}");
    let mut bytes = Vec::new();
    let mut attack = attack(AttackKind::HpackBomb);
    let flow_control = &mut FlowControl::default();
    attack.append_unit(&mut bytes, flow_control);
    attack.append_unit(&mut bytes, flow_control);
    assert!(bytes.ends_with(&[NEWEST; BOMB_FIELDS]));
    // An integer with a prefix of seven bits: the prefix, and seven bits a byte, the lowest first.
    let [.., prefix, low, high] = BOMB_FIELD;
    assert_eq!(prefix, 0x7f);
    let length = 0x7f + usize::from(low & 0x7f) + (usize::from(high) << 7);
    assert_eq!(length, BOMB_VALUE);
    // An entry larger than the table would only clear it.
    const { assert!(1 + BOMB_VALUE + 32 <= 4096) };
}

#[test]
fn tiny_chunks_have_one_byte() {
    let mut bytes = Vec::new();
    let streams = attack(AttackKind::TinyChunks).fill(&mut bytes, &mut FlowControl::default());
    assert!(bytes.starts_with(b"1\r\nx\r\n1\r\nx\r\n"));
    assert!(bytes.len() >= WRITE);
    assert_eq!(streams, 0);
}

#[test]
fn tiny_data_respects_windows_and_replaces_reset_stream() {
    let mut attack = attack(AttackKind::TinyData);
    let mut flow_control = FlowControl::default();
    let mut sent = 0;
    loop {
        let mut bytes = Vec::new();
        attack.fill(&mut bytes, &mut flow_control);
        if bytes.is_empty() {
            break;
        }
        sent += bytes.len();
    }
    assert_eq!(sent, 9 + header_block_length() + 65_535 * 10);
    let mut reset = Vec::new();
    frame(&mut reset, RST_STREAM, 0, 1, &CANCEL);
    frame(&mut reset, WINDOW_UPDATE, 0, 0, &[0, 0, 0, 1]);
    flow_control.read(&reset);
    let mut bytes = Vec::new();
    assert_eq!(attack.fill(&mut bytes, &mut flow_control), 1);
    assert_eq!(bytes.len(), 9 + header_block_length() + 10);
    assert_eq!(parse_frame(&bytes).unwrap().0.stream, 3);
}

#[test]
fn attack_ends_when_stream_ids_are_exhausted() {
    let mut attack = attack(AttackKind::RapidReset);
    attack.next = LAST_STREAM - 2;
    assert!(!attack.is_exhausted());
    let streams = attack.fill(&mut Vec::new(), &mut FlowControl::default());
    assert_eq!((streams, attack.is_exhausted()), (1, true));
}

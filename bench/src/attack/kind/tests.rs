//! The frames of each kind are what its name says.

use super::{super::bytes::split, *};

const BOTH: u8 = END_STREAM | END_HEADERS;

/// Kind, flags, stream, and how long the payload is.
type Seen = (u8, u8, u32, usize);

fn attack(kind: Kind) -> Attack {
    Attack::new(kind, ([10, 0, 0, 1], 80).into())
}

/// The first frames behind the opening, and how many streams they and those behind them open.
fn frames<const N: usize>(kind: Kind) -> ([Seen; N], u64) {
    let mut attack = attack(kind);
    let mut bytes = Vec::new();
    let streams = attack.fill(&mut bytes, &mut Answers::default());
    let mut rest = &bytes[..];
    let seen = std::array::from_fn(|_| {
        let (frame, after) = split(rest).unwrap();
        rest = after;
        (frame.kind, frame.flags, frame.stream, frame.payload.len())
    });
    (seen, streams)
}

/// How long the header block of a request is.
fn head() -> usize {
    request(GET, "10.0.0.1:80").len()
}

#[test]
fn connections_begin_as_the_protocol_wants_it() {
    for kind in Kind::value_variants() {
        let opening = attack(*kind).opening();
        if !kind.is_http2() {
            assert!(opening.starts_with(b"POST / HTTP/1.1\r\nhost: 10.0.0.1:80\r\n"));
            assert!(opening.ends_with(b"\r\ntransfer-encoding: chunked\r\n\r\n"));
            continue;
        }
        let frames = opening.strip_prefix(PREFACE).unwrap();
        let (settings, rest) = split(frames).unwrap();
        assert_eq!((settings.kind, settings.flags), (SETTINGS, 0));
        let (ack, rest) = split(rest).unwrap();
        assert_eq!((ack.kind, ack.flags, rest.len()), (SETTINGS, ACK, 0));
    }
}

#[test]
fn attacks_on_streams_open_one_after_the_other() {
    for (kind, head_flags, (second, flags, length)) in [
        (Kind::ZeroWindowUpdate, END_HEADERS, (WINDOW_UPDATE, 0, 4)),
        (Kind::HalfClosedData, BOTH, (DATA, 0, 1)),
        (Kind::RapidReset, BOTH, (RST_STREAM, 0, 4)),
    ] {
        let (seen, streams) = frames(kind);
        let expected = [
            (HEADERS, head_flags, 1, head()),
            (second, flags, 1, length),
            (HEADERS, head_flags, 3, head()),
            (second, flags, 3, length),
        ];
        assert_eq!(seen, expected, "{kind:?}");
        let unit = 9 + head() + 9 + length;
        assert_eq!(streams, WRITE.div_ceil(unit) as u64, "{kind:?}");
    }
}

#[test]
fn updates_by_nothing_are_by_nothing() {
    let mut bytes = Vec::new();
    attack(Kind::ZeroWindowUpdate).unit(&mut bytes, &mut Answers::default());
    assert!(bytes.ends_with(&[0; 4]));
}

#[test]
fn attacks_on_one_stream_open_no_other() {
    let post = (HEADERS, END_HEADERS, 1, head());
    let empty = (DATA, 0, 1, 0);
    assert_eq!(frames(Kind::EmptyData), ([post, empty, empty], 1));
    let last = (DATA, END_STREAM, 1, 0);
    let reset = (WINDOW_UPDATE, 0, 1, 4);
    assert_eq!(frames(Kind::ResetData), ([post, reset, last, last], 1));
    let byte = (DATA, 0, 1, 1);
    assert_eq!(frames(Kind::TinyData), ([post, byte, byte], 1));
    let get = (HEADERS, END_STREAM, 1, head());
    let field = (CONTINUATION, 0, 1, 1);
    assert_eq!(frames(Kind::Continuation), ([get, field, field], 1));
}

#[test]
fn attacks_on_the_connection_open_no_stream() {
    let settings = (SETTINGS, 0, 0, 0);
    assert_eq!(frames(Kind::SettingsFlood), ([settings, settings], 0));
    let ping = (PING, 0, 0, 8);
    assert_eq!(frames(Kind::PingFlood), ([ping, ping], 0));
}

#[test]
fn the_bomb_is_lit_once_and_goes_off_over_and_over() {
    let (seen, streams) = frames(Kind::HpackBomb);
    let fuse = head() + BOMB_FIELD.len() + BOMB_VALUE;
    let expected = [
        (HEADERS, BOTH, 1, fuse),
        (HEADERS, BOTH, 3, head() + BOMB_FIELDS),
        (HEADERS, BOTH, 5, head() + BOMB_FIELDS),
    ];
    assert_eq!(seen, expected);
    assert!(streams > 60, "{streams}");
    let mut bytes = Vec::new();
    let mut attack = attack(Kind::HpackBomb);
    let answers = &mut Answers::default();
    attack.unit(&mut bytes, answers);
    attack.unit(&mut bytes, answers);
    assert!(bytes.ends_with(&[NEWEST; BOMB_FIELDS]));
    // An integer with a prefix of seven bits: the prefix, and seven bits a byte, the lowest first.
    let [.., prefix, low, high] = BOMB_FIELD;
    assert_eq!(prefix, 0x7f);
    let length = 0x7f + usize::from(low & 0x7f) + (usize::from(high) << 7);
    assert_eq!(length, BOMB_VALUE);
    // An entry that is larger than the table would empty it.
    const { assert!(1 + BOMB_VALUE + 32 <= 4096) };
}

#[test]
fn chunks_have_one_byte() {
    let mut bytes = Vec::new();
    let streams = attack(Kind::TinyChunks).fill(&mut bytes, &mut Answers::default());
    assert!(bytes.starts_with(b"1\r\nx\r\n1\r\nx\r\n"));
    assert!(bytes.len() >= WRITE);
    assert_eq!(streams, 0);
}

#[test]
fn tiny_data_stays_within_the_windows_and_leaves_streams_that_were_reset() {
    let mut attack = attack(Kind::TinyData);
    let mut answers = Answers::default();
    let mut sent = 0;
    loop {
        let mut bytes = Vec::new();
        attack.fill(&mut bytes, &mut answers);
        if bytes.is_empty() {
            break;
        }
        sent += bytes.len();
    }
    assert_eq!(sent, 9 + head() + 65_535 * 10);
    let mut reset = Vec::new();
    frame(&mut reset, RST_STREAM, 0, 1, &CANCEL);
    frame(&mut reset, WINDOW_UPDATE, 0, 0, &[0, 0, 0, 1]);
    answers.read(&reset);
    let mut bytes = Vec::new();
    assert_eq!(attack.fill(&mut bytes, &mut answers), 1);
    assert_eq!(bytes.len(), 9 + head() + 10);
    assert_eq!(split(&bytes).unwrap().0.stream, 3);
}

#[test]
fn numbers_of_streams_end() {
    let mut attack = attack(Kind::RapidReset);
    attack.next = LAST_STREAM - 2;
    assert!(!attack.is_over());
    let streams = attack.fill(&mut Vec::new(), &mut Answers::default());
    assert_eq!((streams, attack.is_over()), (1, true));
}

//! The text format: valid scripts, errors, bounds, and that printing loses nothing.

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

fn error(text: &str) -> String {
    Script::parse(text).expect_err(text).to_string()
}

#[test]
fn all_steps_are_read_and_printed_alike() {
    let text = r#"protocol http2

client:
  manual
  settings initial-window-size=0 9=1
  settings ack
  headers #1 end
    | :method: GET
    | x: \x01 "q" \\
    | empty:\x20
  continuation 3 more
  data #1 end padding=3 "a\r\n\"" "b" * 7
  rst #1 CANCEL
  goaway #2 99
  ping ack 7
  ping 18446744073709551615
  window 0 1
  frame 11 255 0 "x"
  call #1 /a.B/C
  reply #1
  message #1 compressed "m"
  message #1 end
  status #1 3 "not so"
  status #1 0
  websocket text more "hi"
  websocket 3

client:
  send pieces=1
    | GET / HTTP/1.1
    |
    |  two blanks and an end\x20
  send "no line" * 3
  pause 5
  signal now
  wait signal now
  wait "text"
  wait bytes 7
  wait end
  wait head
  wait head #2
  wait message
  wait message 5
  wait data #1 100
  wait content "a" * 2
  wait tunnel 8
  wait goaway
  wait settings-ack
  wait ping-ack
  read stop
  read go
  read slow 10 20
  finish
  reset
  close

server:
"#;
    let script = Script::parse(text).expect("it is a script");
    assert_eq!(script.to_string(), text);
}

#[test]
fn errors_have_place_and_remedy() {
    let tcp = "protocol tcp\nclient:\n";
    let place = |text: &str| {
        let error = Script::parse(text).expect_err(text);
        assert!(!error.remedy.is_empty());
        (error.line, error.column)
    };
    assert_eq!(place(&format!("{tcp}  sned \"x\"\nserver:\n")), (3, 3));
    assert_eq!(place(&format!("{tcp}  send \"x\\q\"\nserver:\n")), (3, 10));
    assert_eq!(place(&format!("{tcp}  send \"x\nserver:\n")), (3, 8));
    assert_eq!(place(&format!("{tcp}  send\n  close\nserver:\n")), (3, 1));
    assert_eq!(place(&format!("{tcp}  close now\nserver:\n")), (3, 9));
    assert_eq!(place(&format!("{tcp}  headers #0\nserver:\n")), (3, 12));
    assert_eq!(
        place(&format!("{tcp}  headers #1\n    | no colon\nserver:\n")),
        (4, 7)
    );
    assert_eq!(place("protocol quic\n"), (1, 10));
    assert_eq!(place("close\n"), (1, 1));
    assert_eq!(place("protocol tcp\nclient:\n  | x\n"), (3, 5));
    assert_eq!(place(&format!("{tcp}server refuses:\n  close\n")), (4, 3));
    assert!(error("protocol tcp\nclient:\n").contains("no `server:`"));
    assert_eq!(place(&format!("{tcp}server:\nresponse:\n")), (4, 1));
    assert_eq!(place(&format!("{tcp}response:\nserver refuses:\n")), (4, 1));
    assert!(error(&format!("{tcp}response:\n")).contains("is for HTTP/1"));
    assert!(error(&format!("{tcp} pause 99999999\nserver:")).contains("to 7200000"));
}

#[test]
fn bounds_hold() {
    let script = |steps: &str| Script::parse(&format!("protocol tcp\nclient:\n{steps}server:\n"));
    assert!(script(&"close\n".repeat(MAX_STEPS)).is_ok());
    assert!(script(&"close\n".repeat(MAX_STEPS + 1)).is_err());
    assert!(script("send \"x\" * 67108864\n").is_ok());
    assert!(script("send \"x\" * 67108864 \"x\"\n").is_err());
    assert!(script("send \"x\" * 67108864\nsend\n|\n").is_err());
    assert!(script("send \"xx\" * 67108864 \"xx\" * 67108864\n").is_err());
    assert!(script(&format!("headers #1\n{}", "|a: b\n".repeat(MAX_FIELDS))).is_ok());
    assert!(script(&format!("headers #1\n{}", "|a: b\n".repeat(MAX_FIELDS + 1))).is_err());
    assert!(script(&"client:\n".repeat(MAX_CONNECTIONS - 1)).is_ok());
    assert!(script(&"client:\n".repeat(MAX_CONNECTIONS)).is_err());
    assert!(Script::parse(&" ".repeat(MAX_TEXT + 1)).is_err());
}

fn bytes() -> impl Strategy<Value = Bytes> {
    let part = (vec(any::<u8>(), 0..6), 1..4_u32).prop_map(|(text, times)| Part { text, times });
    vec(part, 1..3).prop_map(Bytes)
}

fn stream() -> impl Strategy<Value = Stream> {
    prop_oneof![
        (1..9_u32).prop_map(Stream::Nth),
        (0..9_u32).prop_map(Stream::Id)
    ]
}

fn step() -> impl Strategy<Value = Step> {
    let field = ("[:]?[a-z]{1,4}", vec(any::<u8>(), 0..5))
        .prop_map(|(name, value)| (name.into_bytes(), value));
    let block = (stream(), any::<bool>(), any::<bool>(), vec(field, 0..4)).prop_map(
        |(stream, end, more, fields)| FieldBlock {
            stream,
            end,
            more,
            fields,
        },
    );
    prop_oneof![
        (bytes(), proptest::option::of(1..9_usize))
            .prop_map(|(bytes, piece)| Step::Send { bytes, piece }),
        vec(vec(any::<u8>(), 0..5), 1..4).prop_map(|lines| {
            let bytes = Bytes::literal([lines.join(&b"\r\n"[..]), b"\r\n".to_vec()].concat());
            Step::Send { bytes, piece: None }
        }),
        block.prop_map(|block| Step::Http2(Http2Step::Headers(block))),
        (stream(), any::<u32>())
            .prop_map(|(stream, code)| Step::Http2(Http2Step::ResetStream { stream, code })),
        vec((any::<u16>(), any::<u32>()), 0..3)
            .prop_map(|settings| Step::Http2(Http2Step::Settings(settings))),
        (0..16_u8, any::<bool>(), bytes()).prop_map(|(opcode, more, bytes)| {
            Step::WebSocket(WebSocketStep {
                opcode,
                more,
                bytes,
            })
        }),
        bytes().prop_map(|bytes| Step::Wait(Wait::Text(bytes))),
        bytes().prop_map(|bytes| Step::Wait(Wait::Content(bytes))),
    ]
}

proptest! {
    #[test]
    fn printed_scripts_are_read_alike(
        steps in vec(step(), 0..6),
        replies in vec(vec(step(), 0..3), 1..3),
        is_by_request in any::<bool>(),
    ) {
        let server = if is_by_request { Server::Responds } else { Server::Accepts };
        let script = Script {
            protocol: Protocol::Http1,
            clients: vec![steps],
            server: server(replies),
        };
        let text = script.to_string();
        let read = Script::parse(&text);
        prop_assert_eq!(read.as_ref(), Ok(&script), "{}", text);
    }

    #[test]
    fn no_text_makes_the_parser_panic(text in "(protocol tcp\n|client:\n|server:\n|response:\n| *(send|wait|data|frame|headers|\\|) ?|[ -~]{0,9}\n?){0,20}") {
        let _result = Script::parse(&text);
    }
}

//! Round trips, and the examples of RFC 7541, appendix C.

use bytes::Bytes;
use http::{HeaderName, HeaderValue, Method, StatusCode};

use super::field::STATIC_TABLE;
use super::*;

fn decode(decoder: &mut Decoder, block: &[u8]) -> Result<Vec<Field>, DecodeError> {
    let mut fields = Vec::new();
    let progress = &mut DecodeProgress::default();
    decoder.decode(progress, &mut &*block, true, |field, _| {
        fields.push(field.into_owned());
        true
    })?;
    Ok(fields)
}

fn bytes(hex: &str) -> Vec<u8> {
    let digits: Vec<char> = hex.chars().filter(|c| !c.is_whitespace()).collect();
    let pairs = digits.chunks(2);
    pairs
        .map(|pair| u8::from_str_radix(&String::from_iter(pair), 16).unwrap())
        .collect()
}

fn regular(name: &'static str, value: &'static str) -> Field {
    Field::Regular(
        HeaderName::from_static(name),
        HeaderValue::from_static(value),
    )
}

fn text(value: &'static str) -> Bytes {
    Bytes::from_static(value.as_bytes())
}

/// Sections C.3 and C.4: the same requests without and with Huffman code.
#[test]
fn request_examples_of_the_rfc_are_decoded() {
    let plain = [
        "8286 8441 0f77 7777 2e65 7861 6d70 6c65 2e63 6f6d",
        "8286 84be 5808 6e6f 2d63 6163 6865",
        "8287 85bf 400a 6375 7374 6f6d 2d6b 6579 0c63 7573 746f 6d2d 7661 6c75 65",
    ];
    let coded = [
        "8286 8441 8cf1 e3c2 e5f2 3a6b a0ab 90f4 ff",
        "8286 84be 5886 a8eb 1064 9cbf",
        "8287 85bf 4088 25a8 49e9 5ba9 7d7f 8925 a849 e95b b8e8 b4bf",
    ];
    let get = Field::PseudoHeader(PseudoHeader::Method(Method::GET));
    let authority = Field::PseudoHeader(PseudoHeader::Authority(text("www.example.com")));
    let scheme = |scheme| Field::PseudoHeader(PseudoHeader::Scheme(text(scheme)));
    let path = |path| Field::PseudoHeader(PseudoHeader::Path(text(path)));
    for blocks in [plain, coded] {
        let mut decoder = Decoder::new();
        let mut next = blocks
            .iter()
            .map(|block| decode(&mut decoder, &bytes(block)).unwrap());
        let first = [get.clone(), scheme("http"), path("/"), authority.clone()];
        assert_eq!(next.next().unwrap(), first);
        let second = [&first[..], &[regular("cache-control", "no-cache")]].concat();
        assert_eq!(next.next().unwrap(), second);
        let third = [
            get.clone(),
            scheme("https"),
            path("/index.html"),
            authority.clone(),
            regular("custom-key", "custom-value"),
        ];
        assert_eq!(next.next().unwrap(), third);
    }
}

/// Section C.6, with a table of 256 bytes. Fields are evicted from it.
#[test]
fn response_examples_of_the_rfc_are_decoded() {
    let blocks = [
        "3fe1 01 4882 6402 5885 aec3 771a 4b61 96d0 7abe 9410 54d4 44a8 2005 9504 0b81 66e0 82a6 2d1b ff6e 919d 29ad 1718 63c7 8f0b 97c8 e9ae 82ae 43d3",
        "4883 640e ffc1 c0bf",
        "88c1 6196 d07a be94 1054 d444 a820 0595 040b 8166 e084 a62d 1bff c05a 839b d9ab 77ad 94e7 821d d7f2 e6c7 b335 dfdf cd5b 3960 d5af 2708 7f36 72c1 ab27 0fb5 291f 9587 3160 65c0 03ed 4ee5 b106 3d50 07",
    ];
    let mut decoder = Decoder::new();
    let mut next = blocks
        .iter()
        .map(|block| decode(&mut decoder, &bytes(block)).unwrap());
    let status = |status| Field::PseudoHeader(PseudoHeader::Status(status));
    let private = regular("cache-control", "private");
    let location = regular("location", "https://www.example.com");
    let date = |date| regular("date", date);
    let redirect = |code| {
        let date = date("Mon, 21 Oct 2013 20:13:21 GMT");
        [status(code), private.clone(), date, location.clone()]
    };
    assert_eq!(next.next().unwrap(), redirect(StatusCode::FOUND));
    let temporary = redirect(StatusCode::TEMPORARY_REDIRECT);
    assert_eq!(next.next().unwrap(), temporary);
    let ok = [
        status(StatusCode::OK),
        private.clone(),
        date("Mon, 21 Oct 2013 20:13:22 GMT"),
        location.clone(),
        regular("content-encoding", "gzip"),
        regular(
            "set-cookie",
            "foo=ASDJKHQKBZXOQWEOPIUAXQWEOIU; max-age=3600; version=1",
        ),
    ];
    assert_eq!(next.next().unwrap(), ok);
}

/// The 64-bit FNV-1a hash.
fn checksum(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3)
    })
}

/// The expected checksums were computed from the RFC's text. No round trip could find a wrong
/// entry, because encoder and decoder share the tables.
#[test]
fn tables_are_those_of_the_rfc() {
    let lines = STATIC_TABLE.map(|(name, value)| format!("{name}\0{value}\0"));
    let static_table = checksum(lines.concat().as_bytes());
    assert_eq!(static_table, 0x948a_024f_c67a_b878, "appendix A");
    let code_lengths = checksum(&huffman::LENGTHS);
    assert_eq!(code_lengths, 0xb324_86df_291d_b3ed, "appendix B");
}

#[test]
fn invalid_field_blocks_are_rejected() {
    for (block, why) in [
        ("80", "index 0"),
        ("be", "an empty table"),
        ("ff ff ff ff ff 0f", "an index that is too large"),
        ("82 3f e1 01", "a size update after a field"),
        ("3f e2 1f", "a table of 4097 bytes"),
        ("40 03 61 62", "an incomplete name"),
        ("40 01 61 05 61", "an incomplete value"),
        ("40 81 00 00", "a name with an invalid Huffman code"),
    ] {
        let mut decoder = Decoder::new();
        decode(&mut decoder, &bytes(block)).expect_err(why);
    }
}

#[test]
fn malformed_fields_are_added_to_the_table() {
    let mut decoder = Decoder::new();
    // `A: 1`, an unknown pseudo-header field, a value with a line feed; then the three by their
    // indices, and the first one's name again.
    let block = bytes("4001 4101 31 4002 3a78 0131 4001 7801 0a be bf c0 7f01 0132");
    let fields = decode(&mut decoder, &block).unwrap();
    assert_eq!(fields.len(), 7);
    assert!(
        fields
            .iter()
            .all(|field| matches!(field, Field::Malformed(_)))
    );
    assert_eq!(fields[0], fields[5]);
}

#[test]
fn only_literals_with_indexing_are_added_to_the_table() {
    for (kind, is_added) in [("40", true), ("00", false), ("10", false)] {
        let mut decoder = Decoder::new();
        decode(&mut decoder, &bytes(&format!("{kind} 0161 0162"))).unwrap();
        assert_eq!(decode(&mut decoder, &[0xbe]).is_ok(), is_added, "{kind}");
    }
}

#[test]
fn table_is_evicted_by_size_updates_and_large_fields() {
    // `a: b`, of 34 bytes, twice.
    let filled = || {
        let mut decoder = Decoder::new();
        decode(&mut decoder, &bytes("40 0161 0162 40 0161 0162 be bf")).unwrap();
        decoder
    };
    for (block, left) in [("3f25", 2), ("3f24", 1), ("3f03", 1), ("20", 0)] {
        let mut decoder = filled();
        decode(&mut decoder, &bytes(block)).unwrap();
        assert_eq!(decode(&mut decoder, &[0xbe]).is_ok(), left > 0, "{block}");
        assert_eq!(decode(&mut decoder, &[0xbf]).is_ok(), left > 1, "{block}");
    }
    // A field that is larger than the table.
    let mut decoder = filled();
    let large = [&bytes("40 0178 7f f51e")[..], &[b'v'; 4_084]].concat();
    assert_eq!(decode(&mut decoder, &large).unwrap().len(), 1);
    decode(&mut decoder, &[0xbe]).unwrap_err();
    // `a: c`, with the name of the entry that it evicts.
    let mut decoder = filled();
    let fields = decode(&mut decoder, &bytes("3f03 7e 0163 be")).unwrap();
    assert_eq!(fields, [regular("a", "c"), regular("a", "c")]);
    decode(&mut decoder, &[0xbf]).unwrap_err();
}

#[test]
fn recurring_fields_are_indexed() {
    let mut encoder = Encoder::new();
    let mut decoder = Decoder::new();
    let mut send = |id: usize| {
        let mut block = Vec::new();
        encoder.begin(&mut block);
        encoder.field(&mut block, ":path", b"/service/method");
        encoder.field(&mut block, "x-id", id.to_string().as_bytes());
        encoder.field(&mut block, ":method", b"POST");
        assert_eq!(decode(&mut decoder, &block).unwrap().len(), 3);
        block.len()
    };
    let (first, second, third) = (send(1), send(2), send(3));
    assert_eq!((first, second), (third + 15 + 1, first), "{third}");
    // Ids do not evict the path.
    for id in 4..10_000 {
        assert!(send(id) <= third + 4);
    }
}

#[test]
fn sensitive_fields_are_never_indexed() {
    let encoder = Encoder::new();
    let mut decoder = Decoder::new();
    for _ in 0..3 {
        let mut block = Vec::new();
        encoder.sensitive(&mut block, "authorization", b"secret");
        let fields = decode(&mut decoder, &block).unwrap();
        let [Field::Regular(_, value)] = &*fields else {
            panic!("{fields:?}");
        };
        assert!(value.is_sensitive());
        assert_eq!(block.len(), 9);
    }
}

/// An event of the encoder.
#[derive(Clone, Debug)]
enum Event {
    PartialFieldBlock(Vec<(String, Vec<u8>)>),
    Resize(u32),
}

fn events() -> impl proptest::strategy::Strategy<Value = Vec<Event>> {
    use proptest::prelude::*;
    // Few names and values, so that they recur, and some large ones.
    let name = prop_oneof!["[a-d]{1,2}", Just("cookie".into()), Just("accept".into())];
    let value = prop_oneof![
        4 => "[x-z]{0,2}".prop_map(String::into_bytes),
        1 => (500_usize..1200).prop_map(|length| vec![b'l'; length]),
    ];
    let fields = prop::collection::vec((name, value), 0..20);
    let event = prop_oneof![
        8 => fields.prop_map(Event::PartialFieldBlock),
        1 => (0_u32..6000).prop_map(Event::Resize),
    ];
    prop::collection::vec(event, 0..60)
}

proptest::proptest! {
    #[test]
    fn field_blocks_round_trip(events in events()) {
        let mut encoder = Encoder::new();
        let mut decoder = Decoder::new();
        for event in events {
            match event {
                Event::Resize(max) => encoder.resize(max),
                Event::PartialFieldBlock(fields) => {
                    let mut block = Vec::new();
                    encoder.begin(&mut block);
                    for (name, value) in &fields {
                        encoder.field(&mut block, name, value);
                    }
                    let sent: Vec<_> = fields
                        .iter()
                        .map(|(name, value)| Field::Regular(
                            HeaderName::from_bytes(name.as_bytes()).unwrap(),
                            HeaderValue::from_bytes(value).unwrap(),
                        ))
                        .collect();
                    assert_eq!(decode(&mut decoder, &block).unwrap(), sent);
                }
            }
        }
    }

    #[test]
    fn arbitrary_bytes_do_not_panic_the_decoder(blocks: Vec<Vec<u8>>) {
        let mut decoder = Decoder::new();
        for block in blocks {
            if decode(&mut decoder, &block).is_err() {
                break;
            }
        }
    }
}

//! The decoder, with input split at every byte.

use proptest::prelude::*;

use super::*;

/// The data, the trailers, and the bytes after the body.
type Decoded = (Vec<u8>, Option<HeaderMap>, Vec<u8>);

const LIMITS: Http1Limits = Http1Limits::DEFAULT;

/// Decodes a body received in `pieces`.
fn decode<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> Result<Option<Decoded>, MessageError> {
    let (mut decoder, mut input) = (Decoder::new(&LIMITS), BytesMut::new());
    let (mut data, mut end) = (Vec::new(), None);
    for piece in pieces {
        input.extend_from_slice(piece);
        while end.is_none() {
            match decoder.next(&mut input, &LIMITS)? {
                None => break,
                Some(BodyPart::Data(bytes)) => data.extend_from_slice(&bytes),
                Some(BodyPart::End(trailers)) => end = Some(trailers),
            }
        }
    }
    Ok(end.map(|trailers| (data, trailers, input.to_vec())))
}

/// Decodes a body in one piece, split in two at every byte, and byte by byte; all results must be
/// equal.
fn decode_with_all_splits(text: &[u8]) -> Result<Option<Decoded>, MessageError> {
    let whole = decode([text]);
    assert_eq!(decode(text.chunks(1)), whole);
    for cut in 0..text.len() {
        let (left, right) = text.split_at(cut);
        assert_eq!(decode([left, right]), whole, "cut at {cut}");
    }
    whole
}

#[test]
fn valid_bodies_decode_regardless_of_splits() {
    let rows: &[(&str, &str, usize)] = &[
        ("0\r\n\r\n", "", 0),
        ("000\r\n\r\n", "", 0),
        ("5\r\nhello\r\n0\r\n\r\n", "hello", 0),
        (
            "5;a=b;c=\"d\"\r\nhello\r\n1\r\n!\r\n0;x\r\n\r\n",
            "hello!",
            0,
        ),
        (
            "00000000000000a\r\n0123456789\r\n0\r\n\r\n",
            "0123456789",
            0,
        ),
        ("A\r\n\r\n0\r\n\r\n..x\r\n0\r\n\r\n", "\r\n0\r\n\r\n..x", 0),
        ("1\r\na\r\n0\r\nx-sum: 1\r\nX-Two: 2\r\n\r\n", "a", 2),
        ("0\r\ncontent-length: 5\r\n\r\n", "", 0),
    ];
    for (text, body, trailers) in rows {
        for after in ["", "GET / HTTP/1.1\r\n"] {
            let text = format!("{text}{after}");
            let (data, found, left) = decode_with_all_splits(text.as_bytes()).unwrap().unwrap();
            assert_eq!(String::from_utf8(data).unwrap(), *body, "{text:?}");
            assert_eq!(found.map_or(0, |found| found.len()), *trailers, "{text:?}");
            assert_eq!(left, after.as_bytes(), "{text:?}");
        }
    }
}

#[test]
fn small_chunks_are_joined_up_to_four_kilobytes() {
    for (chunk, size, count) in [
        ("1\r\nx\r\n", 1, 10_000),
        ("0a\r\n0123456789\r\n", 10, 1_000),
        ("0000000001\r\nx\r\n", 1, 10_000),
        ("000000000000000a\r\n0123456789\r\n", 10, 1_000),
        ("10\r\n0123456789abcdef\r\n", 16, 1_000),
    ] {
        let text = format!("{}0\r\n\r\n", chunk.repeat(count));
        let (mut decoder, mut input) = (Decoder::new(&LIMITS), BytesMut::from(&*text));
        let mut sizes = Vec::new();
        while let Some(BodyPart::Data(data)) = decoder.next(&mut input, &LIMITS).unwrap() {
            sizes.push(data.len());
        }
        let total: usize = sizes.iter().sum();
        assert_eq!(total, count * size);
        assert!(sizes.len() <= total / 4096 + 1, "{sizes:?}");
    }
    // A single chunk is not delayed.
    let (mut decoder, mut input) = (Decoder::new(&LIMITS), BytesMut::from("1\r\nx\r\n1\r\n"));
    let part = decoder.next(&mut input, &LIMITS);
    assert_eq!(part, Ok(Some(BodyPart::Data(Bytes::from_static(b"x")))));
    assert_eq!(decoder.next(&mut input, &LIMITS), Ok(None));
}

#[test]
fn invalid_bodies_are_rejected() {
    use MessageError::{
        BareLineFeed, InvalidChunkExtension, InvalidChunkSize, InvalidFieldName, MissingChunkEnd,
    };
    let rows: &[(&[u8], MessageError)] = &[
        (b"x\r\n", InvalidChunkSize),
        (b"\r\n", InvalidChunkSize),
        (b";a\r\n", InvalidChunkSize),
        (b" 5\r\nhello\r\n", InvalidChunkSize),
        (b"+5\r\nhello\r\n", InvalidChunkSize),
        (b"-5\r\nhello\r\n", InvalidChunkSize),
        (b"0x5\r\nhello\r\n", InvalidChunkSize),
        (b"5 \r\nhello\r\n", InvalidChunkSize),
        (b"5 ;a\r\nhello\r\n", InvalidChunkSize),
        (b"5_0\r\nhello\r\n", InvalidChunkSize),
        (b"5\nhello\r\n", InvalidChunkSize),
        (b"10000000000000005\r\nhello\r\n", InvalidChunkSize),
        (b"00000000000000005\r\nhello\r\n", InvalidChunkSize),
        (b"1\r\na\r\n00000000000000001\r\na\r\n", InvalidChunkSize),
        (b"5;a\nhello\r\n", BareLineFeed),
        (b"5\r5\r\nhello\r\n", InvalidChunkExtension),
        (b"5;a\rb\r\nhello\r\n", InvalidChunkExtension),
        (b"5;\0\r\nhello\r\n", InvalidChunkExtension),
        (b"5\r\nhello\n0\r\n\r\n", MissingChunkEnd),
        (b"5\r\nhello!\r\n0\r\n\r\n", MissingChunkEnd),
        (b"5\r\nhello0\r\n\r\n", MissingChunkEnd),
        (b"5\r\nhello\r0\r\n\r\n", MissingChunkEnd),
        (b"0\r\nx: 1\n\r\n", BareLineFeed),
        (b"0\r\n\n", BareLineFeed),
        (b"0\r\nx : 1\r\n\r\n", InvalidFieldName),
        (b"0\r\nx: 1\r\n y\r\n\r\n", InvalidFieldName),
    ];
    for (text, expected) in rows {
        let shown = String::from_utf8_lossy(text);
        assert_eq!(decode_with_all_splits(text), Err(*expected), "{shown:?}");
    }
}

#[test]
fn extensions_and_trailers_beyond_limit_are_rejected() {
    let endless = format!("1;{}", "x".repeat(LIMITS.extensions as usize + 2));
    assert_eq!(
        decode([endless.as_bytes()]),
        Err(MessageError::ChunkExtensionsTooLarge)
    );
    let often = "1;xxxxxxx\r\na\r\n".repeat(LIMITS.extensions as usize / 8 + 1);
    assert_eq!(
        decode([often.as_bytes()]),
        Err(MessageError::ChunkExtensionsTooLarge)
    );
    let trailers = format!("0\r\nx: {}", "x".repeat(LIMITS.trailers as usize));
    assert_eq!(
        decode([trailers.as_bytes()]),
        Err(MessageError::TrailersTooLarge)
    );
    let many = format!("0\r\n{}\r\n", "x: 1\r\n".repeat(101));
    assert_eq!(decode([many.as_bytes()]), Err(MessageError::TooManyFields));
}

#[test]
fn chunk_sizes_are_written_in_hexadecimal() {
    for size in [0, 1, 9, 15, 16, 255, 256, 65_536, usize::MAX] {
        let mut out = Vec::new();
        write_size(&mut out, size);
        assert_eq!(String::from_utf8(out).unwrap(), format!("{size:x}\r\n"));
    }
}

/// They may come from HTTP/2, whose decoder does not filter trailers.
#[test]
fn forbidden_trailers_are_not_written() {
    let mut trailers = HeaderMap::new();
    for name in [
        "host",
        "x-sum",
        "content-length",
        "transfer-encoding",
        "l5d-orig-proto",
    ] {
        trailers.insert(name, http::HeaderValue::from_static("1"));
    }
    let mut text = Vec::new();
    write_end(&mut text, Some(&trailers));
    assert_eq!(text, b"0\r\nx-sum: 1\r\n\r\n");
}

proptest! {
    /// The decoder reads what the encoder writes, however it is split.
    #[test]
    fn encoded_bodies_decode_to_the_same_data(
        chunks in prop::collection::vec(prop::collection::vec(any::<u8>(), 1..300), 0..8),
        cuts in prop::collection::vec(1_usize..64, 1..8),
        trailer in any::<bool>(),
    ) {
        let mut trailers = HeaderMap::new();
        trailers.insert("x-sum", http::HeaderValue::from_static("1"));
        let trailers = trailer.then_some(trailers);
        let mut text = Vec::new();
        for chunk in &chunks {
            write_size(&mut text, chunk.len());
            text.extend_from_slice(chunk);
            text.extend_from_slice(CHUNK_END);
        }
        write_end(&mut text, trailers.as_ref());
        let mut pieces = Vec::new();
        let mut rest = &text[..];
        for cut in cuts.iter().cycle() {
            if rest.is_empty() { break; }
            let (piece, after) = rest.split_at((*cut).min(rest.len()));
            pieces.push(piece);
            rest = after;
        }
        let (data, found, left) = decode(pieces).unwrap().unwrap();
        prop_assert_eq!(data, chunks.concat());
        prop_assert_eq!(found, trailers);
        prop_assert!(left.is_empty());
    }

    /// No input causes a panic, and splitting the input does not change the result.
    #[test]
    fn arbitrary_input_decodes_the_same_when_split(text in "[0-9a-f;\r\n x:]{0,40}", cut in 0_usize..40) {
        let (left, right) = text.as_bytes().split_at(cut.min(text.len()));
        prop_assert_eq!(decode([left, right]), decode([text.as_bytes()]));
    }
}

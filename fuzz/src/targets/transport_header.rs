//! The transport header with any split: decoded headers can be encoded, encoded headers can be
//! decoded, no byte after a header is consumed, the bytes held stay within the limit, and the work
//! is linear.
//!
//! Input: the split, whether a valid header comes first, then bytes.

use std::time::Duration;

use mesh_proxy::fuzzing::header::{self, HeaderError, SessionProtocol, TransportHeader};
use tokio::join;

use super::detect::check_bounds;
use crate::input::Input;
use crate::test_env::{self, pipe, receive, scratch, send};

/// Never expires, because the peer closes.
const LIMIT: Duration = Duration::from_secs(60);

pub(crate) fn run(input: &[u8]) {
    let mut input = Input(input);
    let split = input.byte();
    if input.byte() & 1 == 0 {
        check(input.0, split);
    } else {
        check_encoded(input, split);
    }
}

/// Decodes arbitrary bytes.
fn check(bytes: &[u8], split: u8) {
    let (read, rest) = read(bytes, split);
    let (unsplit, unsplit_rest) = self::read(bytes, 0);
    let results = [&read, &unsplit].map(shown);
    assert_eq!(results[0], results[1], "the result depends on the split");
    let Ok(header) = read else { return };
    assert_eq!(rest, unsplit_rest);
    let is_intact = bytes.ends_with(&rest);
    assert!(is_intact, "bytes after the header were changed");
    assert_ne!(header.port, 0);
    let encoded = header.encode();
    let (decoded, rest) = self::read(&encoded, 0);
    assert_eq!(decoded.expect("a valid header"), header);
    assert!(rest.is_empty());
}

/// Decodes an encoded header that is followed by other bytes.
fn check_encoded(mut input: Input<'_>, split: u8) {
    let port = input.word().max(1);
    let session = input.choose([
        SessionProtocol::Opaque,
        SessionProtocol::Http1,
        SessionProtocol::Http2,
    ]);
    let length = usize::from(input.byte());
    let name = String::from_utf8_lossy(input.take(length)).into_owned();
    let header = TransportHeader {
        port,
        name: (!name.is_empty()).then(|| name.into()),
        session,
    };
    let encoded = header.encode();
    // A complete header is removed from the buffered bytes, which then show only the bytes after
    // it.
    let incomplete = &encoded[..encoded.len() - 1];
    let (read_incomplete, rest) = read(incomplete, split);
    assert!(
        matches!(read_incomplete, Err(HeaderError::Read(_))),
        "{read_incomplete:?}"
    );
    assert_eq!(rest, incomplete);
    let bytes = [&encoded, input.0].concat();
    let (read, rest) = read(&bytes, split);
    assert_eq!(read.expect("a valid header"), header);
    assert_eq!(rest, input.0);
}

/// Reads a header from `bytes`. Returns it and the rest.
fn read(bytes: &[u8], split: u8) -> (Result<TransportHeader, HeaderError>, Vec<u8>) {
    test_env::run(async {
        let (mut io, peer) = pipe();
        let reading = async {
            let read = header::read(&mut io, &scratch(), LIMIT).await;
            // A header that was read is not held any more.
            check_bounds(&io, bytes.len());
            (read, receive(io).await.0)
        };
        join!(reading, send(peer, bytes, split)).0
    })
}

fn shown(read: &Result<TransportHeader, HeaderError>) -> String {
    match read {
        Ok(header) => format!("{header:?}"),
        Err(error) => error.to_string(),
    }
}

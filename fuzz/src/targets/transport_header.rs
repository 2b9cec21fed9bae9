//! The transport header, at any split: what is read can be written again, what is written can be
//! read, and nothing behind a header is taken.
//!
//! Input: how it is cut, whether a header is written first, then bytes.

use std::time::Duration;

use mesh_proxy::transport::header::{self, HeaderError, SessionProtocol, TransportHeader};
use tokio::join;

use crate::input::Input;
use crate::world::{self, pipe, receive, send};

/// The other end closes, so it is never waited for.
const LIMIT: Duration = Duration::from_secs(60);

pub(crate) fn run(input: &[u8]) {
    let mut input = Input(input);
    let how = input.byte();
    if input.byte() & 1 == 0 {
        check(input.0, how);
    } else {
        check_written(input, how);
    }
}

/// Arbitrary bytes.
fn check(bytes: &[u8], how: u8) {
    let (read, behind) = read(bytes, how);
    let (again, behind_again) = self::read(bytes, 0);
    assert_eq!(
        shown(&read),
        shown(&again),
        "it matters how a header is cut"
    );
    let Ok(header) = read else { return };
    assert_eq!(behind, behind_again);
    assert!(
        bytes.ends_with(&behind),
        "bytes behind the header were changed"
    );
    assert_ne!(header.port, 0);
    let written = header.encode();
    let (once_more, rest) = self::read(&written, 0);
    assert_eq!(once_more.expect("what was read can be written"), header);
    assert!(rest.is_empty());
}

/// A header of ours with bytes behind it.
fn check_written(mut input: Input<'_>, how: u8) {
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
    let bytes = [&header.encode(), input.0].concat();
    let (read, behind) = read(&bytes, how);
    assert_eq!(read.expect("a header of ours"), header);
    assert_eq!(behind, input.0);
}

/// What is read of `bytes`, and what is left.
fn read(bytes: &[u8], how: u8) -> (Result<TransportHeader, HeaderError>, Vec<u8>) {
    world::run(async {
        let (mut io, peer) = pipe();
        let reading = async {
            let read = header::read(&mut io, LIMIT).await;
            (read, receive(io).await.0)
        };
        join!(reading, send(peer, bytes, how)).0
    })
}

fn shown(read: &Result<TransportHeader, HeaderError>) -> String {
    match read {
        Ok(header) => format!("{header:?}"),
        Err(error) => error.to_string(),
    }
}

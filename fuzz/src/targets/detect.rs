//! Protocol detection with any split of the first bytes: the result does not depend on the split,
//! no byte is lost, every valid request or ClientHello is detected, the bytes held stay within the
//! limit, and the work is linear.
//!
//! Input: the split, then the bytes.

use std::time::Duration;

use mesh_proxy::fuzzing::detect::{self, HttpDetected, TlsDetected};
use mesh_proxy::fuzzing::{Io, MAX_REPLAY};
use tokio::join;

use crate::input::Input;
use crate::oracle::reader::{self, MessageKind, STRICT};
use crate::test_env::{self, pipe, scratch, send};
use crate::tls::hello;

/// Never expires, because the peer closes.
const LIMIT: Duration = Duration::from_secs(60);

/// The longest method that detection accepts (`transport::detect::http`).
const MAX_METHOD: usize = 24;

/// The most empty lines that it skips.
const MAX_EMPTY_LINES: usize = 10;

pub(crate) fn run(input: &[u8]) {
    let mut input = Input(input);
    let split = input.byte();
    let bytes = input.0;
    let tls = tls(bytes, split);
    let unsplit = self::tls(bytes, 0);
    assert_eq!(tls, unsplit, "TLS detection depends on the split");
    hello::check(bytes, &tls);
    let http = http(bytes, split);
    let unsplit = self::http(bytes, 0);
    assert_eq!(http, unsplit, "HTTP detection depends on the split");
    check_http(bytes, http);
    let is_tls = matches!(tls, TlsDetected::ClientHello { .. });
    let is_http = matches!(http, HttpDetected::Http1 | HttpDetected::Http2);
    assert!(!(is_tls && is_http), "detected as both TLS and HTTP");
}

/// Returns the result of HTTP detection. HTTP/1 targets use it too.
pub(crate) fn http(bytes: &[u8], split: u8) -> HttpDetected {
    detected(bytes, split, async |io| {
        detect::http(io, &scratch(), LIMIT).await.expect("a socket")
    })
}

fn tls(bytes: &[u8], split: u8) -> TlsDetected {
    detected(bytes, split, async |io| {
        detect::tls(io, &scratch(), LIMIT).await.expect("a socket")
    })
}

fn detected<T>(bytes: &[u8], split: u8, detect: impl AsyncFnOnce(&mut Io) -> T) -> T {
    test_env::run(async {
        let (mut io, peer) = pipe();
        let detecting = async {
            let detected = detect(&mut io).await;
            let replayed = io.replay();
            let is_intact = bytes.starts_with(replayed);
            assert!(is_intact, "the replay differs from the bytes sent");
            check_bounds(&io, replayed.len());
            drop(io);
            detected
        };
        join!(detecting, send(peer, bytes, split)).0
    })
}

/// Checks that the bytes held stay within the limit, and that each of the `received` bytes was
/// copied and scanned a constant number of times, however they were split.
pub(super) fn check_bounds(io: &Io, received: usize) {
    let held = io.replay().len();
    assert!(held <= MAX_REPLAY, "{held} bytes are held");
    let limit = 4 * received as u32 + 1024;
    let work = io.replay_work();
    assert!(work <= limit, "{work} bytes of work for {received} bytes");
}

fn check_http(bytes: &[u8], detected: HttpDetected) {
    if detected == HttpDetected::Http2 {
        assert!(bytes.starts_with(b"PRI * HTTP/2.0"));
    }
    let Ok(Some(request)) = reader::message(bytes, MessageKind::Request, &STRICT) else {
        return;
    };
    let is_long = request.method().len() > MAX_METHOD
        || bytes.len() > MAX_REPLAY
        || bytes.starts_with(&b"\r\n".repeat(MAX_EMPTY_LINES + 1));
    let is_detected = detected == HttpDetected::Http1;
    assert!(
        is_detected || is_long,
        "a request is detected as {detected:?}"
    );
}

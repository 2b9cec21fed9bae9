//! What a connection speaks, at any split of its first bytes: the answer depends on the bytes
//! alone, nothing read is lost, and a request or a hello that others understand is not passed on
//! unseen.
//!
//! Input: how it is cut, then the bytes.

use std::time::Duration;

use mesh_proxy::transport::Io;
use mesh_proxy::transport::detect::{self, HttpDetected, TlsDetected};
use tokio::join;

use crate::input::Input;
use crate::judge::reader::{self, Role, STRICT};
use crate::tls::hello;
use crate::world::{self, pipe, scratch, send};

/// The other end closes, so it is never waited for.
const LIMIT: Duration = Duration::from_secs(60);

/// Longer methods are another protocol's first word to us (`transport::detect::http`).
const MAX_METHOD: usize = 24;

pub(crate) fn run(input: &[u8]) {
    let mut input = Input(input);
    let how = input.byte();
    let bytes = input.0;
    let tls = tls(bytes, how);
    assert_eq!(tls, self::tls(bytes, 0), "it matters how a hello is cut");
    hello::check(bytes, &tls);
    let http = http(bytes, how);
    assert_eq!(
        http,
        self::http(bytes, 0),
        "it matters how a request is cut"
    );
    check_http(bytes, http);
    assert!(
        !(matches!(tls, TlsDetected::ClientHello { .. })
            && matches!(http, HttpDetected::Http1 | HttpDetected::Http2)),
        "both TLS and HTTP"
    );
}

/// What HTTP detection says of all of `bytes`. Targets that are about HTTP/1 ask too.
pub(crate) fn http(bytes: &[u8], how: u8) -> HttpDetected {
    detected(bytes, how, async |io| {
        detect::http(io, &scratch(), LIMIT).await.expect("a socket")
    })
}

fn tls(bytes: &[u8], how: u8) -> TlsDetected {
    detected(bytes, how, async |io| {
        detect::tls(io, &scratch(), LIMIT).await.expect("a socket")
    })
}

fn detected<T>(bytes: &[u8], how: u8, ask: impl AsyncFnOnce(&mut Io) -> T) -> T {
    world::run(async {
        let (mut io, peer) = pipe();
        let asking = async {
            let answer = ask(&mut io).await;
            let replayed = io.replay();
            assert!(
                bytes.starts_with(replayed),
                "what was read is not what is replayed"
            );
            drop(io);
            answer
        };
        join!(asking, send(peer, bytes, how)).0
    })
}

fn check_http(bytes: &[u8], detected: HttpDetected) {
    if detected == HttpDetected::Http2 {
        assert!(bytes.starts_with(b"PRI * HTTP/2.0"));
    }
    let Ok(Some(request)) = reader::message(bytes, Role::Request, &STRICT) else {
        return;
    };
    let is_long = request.method().len() > MAX_METHOD;
    assert!(
        detected == HttpDetected::Http1 || is_long,
        "a request was taken for {detected:?}"
    );
}

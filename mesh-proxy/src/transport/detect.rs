//! What does this connection speak? Reads until the question is decided, the peer stops, or time is
//! up; everything read is put back as replay.
//!
//! Nothing is decided by how the first bytes are cut into segments: a ClientHello that comes byte
//! by byte is a ClientHello. The parsers are pure, in [`tls`] and [`http`]; this module only reads
//! for them.

use std::future::poll_fn;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::ReadBuf;

use super::{Io, Scratch};

mod first_word;
mod http;
mod tls;

pub use self::first_word::{FirstWord, PATIENCE, first_word};
pub use self::tls::{MAX_NAME, is_host_name};

/// How a connection begins, as far as TLS is concerned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TlsDetected {
    ClientHello {
        sni: Option<Arc<str>>,
    },
    NotTls,
    /// The peer sent nothing that decides it in time.
    TimedOut,
    /// The peer closed its side before it was decided.
    Eof,
}

/// How a connection begins, as far as HTTP is concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HttpDetected {
    Http1,
    Http2,
    NotHttp,
    TimedOut,
    /// The peer closed its side without a byte.
    Eof,
}

/// What a parser says of the bytes so far.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Sniff<T> {
    Decided(T),
    NeedMore,
}

/// Why reading for a parser stopped.
enum Reading<T> {
    Decided(T),
    TimedOut,
    Eof,
}

/// Is it TLS, and to whom?
pub async fn tls(io: &mut Io, scratch: &Scratch, limit: Duration) -> io::Result<TlsDetected> {
    Ok(match read_until(io, scratch, limit, tls::sniff).await? {
        Reading::Decided(detected) => detected,
        Reading::TimedOut => TlsDetected::TimedOut,
        // What came is no ClientHello and never will be.
        Reading::Eof if !io.replay().is_empty() => TlsDetected::NotTls,
        Reading::Eof => TlsDetected::Eof,
    })
}

/// Is it HTTP, and which?
pub async fn http(io: &mut Io, scratch: &Scratch, limit: Duration) -> io::Result<HttpDetected> {
    Ok(match read_until(io, scratch, limit, http::sniff).await? {
        Reading::Decided(detected) => detected,
        Reading::TimedOut => HttpDetected::TimedOut,
        Reading::Eof if !io.replay().is_empty() => HttpDetected::NotHttp,
        Reading::Eof => HttpDetected::Eof,
    })
}

async fn read_until<T>(
    io: &mut Io,
    scratch: &Scratch,
    limit: Duration,
    sniff: impl Fn(&[u8]) -> Sniff<T>,
) -> io::Result<Reading<T>> {
    let reading = async {
        loop {
            if let Sniff::Decided(decided) = sniff(io.replay()) {
                return Ok(Reading::Decided(decided));
            }
            if read_more(io, scratch).await? == 0 {
                return Ok(Reading::Eof);
            }
        }
    };
    match tokio::time::timeout(limit, reading).await {
        Ok(read) => read,
        Err(_elapsed) => Ok(Reading::TimedOut),
    }
}

/// Reads what there is and puts it behind the replay. 0 at the end of the stream.
async fn read_more(io: &mut Io, scratch: &Scratch) -> io::Result<usize> {
    poll_fn(|cx| {
        let mut bytes = scratch.borrow();
        let mut buf = ReadBuf::new(&mut bytes);
        std::task::ready!(io.poll_read_stream(cx, &mut buf))?;
        io.push_replay(buf.filled());
        std::task::Poll::Ready(Ok(buf.filled().len()))
    })
    .await
}

//! Protocol detection: reads until a parser decides, the peer closes or the time limit expires. All
//! bytes read become replay.
//!
//! The decision does not depend on how the first bytes are split into segments: a ClientHello that
//! arrives byte by byte is recognised. This module reads for the parsers in [`tls`] and [`http`],
//! which do no I/O.

use std::future::poll_fn;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::ReadBuf;

use super::{Io, Scratch};

mod http;
mod server_first;
mod tls;

pub(crate) use self::server_first::{FirstSpeaker, SERVER_DIAL_DELAY, first_speaker};

/// The result of TLS detection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TlsDetected {
    ClientHello {
        sni: Option<Arc<str>>,
    },
    NotTls,
    /// The peer did not send enough bytes in time.
    TimedOut,
    /// The peer closed the connection without sending a byte.
    Eof,
}

/// The result of HTTP detection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HttpDetected {
    Http1,
    Http2,
    NotHttp,
    TimedOut,
    /// The peer closed the connection without sending a byte.
    Eof,
}

impl HttpDetected {
    /// The value of the metric label `result`, which is Linkerd's.
    pub(crate) fn label(result: &io::Result<Self>) -> &'static str {
        match result {
            Ok(Self::Http1) => "http/1",
            Ok(Self::Http2) => "http/2",
            Ok(Self::NotHttp) => "not_http",
            Ok(Self::TimedOut) => "read_timeout",
            Ok(Self::Eof) | Err(_) => "error",
        }
    }
}

/// The result of a parser for the first bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Sniff<T> {
    Decided(T),
    NeedMore,
}

/// Why reading for a parser has stopped.
enum ReadOutcome<T> {
    Decided(T),
    TimedOut,
    Eof,
}

/// Detects TLS and its server name.
pub async fn tls(io: &mut Io, scratch: &Scratch, limit: Duration) -> io::Result<TlsDetected> {
    Ok(match read_until(io, scratch, limit, tls::sniff).await? {
        ReadOutcome::Decided(detected) => detected,
        ReadOutcome::TimedOut => TlsDetected::TimedOut,
        // An incomplete ClientHello.
        ReadOutcome::Eof if !io.replay().is_empty() => TlsDetected::NotTls,
        ReadOutcome::Eof => TlsDetected::Eof,
    })
}

/// Detects HTTP and its version.
pub async fn http(io: &mut Io, scratch: &Scratch, limit: Duration) -> io::Result<HttpDetected> {
    Ok(match read_until(io, scratch, limit, http::sniff).await? {
        ReadOutcome::Decided(detected) => detected,
        ReadOutcome::TimedOut => HttpDetected::TimedOut,
        ReadOutcome::Eof if !io.replay().is_empty() => HttpDetected::NotHttp,
        ReadOutcome::Eof => HttpDetected::Eof,
    })
}

async fn read_until<T>(
    io: &mut Io,
    scratch: &Scratch,
    limit: Duration,
    sniff: impl Fn(&[u8]) -> Sniff<T>,
) -> io::Result<ReadOutcome<T>> {
    let reading = async {
        loop {
            if let Sniff::Decided(decided) = sniff(io.replay()) {
                return Ok(ReadOutcome::Decided(decided));
            }
            if read_more(io, scratch).await? == 0 {
                return Ok(ReadOutcome::Eof);
            }
        }
    };
    match tokio::time::timeout(limit, reading).await {
        Ok(read) => read,
        Err(_elapsed) => Ok(ReadOutcome::TimedOut),
    }
}

/// Reads once and appends the bytes to the replay. Returns 0 at the end of the stream.
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

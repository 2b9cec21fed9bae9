//! Protocol detection: reads until a parser decides, the peer closes or the time limit expires. All
//! bytes read become replay.
//!
//! The decision does not depend on how the first bytes are split into segments: a ClientHello that
//! arrives byte by byte is recognised. This module reads for the scanners in [`tls`] and [`http`],
//! which do no I/O and look at each byte once (docs/adr/0160).

use std::future::poll_fn;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use mesh_planted::Bug;
use mesh_runtime::bounded_buffer::{Fill, Scan, Scanner};

use super::{Io, Scratch};

mod http;
mod server_first;
mod tls;

pub(crate) use self::http::MAX_EMPTY_LINES;
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

/// Why reading for a scanner has stopped.
pub(super) enum ReadOutcome<T> {
    Decided(T),
    TimedOut,
    Eof,
    /// The replay holds its capacity.
    Full,
}

/// Detects TLS and its server name.
pub async fn tls(io: &mut Io, scratch: &Scratch, limit: Duration) -> io::Result<TlsDetected> {
    let scanner = tls::HelloScanner::default();
    Ok(match read_until(io, scratch, limit, scanner).await? {
        ReadOutcome::Decided(tls::Hello::Complete) => TlsDetected::ClientHello {
            sni: tls::server_name(io.replay()),
        },
        ReadOutcome::Decided(tls::Hello::TooLong) | ReadOutcome::Full => {
            TlsDetected::ClientHello { sni: None }
        }
        ReadOutcome::Decided(tls::Hello::NotTls) => TlsDetected::NotTls,
        ReadOutcome::TimedOut => TlsDetected::TimedOut,
        // An incomplete ClientHello.
        ReadOutcome::Eof if !io.replay().is_empty() => TlsDetected::NotTls,
        ReadOutcome::Eof => TlsDetected::Eof,
    })
}

/// Detects HTTP and its version.
pub async fn http(io: &mut Io, scratch: &Scratch, limit: Duration) -> io::Result<HttpDetected> {
    let scanner = http::RequestScanner::default();
    Ok(match read_until(io, scratch, limit, scanner).await? {
        ReadOutcome::Decided(detected) => detected,
        ReadOutcome::TimedOut => {
            if Bug::HeldBytesLost.is_planted() {
                io.consume_replay(io.replay().len());
            }
            HttpDetected::TimedOut
        }
        ReadOutcome::Full => HttpDetected::NotHttp,
        ReadOutcome::Eof if !io.replay().is_empty() => HttpDetected::NotHttp,
        ReadOutcome::Eof => HttpDetected::Eof,
    })
}

/// Reads until `scanner` decides.
pub(super) async fn read_until<S: Scanner>(
    io: &mut Io,
    scratch: &Scratch,
    limit: Duration,
    scanner: S,
) -> io::Result<ReadOutcome<S::Verdict>> {
    let reading = async {
        let mut scan = Scan::new(scanner);
        loop {
            if let Some(verdict) = io.scan(&mut scan) {
                return Ok(ReadOutcome::Decided(verdict));
            }
            match read_more(io, scratch).await? {
                Fill::Read(_) => {}
                Fill::End => return Ok(ReadOutcome::Eof),
                Fill::Full => return Ok(ReadOutcome::Full),
            }
        }
    };
    if Bug::DetectionNeverEnds.is_planted() {
        return reading.await;
    }
    match tokio::time::timeout(limit, reading).await {
        Ok(read) => read,
        Err(_elapsed) => Ok(ReadOutcome::TimedOut),
    }
}

/// Reads once and appends the bytes to the replay.
async fn read_more(io: &mut Io, scratch: &Scratch) -> io::Result<Fill> {
    poll_fn(|cx| io.poll_hold(cx, scratch)).await
}

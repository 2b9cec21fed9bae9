//! Linkerd's transport header, which a proxy sends at the start of a connection to another proxy's
//! inbound port (4143), after TLS with the ALPN protocol `transport.l5d.io/v1`. It contains the
//! destination port.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use mesh_planted::Bug;
use mesh_runtime::bounded_buffer::Scanner;
use prost::Message as _;
use tokio::io::AsyncWriteExt as _;

use super::detect::{ReadOutcome, read_until};
use super::{Io, Scratch};

/// The ALPN protocol that a client offers when it wants to send a header, and that proxies which
/// support the header select.
pub(crate) const ALPN: &[u8] = b"transport.l5d.io/v1";

/// Precedes the length, so that an HTTP/1 request is not taken for a header.
const PREFACE: &[u8] = b"transport.l5d.io/v1\r\n\r\n";

/// Linkerd's limit. A header with a name has at most about 300 bytes.
const MAX_LENGTH: usize = 64 * 1024;

/// The destination and protocol of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TransportHeader {
    pub port: u16,
    /// Set when the peer is a gateway that forwards to this name instead of its own workload.
    pub name: Option<Arc<str>>,
    pub session: SessionProtocol,
}

mesh_core::names! {
    /// The protocol of the bytes after the header. The names are label values in the metric of
    /// accepted headers.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub enum SessionProtocol {
        #[default]
        Opaque = "",
        Http1 = "http/1",
        Http2 = "http/2",
    }
}

#[derive(Debug, thiserror::Error)]
pub enum HeaderError {
    #[error("transport header timed out after {0:?}")]
    TimedOut(Duration),
    #[error("cannot read the transport header")]
    Read(#[source] io::Error),
    #[error("connection does not start with the preface of a transport header")]
    BadPreface,
    #[error("transport header of {0} bytes exceeds the limit of {MAX_LENGTH}")]
    TooLong(usize),
    #[error("malformed transport header")]
    Decode(#[source] prost::DecodeError),
    #[error("invalid port {0} in transport header, expected 1 to 65535")]
    BadPort(i32),
}

impl TransportHeader {
    /// Encodes preface, length and header.
    pub fn encode(&self) -> Vec<u8> {
        let message = wire::Header {
            port: i32::from(self.port),
            name: self.name.as_deref().unwrap_or("").to_owned(),
            session_protocol: self.session.to_wire(),
        };
        let length = message.encoded_len();
        let mut bytes = Vec::with_capacity(PREFACE.len() + 4 + length);
        bytes.extend_from_slice(PREFACE);
        bytes.extend_from_slice(&(length as u32).to_be_bytes());
        bytes.extend_from_slice(&message.encode_to_vec());
        bytes
    }

    /// Decodes a message without preface and length.
    fn decode(message: &[u8]) -> Result<Self, HeaderError> {
        let header = wire::Header::decode(message).map_err(HeaderError::Decode)?;
        let port = u16::try_from(header.port)
            .ok()
            .filter(|port| *port > 0)
            .ok_or(HeaderError::BadPort(header.port))?;
        Ok(Self {
            port,
            name: (!header.name.is_empty()).then(|| header.name.into()),
            session: SessionProtocol::from_wire(header.session_protocol),
        })
    }
}

impl SessionProtocol {
    fn to_wire(self) -> Option<wire::SessionProtocol> {
        let kind = match self {
            Self::Opaque => return None,
            Self::Http1 => wire::Kind::Http1(wire::Http1 {}),
            Self::Http2 => wire::Kind::Http2(wire::Http2 {}),
        };
        Some(wire::SessionProtocol { kind: Some(kind) })
    }

    fn from_wire(session: Option<wire::SessionProtocol>) -> Self {
        match session.and_then(|session| session.kind) {
            None => Self::Opaque,
            Some(wire::Kind::Http1(_)) => Self::Http1,
            Some(wire::Kind::Http2(_)) => Self::Http2,
        }
    }
}

/// Sends a header. The caller limits the time of connecting as a whole.
pub(crate) async fn write(io: &mut Io, header: &TransportHeader) -> io::Result<()> {
    io.write_all(&header.encode()).await?;
    io.flush().await
}

/// Reads a header. Bytes that follow it stay in the replay.
pub async fn read(
    io: &mut Io,
    scratch: &Scratch,
    limit: Duration,
) -> Result<TransportHeader, HeaderError> {
    let read = read_until(io, scratch, limit, HeaderScanner::default()).await;
    let length = match read.map_err(HeaderError::Read)? {
        ReadOutcome::Decided(length) => length?,
        ReadOutcome::TimedOut => return Err(HeaderError::TimedOut(limit)),
        ReadOutcome::Eof => {
            return Err(HeaderError::Read(io::ErrorKind::UnexpectedEof.into()));
        }
        ReadOutcome::Full => return Err(HeaderError::TooLong(io.replay().len())),
    };
    let header = TransportHeader::decode(&io.replay()[START_LEN..length]);
    let taken = length + usize::from(Bug::TransportHeaderTakesByte.is_planted());
    io.consume_replay(taken.min(io.replay().len()));
    header
}

/// Finds the end of a header.
#[derive(Debug, Default)]
struct HeaderScanner {
    /// Preface and length, with the number of bytes received.
    start: [u8; START_LEN],
    received: usize,
}

/// Preface and length.
const START_LEN: usize = PREFACE.len() + 4;

impl Scanner for HeaderScanner {
    /// The length of preface, length and message.
    type Verdict = Result<usize, HeaderError>;

    fn scan(&mut self, next: &[u8]) -> Option<Self::Verdict> {
        for (to, byte) in self.start.iter_mut().skip(self.received).zip(next) {
            *to = *byte;
        }
        self.received += next.len();
        if self.received < START_LEN {
            return None;
        }
        let (preface, length) = self.start.split_at(PREFACE.len());
        if preface != PREFACE {
            return Some(Err(HeaderError::BadPreface));
        }
        let length = length.iter().fold(0, |n, byte| n << 8 | usize::from(*byte));
        if length > MAX_LENGTH {
            return Some(Err(HeaderError::TooLong(length)));
        }
        let missed = usize::from(Bug::TransportHeaderEndMissed.is_planted());
        (self.received >= START_LEN + length + missed).then_some(Ok(START_LEN + length))
    }
}

/// The protobuf message, defined here because Linkerd publishes its definition with the proxy
/// instead of the API.
mod wire {
    #[derive(Clone, PartialEq, prost::Message)]
    pub(super) struct Header {
        #[prost(int32, tag = "1")]
        pub(super) port: i32,
        #[prost(string, tag = "2")]
        pub(super) name: String,
        #[prost(message, optional, tag = "3")]
        pub(super) session_protocol: Option<SessionProtocol>,
    }

    #[derive(Clone, Copy, PartialEq, prost::Message)]
    pub(super) struct SessionProtocol {
        #[prost(oneof = "Kind", tags = "1, 2")]
        pub(super) kind: Option<Kind>,
    }

    #[derive(Clone, Copy, PartialEq, prost::Oneof)]
    pub(super) enum Kind {
        #[prost(message, tag = "1")]
        Http1(Http1),
        #[prost(message, tag = "2")]
        Http2(Http2),
    }

    #[derive(Clone, Copy, PartialEq, prost::Message)]
    pub(super) struct Http1 {}

    #[derive(Clone, Copy, PartialEq, prost::Message)]
    pub(super) struct Http2 {}
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(port: u16, name: Option<&str>, session: SessionProtocol) -> TransportHeader {
        TransportHeader {
            port,
            name: name.map(Into::into),
            session,
        }
    }

    #[test]
    fn header_is_encoded_as_by_linkerd() {
        // Field 1 varint 4321 = e1 21, field 2 "a.b", field 3 { field 2 {} }.
        let expect =
            b"transport.l5d.io/v1\r\n\r\n\x00\x00\x00\x0c\x08\xe1\x21\x12\x03a.b\x1a\x02\x12\x00";
        assert_eq!(
            header(4321, Some("a.b"), SessionProtocol::Http2).encode(),
            expect
        );
        let opaque = b"transport.l5d.io/v1\r\n\r\n\x00\x00\x00\x02\x08\x50";
        assert_eq!(header(80, None, SessionProtocol::Opaque).encode(), opaque);
    }

    #[test]
    fn encoded_header_can_be_decoded() {
        for sent in [
            header(1, None, SessionProtocol::Opaque),
            header(
                65535,
                Some("web.ns.svc.cluster.local"),
                SessionProtocol::Http1,
            ),
            header(8080, None, SessionProtocol::Http2),
        ] {
            let bytes = sent.encode();
            assert_eq!(
                TransportHeader::decode(&bytes[PREFACE.len() + 4..]).unwrap(),
                sent
            );
        }
    }

    #[test]
    fn invalid_headers_are_rejected() {
        let port = |port| {
            let message = wire::Header {
                port,
                ..wire::Header::default()
            };
            TransportHeader::decode(&message.encode_to_vec())
        };
        for bad in [0, -1, 65536] {
            assert!(matches!(port(bad), Err(HeaderError::BadPort(got)) if got == bad));
        }
        assert!(matches!(
            TransportHeader::decode(&[0xff]),
            Err(HeaderError::Decode(_))
        ));
    }
}

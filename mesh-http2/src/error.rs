//! Errors of streams and connections.

use std::sync::Arc;
use std::{fmt, io};

/// An error code (RFC 9113, section 7).
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct ErrorCode(pub u32);

impl ErrorCode {
    /// A graceful end, not an error.
    pub const NO_ERROR: Self = Self(0);
    /// A violation of the protocol without a more specific code.
    pub const PROTOCOL_ERROR: Self = Self(1);
    /// An unexpected internal error.
    pub const INTERNAL_ERROR: Self = Self(2);
    /// A violation of flow control.
    pub const FLOW_CONTROL_ERROR: Self = Self(3);
    /// SETTINGS were not acknowledged in time.
    pub const SETTINGS_TIMEOUT: Self = Self(4);
    /// A frame on a half-closed stream.
    pub const STREAM_CLOSED: Self = Self(5);
    /// A frame of an invalid size.
    pub const FRAME_SIZE_ERROR: Self = Self(6);
    /// The stream was not processed; the request can be retried.
    pub const REFUSED_STREAM: Self = Self(7);
    /// The stream is not needed any more.
    pub const CANCEL: Self = Self(8);
    /// The HPACK state cannot be maintained.
    pub const COMPRESSION_ERROR: Self = Self(9);
    /// The connection of a CONNECT request was reset.
    pub const CONNECT_ERROR: Self = Self(10);
    /// The peer causes excessive load.
    pub const ENHANCE_YOUR_CALM: Self = Self(11);
    /// The transport does not meet the security requirements.
    pub const INADEQUATE_SECURITY: Self = Self(12);
    /// The request requires HTTP/1.1.
    pub const HTTP_1_1_REQUIRED: Self = Self(13);

    /// Returns the RFC's name, `None` for codes that it does not define.
    pub fn name(self) -> Option<&'static str> {
        const NAMES: [&str; 14] = [
            "NO_ERROR",
            "PROTOCOL_ERROR",
            "INTERNAL_ERROR",
            "FLOW_CONTROL_ERROR",
            "SETTINGS_TIMEOUT",
            "STREAM_CLOSED",
            "FRAME_SIZE_ERROR",
            "REFUSED_STREAM",
            "CANCEL",
            "COMPRESSION_ERROR",
            "CONNECT_ERROR",
            "ENHANCE_YOUR_CALM",
            "INADEQUATE_SECURITY",
            "HTTP_1_1_REQUIRED",
        ];
        NAMES.get(self.0 as usize).copied()
    }
}

impl fmt::Display for ErrorCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "error code {:#x}", self.0),
        }
    }
}

impl fmt::Debug for ErrorCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Why a stream, or a connection with all of its streams, failed. Clonable, because every stream of
/// a connection receives it.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    /// The stream was reset, usually by the peer.
    #[error("stream reset by peer: {0}")]
    Reset(ErrorCode),
    /// The local endpoint has reset the stream because of an error of the peer.
    #[error("HTTP/2 stream error: {1}")]
    StreamError(ErrorCode, &'static str),
    /// The peer's GOAWAY excludes the stream, which it has not processed.
    #[error("stream not processed before the peer's GOAWAY: {0}")]
    Unprocessed(ErrorCode),
    /// The peer has closed the connection because of an error of the local endpoint.
    #[error("connection closed by peer: {0}")]
    PeerGoAway(ErrorCode),
    /// The local endpoint has closed the connection because of an error of the peer.
    #[error("HTTP/2 connection error {0}: {1}")]
    ConnectionError(ErrorCode, &'static str),
    /// The local endpoint has closed the connection because the peer exceeded a limit.
    #[error("HTTP/2 limit exceeded: {0}")]
    LimitExceeded(LimitExceeded),
    /// The connection was closed without an error.
    #[error("connection closed")]
    Closed,
    /// Reading from or writing to the connection failed.
    #[error("connection failed")]
    Io(#[source] Arc<io::Error>),
}

/// The limit that a peer has exceeded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LimitExceeded {
    /// [`Limits::idle_frames`](crate::Limits::idle_frames).
    #[error("too many frames without message content")]
    IdleFrames,
    /// [`Limits::resets`](crate::Limits::resets).
    #[error("too many streams reset")]
    Resets,
    /// [`Limits::stream_errors`](crate::Limits::stream_errors).
    #[error("too many stream errors")]
    StreamErrors,
    /// [`Limits::field_lines`](crate::Limits::field_lines).
    #[error("too many short field lines")]
    FieldLines,
    /// A [`PendingInput`](crate::PendingInput) was not completed in time.
    #[error("connection preface or field block not received in time")]
    HeaderTimeout,
    /// A field section several times larger than its limit, or in too many CONTINUATION frames.
    #[error("field section far too large")]
    HeaderSize,
    /// [`Limits::pending_accept_resets`](crate::Limits::pending_accept_resets).
    #[error("too many streams reset before acceptance")]
    PendingAcceptResets,
}

impl Error {
    /// Whether the connection has ended, with or without an error of either endpoint, and the peer
    /// has said nothing about the stream.
    pub fn is_connection_lost(&self) -> bool {
        match self {
            Self::PeerGoAway(_)
            | Self::ConnectionError(..)
            | Self::LimitExceeded(_)
            | Self::Closed
            | Self::Io(_) => true,
            Self::Reset(_) | Self::StreamError(..) | Self::Unprocessed(_) => false,
        }
    }

    /// The error code that was received or sent with it.
    pub fn error_code(&self) -> Option<ErrorCode> {
        match self {
            Self::Reset(code)
            | Self::Unprocessed(code)
            | Self::PeerGoAway(code)
            | Self::StreamError(code, _)
            | Self::ConnectionError(code, _) => Some(*code),
            Self::LimitExceeded(_) => Some(ErrorCode::ENHANCE_YOUR_CALM),
            Self::Closed | Self::Io(_) => None,
        }
    }
}

impl From<io::Error> for Error {
    fn from(error: io::Error) -> Self {
        Self::Io(Arc::new(error))
    }
}

impl LimitExceeded {
    /// Returns the label value of metrics, which is also the debug data of GOAWAY.
    pub fn label(self) -> &'static str {
        match self {
            Self::IdleFrames => "idle_frames",
            Self::Resets => "resets",
            Self::StreamErrors => "mistakes",
            Self::FieldLines => "field_lines",
            Self::HeaderTimeout => "head_time",
            Self::HeaderSize | Self::PendingAcceptResets => "flood",
        }
    }
}

//! Why streams and connections fail.

use std::fmt;
use std::io;
use std::sync::Arc;

/// An error code (RFC 9113, section 7).
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct ErrorCode(pub u32);

impl ErrorCode {
    pub const NO_ERROR: Self = Self(0);
    pub const PROTOCOL_ERROR: Self = Self(1);
    pub const INTERNAL_ERROR: Self = Self(2);
    pub const FLOW_CONTROL_ERROR: Self = Self(3);
    pub const SETTINGS_TIMEOUT: Self = Self(4);
    pub const STREAM_CLOSED: Self = Self(5);
    pub const FRAME_SIZE_ERROR: Self = Self(6);
    pub const REFUSED_STREAM: Self = Self(7);
    pub const CANCEL: Self = Self(8);
    pub const COMPRESSION_ERROR: Self = Self(9);
    pub const CONNECT_ERROR: Self = Self(10);
    pub const ENHANCE_YOUR_CALM: Self = Self(11);
    pub const INADEQUATE_SECURITY: Self = Self(12);
    pub const HTTP_1_1_REQUIRED: Self = Self(13);

    /// The RFC's name; none for codes that it does not define.
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

/// Why a stream, or a connection with all of its streams, failed. Clonable, because all of them are
/// told.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    #[error("the other side reset the stream: {0}")]
    Reset(ErrorCode),
    /// We have reset it because of what the other side did on it.
    #[error("the other side's message is malformed: {1}")]
    StreamError(ErrorCode, &'static str),
    /// The other side has gone away without having begun with the stream.
    #[error("the other side went away before it took the stream: {0}")]
    Unprocessed(ErrorCode),
    /// The other side has ended the connection, and says that we are to blame.
    #[error("the other side ended the connection: {0}")]
    PeerGoAway(ErrorCode),
    /// We have ended the connection because of what the other side did on it.
    #[error("the other side broke the protocol: {1} ({0})")]
    ConnectionError(ErrorCode, &'static str),
    /// The same, because it did too much of what is allowed.
    #[error("the connection was ended: {0}")]
    LimitExceeded(LimitExceeded),
    #[error("the connection was closed")]
    Closed,
    #[error("the connection failed")]
    Io(#[source] Arc<io::Error>),
}

/// What the other side has done too much of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LimitExceeded {
    #[error("more frames that carry nothing than allowed")]
    IdleFrames,
    #[error("more streams were reset than allowed")]
    Resets,
    #[error("many streams had to be reset")]
    StreamErrors,
    #[error("a header block did not arrive in time")]
    HeaderTimeout,
    #[error("a header block is far too large")]
    HeaderSize,
    #[error("streams were reset before anybody could look at them")]
    PendingAcceptResets,
}

impl Error {
    /// Whether the connection ended before the other side said what became of the stream, without a
    /// fault that either side found in what the other sent.
    pub fn is_connection_lost(&self) -> bool {
        matches!(self, Self::Unprocessed(_) | Self::Closed | Self::Io(_))
    }

    /// The code that it came with or led to, if there is one.
    pub fn error_code(&self) -> Option<ErrorCode> {
        match self {
            Self::Reset(error_code)
            | Self::Unprocessed(error_code)
            | Self::PeerGoAway(error_code)
            | Self::StreamError(error_code, _)
            | Self::ConnectionError(error_code, _) => Some(*error_code),
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
    /// One word, for metrics and for the other side.
    pub fn label(self) -> &'static str {
        match self {
            Self::IdleFrames => "idle_frames",
            Self::Resets => "resets",
            Self::StreamErrors => "mistakes",
            Self::HeaderTimeout => "head_time",
            Self::HeaderSize | Self::PendingAcceptResets => "flood",
        }
    }
}

//! Why a message is refused, and the status that says so. Raised by the pure parsers; whoever reads the connection answers and closes it, because after any of
//! these nobody can say where the next message begins.

use http::StatusCode;

/// A message that is not HTTP/1, is ambiguous, or is too large.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    #[error("the head is larger than 256 KiB")]
    HeadTooLarge,
    #[error("there are more than 100 header fields")]
    TooManyHeaders,
    #[error("a line ends without a carriage return")]
    BareLineFeed,
    #[error("the start line is malformed")]
    StartLine,
    #[error("the request's method is malformed")]
    Method,
    #[error("the request's target is malformed")]
    Target,
    #[error("the version is neither HTTP/1.0 nor HTTP/1.1")]
    Version,
    #[error("the status is malformed")]
    Status,
    #[error("a header's name is malformed, or a line begins with a space")]
    HeaderName,
    #[error("a header's value holds a character that must not be there")]
    HeaderValue,
    #[error("there is more than one host header")]
    SeveralHosts,
    #[error("the host header is no authority")]
    Host,
    #[error("both content-length and transfer-encoding are given")]
    LengthAndEncoding,
    #[error("content-length is given more than once")]
    SeveralLengths,
    #[error("content-length is no number")]
    Length,
    #[error("HTTP/1.0 has no transfer-encoding")]
    EncodingInHttp10,
    #[error("transfer-encoding does not end in one chunked")]
    NotChunked,
    #[error("transfer-encoding names a coding that is not known")]
    UnknownCoding,
    #[error("a CONNECT request has a body")]
    ConnectBody,
    #[error("the size of a chunk is malformed")]
    ChunkSize,
    #[error("a chunk extension is malformed")]
    ChunkExtension,
    #[error("chunk extensions are larger than 16 KiB")]
    ChunkExtensionsTooLarge,
    #[error("a chunk is not followed by a line end")]
    ChunkEnd,
    #[error("trailers are larger than 16 KiB")]
    TrailersTooLarge,
    #[error("protocols are switched without having been asked to")]
    UnexpectedSwitch,
    #[error("there are more than 32 interim responses")]
    TooManyInterim,
}

impl Refused {
    /// The answer to a request. Responses that are refused are failures of the server: 502, whatever the reason.
    pub fn status(self) -> StatusCode {
        match self {
            Self::HeadTooLarge | Self::TooManyHeaders | Self::TrailersTooLarge => {
                StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE
            }
            Self::Version => StatusCode::HTTP_VERSION_NOT_SUPPORTED,
            Self::UnknownCoding => StatusCode::NOT_IMPLEMENTED,
            _ => StatusCode::BAD_REQUEST,
        }
    }
}

impl From<httparse::Error> for Refused {
    fn from(error: httparse::Error) -> Self {
        match error {
            httparse::Error::HeaderName => Self::HeaderName,
            httparse::Error::HeaderValue => Self::HeaderValue,
            // A carriage return that no line feed follows; and separators of the start line.
            httparse::Error::NewLine | httparse::Error::Token => Self::StartLine,
            httparse::Error::Status => Self::Status,
            httparse::Error::TooManyHeaders => Self::TooManyHeaders,
            httparse::Error::Version => Self::Version,
        }
    }
}

//! Why a message is refused, and the status that says so. Raised by the pure parsers; whoever reads
//! the connection answers and closes it, because after any of these nobody can say where the next
//! message begins.

use http::StatusCode;

/// A message that is not HTTP/1, is ambiguous, or is too large.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    #[error("the head is larger than MESH_PROXY_HTTP1_MAX_HEAD_BYTES allows")]
    HeadTooLarge,
    #[error("there are more header fields than MESH_PROXY_HTTP_MAX_FIELDS allows")]
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
    #[error("chunk extensions are larger than MESH_PROXY_HTTP1_MAX_CHUNK_EXTENSION_BYTES allows")]
    ChunkExtensionsTooLarge,
    #[error("a chunk is not followed by a line end")]
    ChunkEnd,
    #[error("trailers are larger than MESH_PROXY_HTTP1_MAX_TRAILER_BYTES allows")]
    TrailersTooLarge,
    #[error("protocols are switched without having been asked to")]
    UnexpectedSwitch,
    #[error("there are more than 32 interim responses")]
    TooManyInterim,
}

impl Refused {
    /// Value of the `reason` label.
    pub fn label(self) -> &'static str {
        match self {
            Self::HeadTooLarge => "head_bytes",
            Self::TooManyHeaders => "fields",
            Self::Version => "version",
            Self::LengthAndEncoding
            | Self::SeveralLengths
            | Self::Length
            | Self::EncodingInHttp10
            | Self::NotChunked
            | Self::UnknownCoding
            | Self::ConnectBody
            | Self::ChunkSize
            | Self::ChunkExtension
            | Self::ChunkEnd => "framing",
            Self::ChunkExtensionsTooLarge => "chunk_extensions",
            Self::TrailersTooLarge => "trailers",
            Self::BareLineFeed
            | Self::StartLine
            | Self::Method
            | Self::Target
            | Self::Status
            | Self::HeaderName
            | Self::HeaderValue
            | Self::SeveralHosts
            | Self::Host
            | Self::UnexpectedSwitch
            | Self::TooManyInterim => "malformed",
        }
    }

    /// The answer to a request. Responses that are refused are failures of the server: 502,
    /// whatever the reason.
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

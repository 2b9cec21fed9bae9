//! Why a message is rejected, and the status that the client receives. The parsers return these
//! errors. The server then responds and closes the connection, because the start of the next
//! message cannot be determined.

use http::StatusCode;

/// A message that is not valid HTTP/1, is ambiguous, or exceeds a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MessageError {
    #[error("headers exceed MESH_PROXY_HTTP1_MAX_HEAD_BYTES")]
    HeadersTooLarge,
    #[error("number of fields exceeds MESH_PROXY_HTTP_MAX_FIELDS")]
    TooManyFields,
    #[error("line ends without a carriage return")]
    BareLineFeed,
    #[error("malformed start line")]
    InvalidStartLine,
    #[error("malformed request method")]
    InvalidMethod,
    #[error("malformed request target")]
    InvalidTarget,
    #[error("request target exceeds 65,534 bytes")]
    TargetTooLong,
    #[error("version is neither HTTP/1.0 nor HTTP/1.1")]
    UnsupportedVersion,
    #[error("malformed status code")]
    InvalidStatus,
    #[error("malformed field name, or line that begins with whitespace")]
    InvalidFieldName,
    #[error("field value contains an invalid character")]
    InvalidFieldValue,
    #[error("more than one Host header")]
    MultipleHosts,
    #[error("invalid Host header: not an authority")]
    InvalidHost,
    #[error("both Content-Length and Transfer-Encoding present")]
    LengthAndTransferEncoding,
    #[error("more than one Content-Length")]
    MultipleContentLengths,
    #[error("invalid Content-Length: not a decimal number")]
    InvalidContentLength,
    #[error("Transfer-Encoding in an HTTP/1.0 message")]
    TransferEncodingInHttp10,
    #[error("Transfer-Encoding does not end in a single chunked")]
    ChunkedNotFinal,
    #[error("unsupported transfer coding")]
    UnsupportedTransferCoding,
    #[error("CONNECT request with a body")]
    ConnectWithBody,
    #[error("malformed chunk size")]
    InvalidChunkSize,
    #[error("malformed chunk extension")]
    InvalidChunkExtension,
    #[error("chunk extensions exceed MESH_PROXY_HTTP1_MAX_CHUNK_EXTENSION_BYTES")]
    ChunkExtensionsTooLarge,
    #[error("chunk data not followed by a line end")]
    MissingChunkEnd,
    #[error("trailers exceed MESH_PROXY_HTTP1_MAX_TRAILER_BYTES")]
    TrailersTooLarge,
    #[error("unexpected 101 Switching Protocols")]
    UnexpectedSwitchingProtocols,
    #[error("more than 32 interim responses")]
    TooManyInterimResponses,
}

impl MessageError {
    /// Value of the `reason` label.
    pub(crate) fn label(self) -> &'static str {
        match self {
            Self::HeadersTooLarge | Self::TargetTooLong => "head_bytes",
            Self::TooManyFields => "fields",
            Self::UnsupportedVersion => "version",
            Self::LengthAndTransferEncoding
            | Self::MultipleContentLengths
            | Self::InvalidContentLength
            | Self::TransferEncodingInHttp10
            | Self::ChunkedNotFinal
            | Self::UnsupportedTransferCoding
            | Self::ConnectWithBody
            | Self::InvalidChunkSize
            | Self::InvalidChunkExtension
            | Self::MissingChunkEnd => "framing",
            Self::ChunkExtensionsTooLarge => "chunk_extensions",
            Self::TrailersTooLarge => "trailers",
            Self::BareLineFeed
            | Self::InvalidStartLine
            | Self::InvalidMethod
            | Self::InvalidTarget
            | Self::InvalidStatus
            | Self::InvalidFieldName
            | Self::InvalidFieldValue
            | Self::MultipleHosts
            | Self::InvalidHost
            | Self::UnexpectedSwitchingProtocols
            | Self::TooManyInterimResponses => "malformed",
        }
    }

    /// Status of the response to an invalid request. For an invalid response the client always gets
    /// a 502.
    pub(crate) fn status(self) -> StatusCode {
        match self {
            Self::HeadersTooLarge | Self::TooManyFields | Self::TrailersTooLarge => {
                StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE
            }
            Self::TargetTooLong => StatusCode::URI_TOO_LONG,
            Self::UnsupportedVersion => StatusCode::HTTP_VERSION_NOT_SUPPORTED,
            Self::UnsupportedTransferCoding => StatusCode::NOT_IMPLEMENTED,
            _ => StatusCode::BAD_REQUEST,
        }
    }
}

impl From<httparse::Error> for MessageError {
    fn from(error: httparse::Error) -> Self {
        match error {
            httparse::Error::HeaderName => Self::InvalidFieldName,
            httparse::Error::HeaderValue => Self::InvalidFieldValue,
            // A carriage return without a line feed; separators of the start line.
            httparse::Error::NewLine | httparse::Error::Token => Self::InvalidStartLine,
            httparse::Error::Status => Self::InvalidStatus,
            httparse::Error::TooManyHeaders => Self::TooManyFields,
            httparse::Error::Version => Self::UnsupportedVersion,
        }
    }
}

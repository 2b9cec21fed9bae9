//! In-house HTTP/1 codec for one connection, used by the server and the client.
//!
//! Pure functions convert bytes to messages: [`parse`] reads header sections, [`framing`]
//! determines the length of a body, [`chunked`] decodes chunked bodies, [`encode`] writes header
//! sections. They reject messages with [`MessageError`], and [`limits`] bounds them. [`Connection`]
//! applies them to a stream: the task that needs the next header section or body frame polls the
//! connection for it, and [`pool`] keeps idle ones. [`OutgoingBody`] writes bodies. [`server`] is
//! the loop of an accepted connection; the client is [`super::client`].
//!
//! There is no task and no channel per connection or request, and an idle connection holds no
//! buffer. See docs/adr/0012.

use std::io;
use std::time::Duration;

use http::StatusCode;

mod chunked;
mod connection;
mod encode;
mod framing;
mod limits;
mod outgoing_body;
mod parse;
pub(super) mod pool;
mod request;
pub(super) mod server;
mod write_buffer;

pub(super) use self::connection::{Connection, IncomingBody, InterimSender};
use self::encode::FramingHeaders;
pub(super) use self::framing::{BodyLength, RequestMethod, parse_decimal, unify_content_length};
pub(super) use self::limits::MAX_INTERIM_RESPONSES;
use self::outgoing_body::BodyEncoder;
pub(super) use self::outgoing_body::OutgoingBody;
pub(super) use self::parse::ParsedResponse;
pub(super) use self::request::begin_request;
use super::BodyError;
use super::client_close::SERVER_CLOSED;
use super::message_error::MessageError;

/// Why a connection, or a message on it, failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("could not read from the connection")]
    Read(#[source] io::Error),
    #[error("could not write to the connection")]
    Write(#[source] io::Error),
    #[error("connection closed within a message")]
    Incomplete,
    #[error("connection closed before a response")]
    NoResponse,
    #[error("invalid message")]
    InvalidMessage(#[from] MessageError),
    #[error("headers incomplete after {0:?} (MESH_PROXY_HTTP_HEAD_TIMEOUT)")]
    HeaderTimeout(Duration),
    #[error("no data of the declared body received for {limit:?} (MESH_PROXY_HTTP_BODY_TIMEOUT)")]
    BodyTimeout {
        limit: Duration,
        /// No other response can be sent, because one has begun.
        response_started: bool,
    },
    #[error("could not read the body to forward")]
    Body(#[source] Box<dyn std::error::Error + Send + Sync>),
    #[error("body length does not match Content-Length")]
    LengthMismatch,
    #[error("HTTP/1.0 cannot frame a body of unknown length")]
    UnframedBody,
    #[error("connection in use, cannot become a tunnel")]
    ConnectionInUse,
    #[error("the policy no longer allows the request")]
    Revoked,
}

impl Error {
    /// Whether the connection ended before a response.
    pub(crate) fn is_connection_lost(&self) -> bool {
        matches!(self, Self::NoResponse | Self::Read(_) | Self::Write(_))
    }

    /// Value of the `reason` label, if the client caused the error.
    pub(super) fn label(&self) -> Option<&'static str> {
        match self {
            Self::InvalidMessage(error) => Some(error.label()),
            Self::HeaderTimeout(_) => Some("head_time"),
            Self::BodyTimeout { .. } => Some("body_time"),
            _ => None,
        }
    }

    /// Whether the sender of a body has closed its connection within it, as opposed to a reset or
    /// any other reason.
    fn is_close_of_sender(&self) -> bool {
        matches!(self.of_body(), Some(BodyError::Http1(Self::Incomplete)))
    }

    /// The same for a response, which the server's proxy may have reported.
    fn is_close_of_server(&self) -> bool {
        let reported = self.of_body().and_then(BodyError::reset);
        self.is_close_of_sender() || reported == Some(SERVER_CLOSED)
    }

    /// The error of the body that was forwarded.
    fn of_body(&self) -> Option<&BodyError> {
        match self {
            Self::Body(error) => error.downcast_ref(),
            _ => None,
        }
    }

    /// Status of the response to the client before its connection is closed.
    fn status(&self) -> Option<StatusCode> {
        match self {
            Self::InvalidMessage(error) => Some(error.status()),
            Self::HeaderTimeout(_)
            | Self::BodyTimeout {
                response_started: false,
                ..
            } => Some(StatusCode::REQUEST_TIMEOUT),
            _ => None,
        }
    }
}

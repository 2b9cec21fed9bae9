//! HTTP/1, our own: what both sides of the proxy need to speak it on one connection.
//!
//! Bytes become messages in pure functions: [`head`] reads heads, [`framing`] says how long the
//! body is, [`chunked`] decodes one kind of it, [`encode`] writes heads. What they refuse and why
//! is [`Refused`], how much they take [`limits`]. [`Connection`] applies them to a stream: whoever
//! needs the next head or frame polls it out of there, in his own task. [`Outgoing`] writes bodies.
//! On top stand [`server`], one loop per accepted connection, and [`super::client`].
//!
//! There is no task and no channel per connection or request, and an idle connection holds no
//! buffer. See docs/adr/0012.

use std::io;
use std::time::Duration;

use http::StatusCode;

use super::body::BodyError;

mod chunked;
mod connection;
mod encode;
mod framing;
mod head;
mod limits;
mod outgoing;
mod output;
mod refused;
mod request;
pub(super) mod server;

pub(super) use self::connection::{Connection, Incoming, Interim};
use self::encode::Framing;
pub(super) use self::framing::{Asked, BodyLength, decimal, tokens};
pub(super) use self::head::{ResponseHead, response as read_response};
pub(super) use self::limits::MAX_INTERIM_RESPONSES;
use self::outgoing::Encoder;
pub(super) use self::outgoing::Outgoing;
pub(super) use self::refused::Refused;
pub(super) use self::request::begin as begin_request;

/// Why a connection, or a message on it, failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("reading from the connection failed")]
    Read(#[source] io::Error),
    #[error("writing to the connection failed")]
    Write(#[source] io::Error),
    #[error("the connection was closed within a message")]
    Incomplete,
    #[error("the connection was closed before a response")]
    NoResponse,
    #[error("the message was refused")]
    Refused(#[from] Refused),
    #[error("no complete head arrived within {0:?}")]
    HeadTimeout(Duration),
    #[error("nothing of the announced body arrived for {limit:?} (MESH_PROXY_HTTP_BODY_TIMEOUT)")]
    BodyTimeout {
        limit: Duration,
        /// The response has begun, so that there is no place for another.
        is_answered: bool,
    },
    #[error("the body could not be read to be sent on")]
    Body(#[source] Box<BodyError>),
    #[error("the body is not as long as its head says")]
    WrongLength,
    #[error("a body of unknown length cannot be sent in HTTP/1.0")]
    Unframed,
    #[error("the connection cannot become a tunnel while it is in use")]
    Busy,
    #[error("the policy no longer allows the request")]
    Revoked,
}

impl Error {
    /// Value of the `reason` label when the client is to blame.
    pub(super) fn label(&self) -> Option<&'static str> {
        match self {
            Self::Refused(refused) => Some(refused.label()),
            Self::HeadTimeout(_) => Some("head_time"),
            Self::BodyTimeout { .. } => Some("body_time"),
            _ => None,
        }
    }

    /// What the client of a connection that failed this way is told before it is closed.
    fn answer(&self) -> Option<StatusCode> {
        match self {
            Self::Refused(refused) => Some(refused.status()),
            Self::HeadTimeout(_)
            | Self::BodyTimeout {
                is_answered: false, ..
            } => Some(StatusCode::REQUEST_TIMEOUT),
            _ => None,
        }
    }
}

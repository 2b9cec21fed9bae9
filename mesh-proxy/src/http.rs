//! The HTTP engine of the data threads: an in-house HTTP/1 codec, and HTTP/2 by the crate
//! `mesh-http2`.
//!
//! `inbound` and `outbound` implement [`HttpHandler`], which [`server::Server::serve`] calls
//! once per request of a connection. They respond by sending the request through a
//! [`client::Client`], which owns the connections to one endpoint. No code outside this module
//! depends on a codec.
//!
//! [`http1`] and [`http2`] bound what a client can consume; the limits are
//! [`crate::config::HttpLimits`].
//!
//! Five files serve a feature, and are part of the engine because they need its inside: the bodies
//! of requests that are sent again (`body::replay`) and of mirrored ones (`body::mirror`) share
//! frames with the body of a message, only the servers can end requests that the policy revokes
//! ([`revocable`]), and `body_metrics` and `refusal_counter` tell [`crate::telemetry`] what the
//! engine sees.
//!
//! Everything runs on the thread of its connection: one local task per connection, and one per
//! accepted HTTP/2 stream. A request is forwarded by the task that received it.

pub(crate) mod body;
mod body_metrics;
mod body_timeout;
mod buffers;
pub(crate) mod client;
mod client_close;
pub(crate) mod grpc;
mod handler;
pub(crate) mod headers;
mod http1;
mod http2;
mod idle;
mod interim;
mod linger;
pub(crate) mod message_context;
mod message_error;
pub mod orig_proto;
mod output;
mod refusal_counter;
pub(crate) mod request_head;
pub(crate) mod revocable;
pub(crate) mod server;
pub mod synthetic_response;
pub(crate) mod upgrade;
mod upload;
pub mod uri;

pub(crate) use mesh_http2::ErrorCode;

pub use self::{
    body::Body,
    handler::{HttpHandler, Protocol, Request, Reset, Response},
};

pub(crate) use self::body::BodyError;

pub(in crate::http) use self::interim::InterimSender;

#[cfg(test)]
mod tests;

//! Retries: whether a request is sent again after an attempt has failed, and the report to its
//! client otherwise. The decisions are tables without I/O, in the terms of docs/adr/0030, 0034 and
//! 0130.
//!
//! [`decide`] repeats safe requests, without a policy. `outbound::http::backend` applies it to the
//! endpoints of a backend, and [`Client::send`](crate::http::client::Client::send) to the
//! application behind the inbound proxy. [`RetryPolicy::decide`] repeats requests as a policy asks;
//! [`PolicyRetries::send`] applies it to the result of a backend. `inbound::http` applies
//! [`report`].

use mesh_http2::{Error as Http2Error, ErrorCode};
use mesh_planted::Bug;

pub(crate) use self::attempt_limit::AttemptLimit;
pub(crate) use self::attempts::{Answer, PolicyRetries};
pub(crate) use self::budget::RetryBudget;
pub(crate) use self::policy::{Conditions, RetryPolicy};
use crate::error::DialError;
use crate::http::Request;
use crate::http::client::SendError;
use crate::http::message_context::MessageContext;

mod application;
mod attempt_limit;
mod attempts;
mod budget;
pub(crate) mod overrides;
mod policy;
pub(crate) mod unsent;

/// How an attempt to send a request failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// The endpoint does not listen.
    ConnectionRefused,
    /// No connection could be established for another reason.
    NoConnection,
    /// The connection closed before anything was written to it. The request is unchanged.
    Unwritten,
    /// The peer has reset the stream with `REFUSED_STREAM`: it has not processed the request.
    Refused,
    /// The peer's GOAWAY excludes the stream: it has not processed the request, and shuts down.
    Excluded,
    /// The peer has reset the stream for another reason, which is its response.
    Reset,
    /// The connection ended before anything of a response arrived, as all connections of a killed
    /// server do.
    Lost {
        /// The server may have closed the connection before it could receive the request: it had
        /// responded to others on it, or had not begun to speak HTTP/2.
        may_be_unreceived: bool,
    },
    /// The response had begun and broke off, or the peer has sent something invalid instead.
    BrokenResponse,
    /// The time limit that a retry policy sets for the attempt expired. The policy decides.
    TimedOut,
    /// The peer's proxy responded, and reports that it has not sent the request to its application.
    UnsentByPeer,
}

/// When a request can be sent again after a part of it was written. Determined before the first
/// attempt, which takes the body, and after each one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Replay {
    /// Always: the method is idempotent (RFC 9110, section 9.2.2), and there is no body to lose.
    Safe,
    /// If the peer has not processed it: there is no body to lose.
    IfUnprocessed,
    /// The same, if the attempt has read nothing of its body; see [`Replay::after_attempt`].
    IfUntouched,
    /// Never: its body is lost, or its connection might have become a tunnel.
    Impossible,
}

/// Where the attempts of a request are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Dispatch {
    /// To endpoints of a balancer.
    Balanced,
    /// To one address.
    Fixed,
    /// To the pod's own application, whose errors are its response.
    Application,
}

/// The failed attempts of a request, which bound its retries.
#[derive(Debug, Default)]
pub(crate) struct History {
    dead_connections: u8,
    is_retried: bool,
}

/// What follows a failed attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// The error, or the response of the peer's proxy, is returned.
    Return,
    /// The request is sent to the same endpoint on another connection.
    SameEndpoint,
    /// The request is sent to another endpoint, or to the same one if it is the only one.
    OtherEndpoint,
    /// If another endpoint is available now, the request is sent there, otherwise the response is
    /// returned.
    OtherEndpointIfAvailable,
}

/// The client of the inbound proxy whose request failed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Requester {
    /// It is an authenticated peer of the mesh.
    pub(crate) is_meshed: bool,
    /// The application has responded to an earlier request of its connection.
    pub(crate) has_response: bool,
    /// It may send the request again when its connection is closed without a response: it speaks
    /// HTTP/1, and the method is idempotent.
    pub(crate) may_repeat: bool,
}

/// What the client of the inbound proxy receives when its request failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Report {
    /// An error response.
    Response,
    /// An error response which tells a peer of the mesh that the request was not sent.
    Unsent,
    /// No response: the connection is closed, or the stream refused.
    Refusal,
}

/// How often a request is moved to another connection because its connection was dead. Dead
/// connections are removed when they are found, so a second attempt that fails means that the
/// endpoint closes connections as soon as they are made.
const MAX_DEAD_CONNECTIONS: u8 = 3;

/// Decides what follows an attempt that failed with `failure`, and records it in `history`.
pub(crate) fn decide(
    failure: Failure,
    replay: Replay,
    dispatch: Dispatch,
    history: &mut History,
) -> Action {
    let retry = |is_allowed: bool| match dispatch {
        _ if !is_allowed => Action::Return,
        Dispatch::Balanced => Action::OtherEndpoint,
        Dispatch::Fixed | Dispatch::Application => Action::SameEndpoint,
    };
    let is_safe = replay == Replay::Safe || Bug::UnsafeRequestRepeated.is_planted();
    match (failure, dispatch) {
        (Failure::Unwritten, _) => retry(history.take_dead_connection()),
        // The application closes its idle connections together.
        (
            Failure::Lost {
                may_be_unreceived: true,
            },
            Dispatch::Application,
        ) => retry(is_safe && history.take_dead_connection()),
        (
            Failure::Lost {
                may_be_unreceived: true,
            },
            _,
        ) => retry(is_safe && history.take_retry()),
        // A single address has no alternative.
        (Failure::ConnectionRefused | Failure::NoConnection, _) => {
            retry(dispatch == Dispatch::Balanced)
        }
        // The server has received the request, and this is all that it makes of it.
        (
            Failure::Lost {
                may_be_unreceived: false,
            }
            | Failure::BrokenResponse
            | Failure::Reset
            | Failure::TimedOut,
            _,
        )
        | (Failure::Refused, Dispatch::Application) => Action::Return,
        (Failure::Refused | Failure::Excluded, _) => {
            retry(replay.is_possible() && history.take_retry())
        }
        (Failure::UnsentByPeer, Dispatch::Balanced) if replay.is_possible() => {
            Action::OtherEndpointIfAvailable
        }
        (Failure::UnsentByPeer, _) => Action::Return,
    }
}

/// Decides what a client receives when the application did not respond with more than `failure`.
pub(crate) fn report(failure: Failure, to: Requester) -> Report {
    match failure {
        // The peer's balancer can try another endpoint.
        _ if to.is_meshed && (failure.is_unsent() || failure == Failure::Excluded) => {
            Report::Unsent
        }
        _ if to.is_meshed => Report::Response,
        // The application would have closed the connection. Clients retry requests on a connection
        // that was closed before the response (RFC 9112, section 9.3.1), but do not retry after a
        // 502. A connection without any response of the application gets the 502.
        Failure::ConnectionRefused | Failure::Excluded if to.has_response => Report::Refusal,
        Failure::Lost { .. } if to.has_response && to.may_repeat => Report::Refusal,
        _ => Report::Response,
    }
}

impl From<&SendError> for Failure {
    fn from(error: &SendError) -> Self {
        match error {
            SendError::Dial(error) if error.is_refused() => Self::ConnectionRefused,
            SendError::Dial(DialError::Closed) => Self::Unwritten,
            SendError::Dial(_) => Self::NoConnection,
            SendError::Lost {
                may_be_unreceived, ..
            } => Self::Lost {
                may_be_unreceived: *may_be_unreceived,
            },
            SendError::Http1(_) => Self::BrokenResponse,
            SendError::Http2(Http2Error::Reset(ErrorCode::REFUSED_STREAM)) => Self::Refused,
            SendError::Http2(Http2Error::Reset(_)) => Self::Reset,
            // Other streams continue after a GOAWAY.
            SendError::Http2(Http2Error::Unprocessed(_)) => Self::Excluded,
            SendError::Http2(_) => Self::BrokenResponse,
            SendError::TimedOut(_) => Self::TimedOut,
        }
    }
}

impl Failure {
    /// Whether nothing of the request was sent, because there was no connection.
    pub(crate) fn is_unsent(self) -> bool {
        matches!(
            self,
            Self::ConnectionRefused | Self::NoConnection | Self::Unwritten
        )
    }

    /// What the attempt has shown of the endpoint: whether it can be reached. Only an endpoint that
    /// cannot is excluded. One that breaks off a request may serve all others. `None`: nothing.
    pub(crate) fn reached(self) -> Option<bool> {
        match self {
            Self::ConnectionRefused | Self::NoConnection | Self::UnsentByPeer => Some(false),
            // The connection may have been made long ago.
            Self::Unwritten => None,
            Self::Refused
            | Self::Excluded
            | Self::Reset
            | Self::Lost { .. }
            | Self::BrokenResponse
            | Self::TimedOut => Some(true),
        }
    }

    /// Whether the endpoint may have received and processed a request that is sent again.
    pub(crate) fn may_be_processed(self) -> bool {
        matches!(self, Self::Lost { .. })
    }
}

impl Replay {
    /// Whether a request that the peer has not processed can be sent again.
    fn is_possible(self) -> bool {
        matches!(self, Self::Safe | Self::IfUnprocessed)
    }

    pub(crate) fn of(request: &Request) -> Self {
        let is_upgrade = MessageContext::of(request.extensions()).requests_upgrade;
        if is_upgrade {
            Self::Impossible
        } else if !request.body().is_empty() {
            Self::IfUntouched
        } else if request.method().is_idempotent() {
            Self::Safe
        } else {
            Self::IfUnprocessed
        }
    }

    /// Returns what holds after an attempt at `request` has failed, which gives back the body if it
    /// has read nothing.
    pub(crate) fn after_attempt(self, request: &Request) -> Self {
        match self {
            Self::IfUntouched if request.body().is_empty() => Self::Impossible,
            Self::IfUntouched => Self::IfUnprocessed,
            known => known,
        }
    }
}

impl History {
    /// Allows three retries of requests whose connection had been closed.
    fn take_dead_connection(&mut self) -> bool {
        let is_allowed = self.dead_connections < MAX_DEAD_CONNECTIONS;
        self.dead_connections += u8::from(is_allowed);
        is_allowed
    }

    /// Allows one retry of a request that the peer has received.
    fn take_retry(&mut self) -> bool {
        !std::mem::replace(&mut self.is_retried, true)
    }
}

#[cfg(test)]
mod tests;

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

pub(crate) use self::attempt_limit::AttemptLimit;
pub(crate) use self::attempts::{Answer, PolicyRetries};
pub(crate) use self::budget::RetryBudget;
pub(crate) use self::delivery_failure::DeliveryFailure;
pub(crate) use self::policy::{Conditions, RetryPolicy};
use crate::error::DialError;
use crate::http::Request;
use crate::http::client::SendError;
use crate::http::message_context::MessageContext;

mod application;
mod attempt_limit;
mod attempts;
mod budget;
mod delivery_failure;
pub(crate) mod overrides;
mod policy;

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
    /// The connection closed before the response headers, as all connections of a killed server do.
    Lost,
    /// The exchange ended before the response headers because of what a peer sent.
    ProtocolError,
    /// The time limit that a retry policy sets for the attempt expired. The policy decides.
    TimedOut,
    /// The peer's proxy responded, and reports that its application did not.
    Undelivered(DeliveryFailure),
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
    Application {
        /// Earlier requests have used the connection, so that the application may have closed it
        /// before it could receive this one.
        is_reused: bool,
    },
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

/// What the client of the inbound proxy receives when its request failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Report {
    /// An error response, which tells a peer of the mesh how far the request got.
    Response(Option<DeliveryFailure>),
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
        Dispatch::Fixed | Dispatch::Application { .. } => Action::SameEndpoint,
    };
    let may_be_dead = match (failure, dispatch) {
        (Failure::Unwritten, _) => true,
        (Failure::Lost | Failure::ProtocolError, Dispatch::Application { is_reused }) => {
            is_reused && replay == Replay::Safe
        }
        _ => false,
    };
    if may_be_dead && history.dead_connections < MAX_DEAD_CONNECTIONS {
        history.dead_connections += 1;
        return retry(true);
    }
    match (failure, dispatch) {
        // A single address has no alternative.
        (Failure::ConnectionRefused | Failure::NoConnection, _) => {
            retry(dispatch == Dispatch::Balanced)
        }
        (Failure::Unwritten | Failure::Reset | Failure::TimedOut, _)
        | (Failure::Refused | Failure::ProtocolError, Dispatch::Application { .. }) => {
            Action::Return
        }
        (Failure::Refused | Failure::Excluded, _) => {
            retry(replay.is_possible() && history.take_retry(dispatch))
        }
        (Failure::Lost | Failure::ProtocolError, _) => {
            retry(replay == Replay::Safe && history.take_retry(dispatch))
        }
        (Failure::Undelivered(how), Dispatch::Balanced) => match how {
            DeliveryFailure::NotSent if replay.is_possible() => Action::OtherEndpointIfAvailable,
            DeliveryFailure::Indeterminate
                if replay == Replay::Safe && history.take_retry(dispatch) =>
            {
                Action::OtherEndpointIfAvailable
            }
            _ => Action::Return,
        },
        (Failure::Undelivered(_), _) => Action::Return,
    }
}

/// Decides what a client receives when the application did not respond with more than `failure`.
/// `has_responded`: it has responded to an earlier request of the client's connection.
pub(crate) fn report(failure: Failure, is_meshed: bool, has_responded: bool) -> Report {
    match failure {
        // The peer's balancer can try another endpoint.
        _ if is_meshed => Report::Response(failure.delivery_failure()),
        // The application would have closed the connection. Clients retry requests on a connection
        // that was closed before the response (RFC 9112, section 9.3.1), but do not retry after a
        // 502. A connection without any response of the application gets the 502.
        Failure::ConnectionRefused | Failure::Excluded if has_responded => Report::Refusal,
        _ => Report::Response(None),
    }
}

impl From<&SendError> for Failure {
    fn from(error: &SendError) -> Self {
        match error {
            SendError::Dial(error) if error.is_refused() => Self::ConnectionRefused,
            SendError::Dial(DialError::Closed) => Self::Unwritten,
            SendError::Dial(_) => Self::NoConnection,
            SendError::Http1(error) if error.is_connection_lost() => Self::Lost,
            SendError::Http1(_) => Self::ProtocolError,
            SendError::Http2(Http2Error::Reset(ErrorCode::REFUSED_STREAM)) => Self::Refused,
            SendError::Http2(Http2Error::Reset(_)) => Self::Reset,
            // Other streams continue after a GOAWAY.
            SendError::Http2(Http2Error::Unprocessed(_)) => Self::Excluded,
            SendError::Http2(error) if error.is_connection_lost() => Self::Lost,
            SendError::Http2(_) => Self::ProtocolError,
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
            Self::ConnectionRefused
            | Self::NoConnection
            | Self::Undelivered(DeliveryFailure::NotSent) => Some(false),
            // The connection may have been made long ago.
            Self::Unwritten => None,
            Self::Refused
            | Self::Excluded
            | Self::Reset
            | Self::Lost
            | Self::ProtocolError
            | Self::TimedOut
            | Self::Undelivered(DeliveryFailure::Indeterminate) => Some(true),
        }
    }

    /// Whether the endpoint may have received and processed the request.
    pub(crate) fn may_be_processed(self) -> bool {
        matches!(self, Self::Lost | Self::ProtocolError)
    }

    /// The report to the peer's proxy. `None` for a stream that the application has reset, because
    /// that was its response.
    fn delivery_failure(self) -> Option<DeliveryFailure> {
        if self.may_be_processed() {
            return Some(DeliveryFailure::Indeterminate);
        }
        (self.is_unsent() || self == Self::Excluded).then_some(DeliveryFailure::NotSent)
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
    /// Allows one retry of a request that the peer has received.
    fn take_retry(&mut self, dispatch: Dispatch) -> bool {
        if std::mem::replace(&mut self.is_retried, true) {
            return false;
        }
        if let Dispatch::Application { .. } = dispatch {
            // The idle connections that are left may be dead, too.
            self.dead_connections = 0;
        }
        true
    }
}

#[cfg(test)]
mod tests;

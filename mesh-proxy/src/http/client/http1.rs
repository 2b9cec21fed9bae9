//! Sends a request on an HTTP/1 connection.
//!
//! The task of a request drives its connection. If a response begins before the request has been
//! sent completely, an [upload](crate::http::upload) that ends with the response sends the rest.

use std::future::poll_fn;
use std::mem;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use http::StatusCode;
use http::header::EXPECT;
use mesh_planted::Bug;

use super::{Dial, SendError};
use crate::config::Http1Limits;
use crate::error::DialError;
use crate::http::body::ResponseGuard;
use crate::http::buffers::FIRST_READ_SIZE;
use crate::http::headers::strip_connection_headers;
use crate::http::http1::pool::{Pool, PoolGuard};
use crate::http::http1::{
    BodyLength, Connection, Error, MAX_INTERIM_RESPONSES, OutgoingBody, ParsedResponse,
    RequestMethod, begin_request, unify_content_length,
};
use crate::http::interim::InterimSender;
use crate::http::message_context::MessageContext;
use crate::http::message_error::MessageError;
use crate::http::{Body, BodyError, Protocol, Request, Response};

/// A connection in use.
pub(super) struct PooledConnection {
    connection: Rc<Connection>,
    /// Taken from the pool. The server may have closed it since.
    is_reused: bool,
}

/// Makes a new connection.
pub(super) async fn connect<D: Dial>(
    dial: &D,
    limits: Http1Limits,
) -> Result<PooledConnection, DialError> {
    let io = dial.dial(Protocol::Http1).await?;
    Ok(PooledConnection {
        connection: Connection::new(io, limits),
        is_reused: false,
    })
}

impl PooledConnection {
    /// A connection of the pool.
    pub(super) fn reused(connection: Rc<Connection>) -> Self {
        Self {
            connection,
            is_reused: true,
        }
    }

    /// Sends `request`. The response returns the connection to `pool`.
    pub(super) async fn send(
        self,
        request: &mut Request,
        pool: Option<&Rc<Pool>>,
    ) -> Result<Response, SendError> {
        let mut response = ResponseFuture::start(self, request)?;
        match poll_fn(|cx| response.poll(cx)).await {
            Ok(parsed) => {
                if !parsed.keeps_alive
                    && let Some(pool) = pool
                {
                    pool.report_server_close();
                }
                Ok(response.into_response(parsed, pool)?)
            }
            Err(error) => {
                if let (Error::NoResponse | Error::Read(_), Some(pool)) = (&error, pool) {
                    pool.report_server_close();
                }
                Err(response.into_send_error(error, request))
            }
        }
    }
}

/// A request being sent, until the response headers have been received.
struct ResponseFuture {
    connection: Rc<Connection>,
    is_reused: bool,
    method: RequestMethod,
    /// The request asked for another protocol.
    is_upgrade: bool,
    body: OutgoingBody,
    upload: UploadState,
    /// The client, unless the request is not a client's.
    interim: Option<InterimSender>,
    interim_count: u32,
    /// An interim response shows that the connection cannot be used again.
    must_close: bool,
}

/// How far the request has been sent.
enum UploadState {
    InProgress,
    Complete,
    /// The server may have responded before it stopped reading.
    Failed(Error),
}

impl ResponseFuture {
    /// Queues the request's header section, to be written with the beginning of the body.
    fn start(on: PooledConnection, request: &mut Request) -> Result<Self, SendError> {
        let connection = on.connection;
        let context = MessageContext::of(request.extensions());
        let is_upgrade = context.requests_upgrade || context.offers_tls;
        let body = mem::take(request.body_mut());
        let interim = body.interim();
        if let Some(interim) = &interim
            && request.headers().contains_key(EXPECT)
            && !Bug::ContinueByProxy.is_planted()
        {
            interim.forward_expectation(true);
        }
        let read_ahead = interim.as_ref().map_or(0, InterimSender::read_ahead);
        let read_size = FIRST_READ_SIZE.saturating_add(read_ahead);
        let upstream = connection.begin_exchange(read_size);
        let encoder = begin_request(&connection, request, &body)?;
        if let Some(interim) = &interim
            && !Bug::ClientCloseLost.is_planted()
        {
            interim.pass_close_to(upstream);
        }
        Ok(Self {
            body: OutgoingBody::new(body, encoder),
            upload: UploadState::InProgress,
            interim_count: 0,
            must_close: false,
            connection,
            is_reused: on.is_reused,
            method: RequestMethod::new(request.method()),
            is_upgrade,
            interim,
        })
    }

    /// Stays pending when the exchange ends without a response: the server has decided that a
    /// client that has closed gets none. The task that serves it drops this future, and no endpoint
    /// counts as failed.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<ParsedResponse, Error>> {
        let polled = self.poll_response(cx);
        if let Poll::Ready(Err(_)) = &polled
            // The end of a reused connection may have come before this request.
            && !self.is_reused
            && self.connection.is_client_closed()
            && let Some(interim) = &self.interim
        {
            interim.abandon();
            return Poll::Pending;
        }
        polled
    }

    fn poll_response(&mut self, cx: &mut Context<'_>) -> Poll<Result<ParsedResponse, Error>> {
        if let UploadState::InProgress = self.upload {
            match self.body.poll(&self.connection, cx) {
                Poll::Pending => {}
                Poll::Ready(Ok(())) => self.upload = UploadState::Complete,
                // The task that serves the client must report this first, so that the endpoint is
                // not counted as failed.
                Poll::Ready(Err(error)) if is_of_client(&error) => {
                    self.upload = UploadState::Failed(error);
                    cx.waker().wake_by_ref();
                    return Poll::Pending;
                }
                // The request cannot be completed without its body.
                Poll::Ready(Err(error @ (Error::Body(_) | Error::LengthMismatch))) => {
                    return Poll::Ready(Err(error));
                }
                Poll::Ready(Err(error)) => self.upload = UploadState::Failed(error),
            }
        }
        loop {
            let mut parsed = match ready!(self.connection.poll_headers(cx)) {
                Ok(Some(headers)) => self.connection.parse_response(&headers)?,
                Ok(None) => return Poll::Ready(Err(self.first_error(Error::NoResponse))),
                Err(error) => return Poll::Ready(Err(self.first_error(error))),
            };
            let is_final = !parsed.status.is_informational()
                || parsed.status == StatusCode::SWITCHING_PROTOCOLS;
            if is_final {
                return Poll::Ready(Ok(parsed));
            }
            // An interim response has no body. One whose headers declare a body is rejected,
            // because another recipient could wait for that body, or lenient.
            parsed.take_body_length(self.method)?;
            self.must_close |= parsed.must_close;
            self.interim_count += 1;
            if self.interim_count > MAX_INTERIM_RESPONSES {
                return Poll::Ready(Err(MessageError::TooManyInterimResponses.into()));
            }
            if let Some(interim) = &self.interim
                && !Bug::InterimLost.is_planted()
            {
                let mut headers = parsed.headers;
                strip_connection_headers(&mut headers);
                interim.send(parsed.status, headers);
            }
        }
    }

    /// Returns the first error, which explains why there is no response.
    fn first_error(&mut self, error: Error) -> Error {
        match mem::replace(&mut self.upload, UploadState::InProgress) {
            UploadState::Failed(first) => first,
            _ => error,
        }
    }

    /// Returns the body to an unwritten request.
    fn into_send_error(self, error: Error, request: &mut Request) -> SendError {
        let unsent = matches!(error, Error::Write(_)) && self.connection.has_written_nothing();
        let has_begun = self.interim_count > 0 || self.connection.has_unread_input();
        match self.body.into_unsent_body() {
            Some(body) if unsent => {
                *request.body_mut() = body;
                SendError::Dial(DialError::Closed)
            }
            _ if error.is_connection_lost() && !has_begun => SendError::Lost {
                cause: error.into(),
                may_be_unreceived: self.is_reused,
            },
            _ => SendError::Http1(error),
        }
    }

    /// Returns the response, whose body is read from the connection.
    fn into_response(
        self,
        mut parsed: ParsedResponse,
        pool: Option<&Rc<Pool>>,
    ) -> Result<Response, Error> {
        let length = parsed.take_body_length(self.method)?;
        let must_close = self.must_close || parsed.must_close;
        let mut response = Response::new(Body::empty());
        *response.status_mut() = parsed.status;
        *response.version_mut() = parsed.version;
        *response.headers_mut() = parsed.headers;
        if let Some(reason) = parsed.reason {
            MessageContext::of_mut(response.extensions_mut()).reason = Some(reason);
        }
        if let BodyLength::Bytes(_) = length {
            unify_content_length(response.headers_mut());
        }
        let switched = parsed.status == StatusCode::SWITCHING_PROTOCOLS;
        if switched || (self.method == RequestMethod::Connect && parsed.status.is_success()) {
            if switched && !self.is_upgrade {
                return Err(MessageError::UnexpectedSwitchingProtocols.into());
            }
            *response.body_mut() = self.into_tunnel()?;
            return Ok(response);
        }
        let body = match self.connection.begin_body(length, false) {
            Some(incoming) => Body::http1(incoming),
            None => Body::empty(),
        };
        let keeps_alive = parsed.keeps_alive && !must_close && length != BodyLength::UntilClose;
        *response.body_mut() =
            body.with_guard(ResponseGuard::Http1(self.into_guard(pool, keeps_alive)));
        Ok(response)
    }

    fn into_tunnel(self) -> Result<Body, Error> {
        let UploadState::Complete = self.upload else {
            return Err(Error::ConnectionInUse);
        };
        let io = self.connection.into_io().ok_or(Error::ConnectionInUse)?;
        Ok(Body::tunnel(Box::new(io)))
    }

    fn into_guard(self, pool: Option<&Rc<Pool>>, keeps_alive: bool) -> PoolGuard {
        // A client that waits for a 100 and receives the final response does not send the body.
        let interim = self.interim.as_ref();
        let is_body_unwanted =
            self.body.is_unsent() && interim.is_some_and(InterimSender::is_continue_awaited);
        let rest = match self.upload {
            UploadState::InProgress if !is_body_unwanted => Some(self.body),
            _ => None,
        };
        let is_sent = matches!(self.upload, UploadState::Complete) || rest.is_some();
        PoolGuard::new(self.connection, pool, keeps_alive && is_sent, rest)
    }
}

/// Whether a request's body failed with its client's connection, or is invalid.
fn is_of_client(error: &Error) -> bool {
    let Error::Body(error) = error else {
        return false;
    };
    let error = error.downcast_ref();
    error.is_some_and(BodyError::is_of_client)
}

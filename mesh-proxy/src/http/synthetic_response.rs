//! Responses that the proxy synthesizes: errors and the replies of filters, as HTTP or gRPC.

use http::header::{CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, HeaderValue};
use http::{Method, StatusCode, Version};

use super::headers::{PROXY_CONNECTION, PROXY_ERROR};
use super::message_context::MessageContext;
use super::{Body, Request, Reset, Response, grpc};
use crate::error::{Error, Kind};
use crate::local_reply::LocalReply;

/// The attributes of a request that its response depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestContext {
    version: Version,
    grpc: bool,
    /// Received over HTTP/2 and converted back to HTTP/1.
    downgraded: bool,
    connect: bool,
}

/// How much of an error is disclosed to the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ErrorDetail {
    /// `l5d-proxy-error`, `l5d-proxy-connection` and `grpc-message` are sent. The inbound proxy
    /// sends them only to clients with a mesh identity, because they disclose internals.
    pub informational: bool,
}

impl RequestContext {
    /// `downgraded` is the result of [`orig_proto::downgrade`](super::orig_proto::downgrade).
    pub fn new(request: &Request, downgraded: Option<Version>) -> Self {
        Self {
            version: request.version(),
            grpc: grpc::is_grpc(request.version(), request.headers()),
            downgraded: downgraded.is_some(),
            connect: *request.method() == Method::CONNECT,
        }
    }

    pub(crate) fn is_http1(&self) -> bool {
        self.version < Version::HTTP_2
    }

    pub(crate) fn is_grpc(&self) -> bool {
        self.grpc
    }

    /// Whether a response of this status turns the exchange into a tunnel. Time limits do not apply
    /// to tunnels.
    pub(crate) fn is_tunnel(&self, status: StatusCode) -> bool {
        self.connect && status.is_success()
    }
}

/// Returns the response to a request that failed with `error`.
pub fn error(
    request_context: RequestContext,
    error: &Error,
    detail: ErrorDetail,
) -> Result<Response, Reset> {
    if let Kind::Reset(reason) = error.kind
        && request_context.version == Version::HTTP_2
    {
        return Err(Reset(reason));
    }
    let mapping = error.kind.mapping();
    let message = detail.informational.then(|| message(error.message()));
    let mut response = empty(
        request_context,
        mapping.status,
        mapping.grpc,
        message.as_ref(),
    );
    let headers = response.headers_mut();
    if let Some(message) = message {
        headers.insert(PROXY_ERROR, message);
    }
    if mapping.closes_connection {
        if detail.informational {
            headers.insert(PROXY_CONNECTION, HeaderValue::from_static("close"));
        }
        if request_context.version == Version::HTTP_11 && !request_context.downgraded {
            headers.insert(CONNECTION, HeaderValue::from_static("close"));
        }
        // A downgraded request shares its connection with all other requests to this workload.
        if !request_context.downgraded {
            MessageContext::of_mut(response.extensions_mut()).closes_connection = true;
        }
    }
    Ok(response)
}

/// Returns the response to a request that a filter has replied to.
pub(crate) fn reply(
    request_context: RequestContext,
    reply: &LocalReply,
    detail: ErrorDetail,
) -> Response {
    let message = detail.informational.then(|| message(reply.message()));
    let (status, grpc) = (reply.status(), reply.grpc_code());
    let mut response = empty(request_context, status, grpc, message.as_ref());
    let headers = response.headers_mut();
    reply.set_headers(headers);
    if reply.is_failure()
        && let Some(message) = message
    {
        headers.insert(PROXY_ERROR, message);
    }
    response
}

/// Returns a response without a body. A gRPC call gets the code `grpc` with the message.
fn empty(
    request_context: RequestContext,
    status: StatusCode,
    grpc: u16,
    message: Option<&HeaderValue>,
) -> Response {
    let mut response = Response::new(Body::empty());
    *response.version_mut() = request_context.version;
    let headers = response.headers_mut();
    headers.insert(CONTENT_LENGTH, HeaderValue::from_static("0"));
    if request_context.grpc {
        headers.insert(CONTENT_TYPE, grpc::APPLICATION_GRPC);
        headers.insert(grpc::GRPC_STATUS, grpc.into());
        if let Some(message) = message {
            headers.insert(grpc::GRPC_MESSAGE, message.clone());
        }
    } else {
        *response.status_mut() = status;
    }
    response
}

/// Returns a response without a body.
pub(crate) fn status(version: Version, status: StatusCode) -> Response {
    let mut response = Response::new(Body::empty());
    *response.version_mut() = version;
    *response.status_mut() = status;
    response
        .headers_mut()
        .insert(CONTENT_LENGTH, HeaderValue::from_static("0"));
    response
}

/// Returns the message, or a placeholder if it cannot be a header value.
fn message(text: &str) -> HeaderValue {
    HeaderValue::from_str(text).unwrap_or(HeaderValue::from_static("unexpected error"))
}

//! Responses that the proxy makes up: errors and redirects, in HTTP's or gRPC's form.

use http::header::{CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, HeaderValue, LOCATION};
use http::{Method, StatusCode, Version};

use super::headers::{PROXY_CONNECTION, PROXY_ERROR};
use super::orig_proto::Downgraded;
use super::{Body, Request, Reset, Response, grpc};
use crate::error::{Error, Kind};

/// What must be known of a request to answer it after it has been sent away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asker {
    version: Version,
    grpc: bool,
    downgraded: bool,
    connect: bool,
}

/// Ends the connection once the response has been sent. An extension of the response, obeyed by
/// [`super::server`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CloseConnection;

/// How much a client may learn of an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Disclosure {
    /// `l5d-proxy-error`, `l5d-proxy-connection` and `grpc-message` are sent. Inbound only to
    /// clients with a mesh identity, as they describe the inside.
    pub informational: bool,
}

impl Asker {
    pub fn of(request: &Request) -> Self {
        Self {
            version: request.version(),
            grpc: grpc::is_grpc(request.version(), request.headers()),
            downgraded: request.extensions().get::<Downgraded>().is_some(),
            connect: *request.method() == Method::CONNECT,
        }
    }

    pub fn is_grpc(&self) -> bool {
        self.grpc
    }

    /// Whether a response of this status makes the exchange a tunnel, which lasts as long as it
    /// lasts.
    pub fn is_tunnel(&self, status: StatusCode) -> bool {
        self.connect && status.is_success()
    }

    pub fn version(&self) -> Version {
        self.version
    }
}

/// The answer to a request that ended with `error`.
pub fn error(asker: Asker, error: &Error, disclosure: Disclosure) -> Result<Response, Reset> {
    if let Kind::Reset(reason) = error.kind
        && asker.version == Version::HTTP_2
    {
        return Err(Reset(reason));
    }
    let mapping = error.kind.mapping();
    let mut response = Response::new(Body::empty());
    *response.version_mut() = asker.version;
    let headers = response.headers_mut();
    headers.insert(CONTENT_LENGTH, HeaderValue::from_static("0"));
    if asker.grpc {
        headers.insert(CONTENT_TYPE, grpc::APPLICATION_GRPC);
        headers.insert(grpc::GRPC_STATUS, mapping.grpc.into());
        if disclosure.informational {
            headers.insert(grpc::GRPC_MESSAGE, message(error));
        }
    } else {
        *response.status_mut() = mapping.status;
    }
    let headers = response.headers_mut();
    if let Kind::Redirect { location, .. } = &error.kind {
        headers.insert(LOCATION, location.clone());
    } else if disclosure.informational {
        headers.insert(PROXY_ERROR, message(error));
    }
    if mapping.closes_connection {
        if disclosure.informational {
            headers.insert(PROXY_CONNECTION, HeaderValue::from_static("close"));
        }
        if asker.version == Version::HTTP_11 && !asker.downgraded {
            headers.insert(CONNECTION, HeaderValue::from_static("close"));
        }
        // A carried request shares its connection with everybody else's requests to this workload.
        if !asker.downgraded {
            response.extensions_mut().insert(CloseConnection);
        }
    }
    Ok(response)
}

/// An answer without body and without any explanation.
pub fn status(version: Version, status: StatusCode) -> Response {
    let mut response = Response::new(Body::empty());
    *response.version_mut() = version;
    *response.status_mut() = status;
    response
        .headers_mut()
        .insert(CONTENT_LENGTH, HeaderValue::from_static("0"));
    response
}

/// Header values cannot hold every text; what does not fit is not told.
fn message(error: &Error) -> HeaderValue {
    HeaderValue::from_str(error.message()).unwrap_or(HeaderValue::from_static("unexpected error"))
}

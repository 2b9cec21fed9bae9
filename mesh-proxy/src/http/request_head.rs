//! Copies of the header sections of requests, for retries and mirrors.

use http::{Extensions, HeaderMap, Method, Uri, Version};

use super::message_context::MessageContext;
use super::{Body, Request};

/// What the application has sent besides the body, which an attempt changes.
#[derive(Clone)]
pub(crate) struct RequestHeadCopy {
    method: Method,
    uri: Uri,
    version: Version,
    headers: HeaderMap,
    extensions: Extensions,
}

/// Whether the connection of `request` becomes a tunnel, which is neither retried nor mirrored.
pub(crate) fn opens_tunnel(request: &Request) -> bool {
    request.method() == Method::CONNECT || MessageContext::of(request.extensions()).requests_upgrade
}

impl RequestHeadCopy {
    pub(crate) fn of(request: &Request) -> Self {
        Self {
            method: request.method().clone(),
            uri: request.uri().clone(),
            version: request.version(),
            headers: request.headers().clone(),
            extensions: request.extensions().clone(),
        }
    }

    /// Returns a request with a copy of this head.
    pub(crate) fn request(&self, body: Body) -> Request {
        self.clone().into_request(body)
    }

    pub(crate) fn into_request(self, body: Body) -> Request {
        let mut request = Request::new(body);
        *request.method_mut() = self.method;
        *request.uri_mut() = self.uri;
        *request.version_mut() = self.version;
        *request.headers_mut() = self.headers;
        *request.extensions_mut() = self.extensions;
        request
    }
}

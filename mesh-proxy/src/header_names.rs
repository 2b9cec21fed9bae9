//! The names of the header fields of the mesh.

use http::HeaderName;

/// The HTTP/1 version that a request or response had before it was carried over HTTP/2.
pub(crate) const ORIG_PROTO: HeaderName = HeaderName::from_static("l5d-orig-proto");
/// The message of an error response that the proxy synthesized.
pub(crate) const PROXY_ERROR: HeaderName = HeaderName::from_static("l5d-proxy-error");
/// `close`: the peer's proxy requests that the application's connection be closed.
pub(crate) const PROXY_CONNECTION: HeaderName = HeaderName::from_static("l5d-proxy-connection");
/// How far a request got that the application has not responded to
/// ([`DeliveryFailure`](crate::retry::DeliveryFailure)).
pub(crate) const PROXY_UNDELIVERED: HeaderName = HeaderName::from_static("l5d-proxy-undelivered");
/// The client's identity, set by the inbound proxy.
pub(crate) const CLIENT_ID: HeaderName = HeaderName::from_static("l5d-client-id");
/// The canonical name of the destination, set for ServiceProfiles.
pub(crate) const DST_CANONICAL: HeaderName = HeaderName::from_static("l5d-dst-canonical");
/// The name that a request is sent to, in ingress mode.
pub(crate) const DST_OVERRIDE: HeaderName = HeaderName::from_static("l5d-dst-override");
/// The identity that the client requires of the endpoint.
pub(crate) const REQUIRE_ID: HeaderName = HeaderName::from_static("l5d-require-id");

//! The response of the admin interface to an authorized request.

use std::mem;
use std::net::SocketAddr;

use http::StatusCode;
use http_body_util::BodyExt as _;
use mesh_runtime::admin::Admin;

use crate::http::{Body, Request, Response, synthetic_response};
use crate::limits::memory::Memory;

/// The paths of probes, which are always served.
const PROBES: [&str; 2] = ["/live", "/ready"];

/// Responds to a request. While memory is short, clients outside the pod are served only probes:
/// other responses are large, and stay in memory until their clients have read them. Loopback
/// clients, such as `kubectl port-forward`, can still read the metrics.
pub(super) async fn respond(
    admin: &Admin,
    memory: &Memory,
    request: &mut Request,
    client: SocketAddr,
) -> Response {
    let is_served = client.ip().is_loopback() || PROBES.contains(&request.uri().path());
    if !is_served && memory.is_exceeded() {
        let status = StatusCode::SERVICE_UNAVAILABLE;
        return synthetic_response::status(request.version(), status);
    }
    let (head, body) = admin.respond(mem::take(request), client).await.into_parts();
    // Complete already, and cannot fail.
    let body = match body.collect().await {
        Ok(collected) => Body::full(collected.to_bytes()),
        Err(never) => match never {},
    };
    Response::from_parts(head, body)
}

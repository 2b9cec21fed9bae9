//! What clients and servers of the tap API agree on about a request: its path, its limit, and how
//! an error is recognized.

use crate::linkerd2::tap::TapByResourceRequest;
use crate::linkerd2::tap::tap_by_resource_request::extract::{self, http as extract_http};

/// The beginning of the paths that the API server forwards to the tap API. The namespace follows.
pub const PATH_PREFIX: &str = "/apis/tap.linkerd.io/v1alpha1/watch/namespaces/";

/// The header that marks an error for clients.
pub const ERROR_HEADER: &str = "linkerd-error";

/// The requests per second of a tap whose request has no limit, as in Linkerd.
pub const DEFAULT_MAX_RPS: f32 = 100.0;

/// The maximum of requests per second. More would cost the tapped proxies more than they tell.
pub const LARGEST_MAX_RPS: f32 = 10_000.0;

/// The limit is negative, too high or not a number.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("maxRps is {0}; expected at most {LARGEST_MAX_RPS} requests per second")]
pub struct MaxRpsError(f32);

/// Returns the requests per second that are reported, over all pods.
///
/// # Errors
///
/// The request's limit is out of range.
pub fn max_rps(request: &TapByResourceRequest) -> Result<f32, MaxRpsError> {
    match request.max_rps {
        0.0 => Ok(DEFAULT_MAX_RPS),
        rps if rps > 0.0 && rps <= LARGEST_MAX_RPS => Ok(rps),
        rps => Err(MaxRpsError(rps)),
    }
}

/// Returns each pod's share of the requests per second, at least one.
pub fn rps_per_pod(max_rps: f32, pods: usize) -> u32 {
    ((max_rps / pods as f32) as u32).max(1)
}

/// Returns whether header fields are asked for.
pub fn extracts_headers(request: &TapByResourceRequest) -> bool {
    let Some(extract::Extract::Http(http)) = request.extract.and_then(|it| it.extract) else {
        return false;
    };
    matches!(http.extract, Some(extract_http::Extract::Headers(_)))
}

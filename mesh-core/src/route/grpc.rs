//! gRPC matches: a call is `POST /service/method`.

use std::sync::Arc;

use super::http::HeaderMatch;

/// All present parts must match.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GrpcMatch {
    pub service: Option<Arc<str>>,
    pub method: Option<Arc<str>>,
    pub headers: Vec<HeaderMatch>,
}

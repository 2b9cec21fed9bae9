//! The admin interface of the proxy: probes, metrics, log level, environment, shutdown.
//!
//! Runs on the control thread, so that it responds while the data threads are busy and before there
//! is a certificate. It serves plain text and mesh TLS, HTTP/1 and HTTP/2, until the process exits,
//! because the counters at the end of a drain are often of interest.

mod env;
mod serve;

use http::{Method, StatusCode};
use mesh_runtime::admin::{Admin, Call, Readiness, Response, empty, log_level, text};
use mesh_runtime::log::FilterHandle;
use mesh_runtime::metrics::Registry;
use tokio_util::sync::CancellationToken;

#[cfg(test)]
pub(crate) use self::serve::MAX_CONNECTIONS;
pub(crate) use self::serve::serve;

/// Returns the routes. `POST /shutdown` cancels `shutdown`; `None` disables it.
pub(crate) fn routes(
    registry: Registry,
    readiness: Readiness,
    log: FilterHandle,
    shutdown: Option<CancellationToken>,
) -> Admin {
    Admin::new(registry, readiness)
        .route("/proxy-log-level", move |call| {
            let response = log_level::respond(&log, &call);
            async { response }
        })
        .route("/env.json", |call| {
            let response = env::respond(&call);
            async { response }
        })
        .route("/shutdown", move |call| {
            let response = stop(&call, shutdown.as_ref());
            async { response }
        })
}

fn stop(call: &Call, shutdown: Option<&CancellationToken>) -> Response {
    if call.method != Method::POST {
        return not_allowed("POST");
    }
    let Some(shutdown) = shutdown else {
        return text(StatusCode::NOT_FOUND, "shutdown endpoint is not enabled\n");
    };
    if !call.is_local() {
        return only_local();
    }
    shutdown.cancel();
    text(StatusCode::OK, "shutdown\n")
}

fn not_allowed(allow: &'static str) -> Response {
    let mut response = empty(StatusCode::METHOD_NOT_ALLOWED);
    let allow = http::HeaderValue::from_static(allow);
    response.headers_mut().insert(http::header::ALLOW, allow);
    response
}

fn only_local() -> Response {
    text(
        StatusCode::FORBIDDEN,
        "Requests are only permitted from localhost.",
    )
}

#[cfg(test)]
mod tests;

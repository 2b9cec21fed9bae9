//! Reads and changes the log filter over the admin interface. The proxy serves it as
//! `/proxy-log-level`, where Linkerd's users expect it; the other daemons as `/log-level`.

use http::header::ALLOW;
use http::{HeaderValue, Method, StatusCode};

use super::{Call, Response, empty, text};
use crate::log::{self, FilterHandle};

/// GET answers the filter in force, PUT replaces it; only for callers on this host.
pub fn respond(filter: &FilterHandle, call: &Call) -> Response {
    if !call.is_local() {
        return text(
            StatusCode::FORBIDDEN,
            "Requests are only permitted from localhost.",
        );
    }
    match call.method {
        Method::GET => text(StatusCode::OK, filter.current()),
        Method::PUT => set(filter, &call.body),
        _ => {
            let mut response = empty(StatusCode::METHOD_NOT_ALLOWED);
            for method in ["GET", "PUT"] {
                let method = HeaderValue::from_static(method);
                response.headers_mut().append(ALLOW, method);
            }
            response
        }
    }
}

fn set(filter: &FilterHandle, body: &[u8]) -> Response {
    let Ok(wanted) = std::str::from_utf8(body) else {
        return text(StatusCode::BAD_REQUEST, "the log filter is not UTF-8\n");
    };
    match filter.set(wanted.trim()) {
        Ok(()) => {
            tracing::info!(filter = %wanted.trim(), "Log filter changed");
            empty(StatusCode::NO_CONTENT)
        }
        Err(error) => {
            let problem = log::chain(&error);
            text(StatusCode::BAD_REQUEST, format!("{problem}\n"))
        }
    }
}

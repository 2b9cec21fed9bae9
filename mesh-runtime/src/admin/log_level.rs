//! Returns and changes the log filter through the admin interface. The proxy serves it as
//! `/proxy-log-level`, where Linkerd's users expect it; the other daemons as `/log-level`.

use http::header::ALLOW;
use http::{HeaderValue, Method, StatusCode};

use super::{Call, Response, empty, text};
use crate::log::{self, FilterHandle};

/// Responds to GET with the active filter, and replaces it with PUT. Rejects callers from other
/// hosts.
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
    let Ok(filter_text) = std::str::from_utf8(body) else {
        return text(StatusCode::BAD_REQUEST, "the log filter is not UTF-8\n");
    };
    match filter.set(filter_text.trim()) {
        Ok(()) => {
            tracing::info!(filter = %filter_text.trim(), "Log filter changed");
            empty(StatusCode::NO_CONTENT)
        }
        Err(error) => {
            let message = log::chain(&error);
            text(StatusCode::BAD_REQUEST, format!("{message}\n"))
        }
    }
}

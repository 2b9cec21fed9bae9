//! The handshake of a WebSocket (RFC 6455, section 4.2).

use http::header::{
    CONNECTION, HeaderName, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_KEY, SEC_WEBSOCKET_VERSION, UPGRADE,
};
use http::{HeaderMap, HeaderValue, Response, StatusCode};
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;

use super::{Body, empty};

const VERSION: HeaderValue = HeaderValue::from_static("13");
const WEBSOCKET: HeaderValue = HeaderValue::from_static("websocket");

/// Returns the response that accepts a WebSocket, or why a request does not ask for one.
pub(super) fn accept(headers: &HeaderMap) -> Result<Response<Body>, &'static str> {
    if !has_token(headers, CONNECTION, "upgrade") || !has_token(headers, UPGRADE, "websocket") {
        return Err("taps are WebSockets: expected connection: upgrade and upgrade: websocket");
    }
    if headers.get(SEC_WEBSOCKET_VERSION) != Some(&VERSION) {
        return Err("expected version 13 of the WebSocket protocol");
    }
    let key = headers.get(SEC_WEBSOCKET_KEY);
    let key = key.ok_or("expected a sec-websocket-key header")?;
    let accept = HeaderValue::try_from(derive_accept_key(key.as_bytes()))
        .map_err(|_error| "invalid sec-websocket-key header")?;
    let mut response = Response::new(empty());
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    let headers = response.headers_mut();
    headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
    headers.insert(UPGRADE, WEBSOCKET);
    headers.insert(SEC_WEBSOCKET_ACCEPT, accept);
    Ok(response)
}

/// Adds the headers that name the protocol and version to request.
pub(super) fn advertise(headers: &mut HeaderMap) {
    headers.insert(UPGRADE, WEBSOCKET);
    headers.insert(SEC_WEBSOCKET_VERSION, VERSION);
}

fn has_token(headers: &HeaderMap, name: HeaderName, token: &str) -> bool {
    let values = headers.get_all(name).iter();
    let mut tokens = values
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','));
    tokens.any(|found| found.trim().eq_ignore_ascii_case(token))
}

#[cfg(test)]
mod tests {
    use super::*;

    const VALID: [(HeaderName, &str); 4] = [
        (CONNECTION, "keep-alive, Upgrade"),
        (UPGRADE, "websocket"),
        (SEC_WEBSOCKET_VERSION, "13"),
        (SEC_WEBSOCKET_KEY, "dGhlIHNhbXBsZSBub25jZQ=="),
    ];

    fn headers(without: Option<usize>) -> HeaderMap {
        let headers = VALID.into_iter().enumerate();
        let headers = headers.filter(|(index, _)| Some(*index) != without);
        headers
            .map(|(_, (name, value))| (name, HeaderValue::from_static(value)))
            .collect()
    }

    #[test]
    fn handshake_of_the_rfc_is_accepted() {
        let response = accept(&headers(None)).unwrap();
        assert_eq!(response.status(), StatusCode::SWITCHING_PROTOCOLS);
        assert_eq!(
            response.headers()[SEC_WEBSOCKET_ACCEPT],
            "s3pPLMBiTxaQ9kYGzzhZRbK+xOo="
        );
    }

    #[test]
    fn incomplete_handshakes_are_refused() {
        for missing in 0..VALID.len() {
            assert!(accept(&headers(Some(missing))).is_err(), "{missing}");
        }
    }
}

//! The gateway of a cluster: forwards what proxies of other clusters send to the Services of this
//! one.
//!
//! Such a proxy names the Service in the transport header of its connection. The policy of the port
//! that it has dialled, the proxy's own inbound port, decides about its connections and requests,
//! and the outbound side discovers and reaches the Service as for an application. Endpoints see the
//! identity of the gateway; the field `forwarded` has the client's, and stops requests that pass a
//! gateway twice.

use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;

use http::header::{FORWARDED, HOST};
use http::{HeaderMap, HeaderValue, Version};
use mesh_core::identity::Identity;

use crate::discovery::NameAddr;
use crate::error::{DialError, Error, Kind};
use crate::http::client::SendError;
use crate::http::{Request, Reset, Response};
use crate::outbound::Outbound;
use crate::tls::Credentials;

/// The Service of the requests of one connection.
pub(super) struct GatewayTarget {
    pub(super) outbound: Rc<Outbound>,
    /// The Service, or a name that this gateway does not serve.
    pub(super) service: Result<NameAddr, Arc<str>>,
    /// The address that the client has dialled.
    pub(super) dialled: SocketAddr,
    /// The gateway's own.
    pub(super) credentials: Arc<Credentials>,
}

impl GatewayTarget {
    /// Refuses a request for a Service of another domain, and one that has passed this gateway.
    /// Any other request gets the field `forwarded`, which other gateways stop it by.
    #[cold]
    pub(super) fn admit(
        &self,
        request: &mut Request,
        client: Option<&Identity>,
    ) -> Result<(), Error> {
        if let Err(name) = &self.service {
            let message = format!("the gateway does not serve {name:?}");
            return Err(Error::new(Kind::GatewayDomainInvalid, message));
        }
        let own = self.credentials.id();
        if client == Some(own) || has_passed(request.headers(), own.as_str()) {
            let message = "the request has passed this gateway before";
            return Err(Error::new(Kind::GatewayLoop, message));
        }
        let authority = request.uri().authority().map(|it| it.as_str().to_owned());
        let client = client.map(Identity::as_str);
        let forwarded = forwarded(own.as_str(), client, authority.as_deref());
        let invalid = |_| Error::new(Kind::Unexpected, "the request cannot be forwarded");
        let is_http1 = request.version() != Version::HTTP_2;
        let headers = request.headers_mut();
        let forwarded = HeaderValue::from_str(&forwarded).map_err(invalid)?;
        headers.append(FORWARDED, forwarded);
        // The client's proxy has replaced the authority, and removed the Host of HTTP/1.
        if let Some(authority) = authority
            && is_http1
        {
            let host = HeaderValue::from_str(&authority).map_err(invalid)?;
            headers.insert(HOST, host);
        }
        Ok(())
    }

    /// Sends a request that was admitted.
    pub(super) async fn send(
        &self,
        request: &mut Request,
        client: SocketAddr,
    ) -> Result<Response, SendError> {
        let Ok(service) = &self.service else {
            // `admit` has refused the request.
            return Err(SendError::Dial(DialError::Closed));
        };
        self.outbound
            .send_to(service, client, self.dialled, request)
            .await
            .map_err(|Reset(code)| SendError::Http2(mesh_http2::Error::Reset(code)))
    }
}

/// Returns an element of the field `forwarded` (RFC 7239 §4), as Linkerd's gateway writes it.
fn forwarded(by: &str, client: Option<&str>, host: Option<&str>) -> String {
    let mut element = format!("by={}", quoted(by));
    for (name, value) in [("for", client), ("host", host)] {
        if let Some(value) = value {
            element += &format!(";{name}={}", quoted(value));
        }
    }
    element + ";proto=https"
}

/// Quotes a value that is not a token (RFC 9110 §5.6.2).
fn quoted(value: &str) -> String {
    let is_token = value
        .bytes()
        .all(|byte| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte));
    if is_token {
        value.to_owned()
    } else {
        format!("\"{}\"", value.replace('\\', "\\\\").replace('"', "\\\""))
    }
}

/// Whether an element of the field `forwarded` was written by a proxy with this identity.
fn has_passed(headers: &HeaderMap, own: &str) -> bool {
    let fields = headers.get_all(FORWARDED).iter();
    let mut pairs = fields.flat_map(|field| pairs(field.as_bytes()));
    pairs.any(|(name, value)| name.eq_ignore_ascii_case(b"by") && value == own.as_bytes())
}

/// Returns the parameters of all elements of a field. A quoted value has no quotes.
fn pairs(field: &[u8]) -> impl Iterator<Item = (&[u8], Vec<u8>)> {
    let mut rest = field;
    std::iter::from_fn(move || {
        while !rest.is_empty() {
            let (pair, after) = split_pair(rest);
            rest = after;
            let mut parts = pair.splitn(2, |byte| *byte == b'=');
            let (name, value) = (parts.next()?, parts.next());
            if let Some(value) = value {
                return Some((name.trim_ascii(), unquoted(value.trim_ascii())));
            }
        }
        None
    })
}

/// Splits at the first `,` or `;` outside of quotes.
fn split_pair(field: &[u8]) -> (&[u8], &[u8]) {
    let (mut is_quoted, mut is_escaped) = (false, false);
    let end = field.iter().position(|byte| {
        let ends = !is_quoted && matches!(byte, b',' | b';');
        if *byte == b'"' && !is_escaped {
            is_quoted = !is_quoted;
        }
        is_escaped = is_quoted && *byte == b'\\' && !is_escaped;
        ends
    });
    match end {
        Some(end) => (&field[..end], &field[end + 1..]),
        None => (field, &[]),
    }
}

fn unquoted(value: &[u8]) -> Vec<u8> {
    let inner = value
        .strip_prefix(b"\"")
        .and_then(|it| it.strip_suffix(b"\""));
    let Some(inner) = inner else {
        return value.to_vec();
    };
    let mut is_escaped = false;
    let kept = inner.iter().filter(|byte| {
        is_escaped = !is_escaped && **byte == b'\\';
        !is_escaped
    });
    kept.copied().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn element_has_the_gateway_the_client_and_the_authority() {
        let gateway = "linkerd-gateway.mc.serviceaccount.identity.linkerd.cluster.local";
        assert_eq!(
            forwarded(gateway, Some("web.shop"), Some("api.shop:80")),
            format!("by={gateway};for=web.shop;host=\"api.shop:80\";proto=https")
        );
        assert_eq!(
            forwarded("spiffe://example.org/gateway", None, None),
            "by=\"spiffe://example.org/gateway\";proto=https"
        );
    }

    #[test]
    fn request_has_passed_the_gateways_of_its_field() {
        let passed = |fields: &[&str], own: &str| {
            let mut headers = HeaderMap::new();
            for field in fields {
                headers.append(FORWARDED, HeaderValue::from_str(field).unwrap());
            }
            has_passed(&headers, own)
        };
        for fields in [
            &["by=east"][..],
            &["By=\"east\";proto=https"],
            &["for=a;by=west", "for=b; by=east ;host=c"],
            &["for=\"[2001:db8::1]:80\";by=west, for=a;by=east"],
            &["for=\"a, by=west\";by=\"e\\ast\""],
        ] {
            assert!(passed(fields, "east"), "{fields:?}");
        }
        for fields in [
            &[][..],
            &["by=eastern"],
            &["for=east", "host=east"],
            &["for=\"by=east\""],
            &["for=\"a\\\";by=east\""],
            &["by", "east", ";,;"],
            &["by=\"east"],
        ] {
            assert!(!passed(fields, "east"), "{fields:?}");
        }
        let spiffe = "spiffe://example.org/gateway";
        assert!(passed(&[&forwarded(spiffe, None, None)], spiffe));
    }
}

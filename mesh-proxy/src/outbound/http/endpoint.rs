//! The HTTP client of one endpoint, its metrics, and how requests to it are rewritten.

use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;

use http::header::HOST;
use http::uri::Authority;
use http::{HeaderMap, HeaderName, HeaderValue, Uri, Version};
use mesh_core::endpoint::{Endpoint, Http2Params, ProtocolHint, TlsPeer};
use mesh_core::trace::SpanKind;

use crate::context::ProxyContext;
use crate::error::{DialError, Error, Kind};
use crate::http::client::{self, Client, Connection, SendError};
use crate::http::headers::{DST_CANONICAL, PROXY_CONNECTION, PROXY_ERROR, PROXY_UNDELIVERED};
use crate::http::message_context::MessageContext;
use crate::http::{Request, Response, headers, orig_proto, uri};
use crate::outbound::dial::{self, EndpointDial};
use crate::retry::unsent;
use crate::tap::TapRecorder;
use crate::telemetry::http::EndpointMetrics;
use crate::telemetry::labels::{self, Direction};
use crate::trace::{self, OpenSpan};

/// Response headers that the peer's proxy sends to this one.
static PEER_HEADERS: [HeaderName; 3] = [PROXY_UNDELIVERED, PROXY_ERROR, PROXY_CONNECTION];

/// An endpoint of a balancer, or of forwarded traffic.
pub(super) struct HttpEndpoint {
    client: Client<EndpointDial>,
    pub(super) metrics: Rc<EndpointMetrics>,
    /// The TLS peer, unless the endpoint is the pod's own application.
    peer: Option<TlsPeer>,
    upgrades_http1: bool,
    authority_override: Option<Authority>,
    /// Whether the application addressed this endpoint directly. Its connection is then closed
    /// together with the endpoint's.
    is_forward: bool,
}

/// The changes that an endpoint required of a request.
#[derive(Default)]
pub(super) struct RequestRewrite {
    /// The original version of a request that was upgraded to HTTP/2.
    upgraded_from: Option<Version>,
    replaced: Option<Box<ReplacedAuthority>>,
}

/// The values that an authority override has replaced.
struct ReplacedAuthority {
    uri: Uri,
    host: Option<HeaderValue>,
    canonical: Option<HeaderValue>,
}

impl HttpEndpoint {
    /// `authority` is the balancer's.
    pub(super) fn new(
        context: &Rc<ProxyContext>,
        endpoint: &Arc<Endpoint>,
        authority: Option<&str>,
    ) -> Self {
        let is_local = context.is_local(endpoint.addr.ip());
        let tls = dial::client_tls(endpoint, is_local);
        let labels = labels::outbound_endpoint(endpoint, authority, &tls);
        let outbound = &context.config.outbound;
        let http2 = http2_params(outbound.http2_client, endpoint.http2);
        let params = client::ClientConfig::new(&outbound.http1_pool, http2);
        let authority_override = endpoint.authority_override.as_deref().filter(|_| !is_local);
        Self {
            client: Client::new(
                EndpointDial::new(context.clone(), endpoint.clone(), authority),
                &params,
            ),
            metrics: Rc::new(context.families.endpoint.endpoint(labels)),
            peer: endpoint.tls.clone().filter(|_| !is_local),
            upgrades_http1: endpoint.hint == ProtocolHint::Http2 && !is_local,
            authority_override: authority_override
                .and_then(|authority| Authority::try_from(authority).ok()),
            is_forward: authority.is_none(),
        }
    }

    pub(super) fn addr(&self) -> SocketAddr {
        self.client.dial().endpoint().addr
    }

    /// Reports a request of `client` to observers.
    pub(super) fn tap(&self, request: &Request, client: SocketAddr) -> Option<Box<TapRecorder>> {
        self.client.dial().tap(request, client)
    }

    /// Opens the span of an attempt to send a sampled request.
    pub(super) fn open_span(&self, request: &mut Request) -> Option<Box<OpenSpan>> {
        let tracer = self.client.dial().tracer();
        trace::open(tracer, SpanKind::Client, Direction::Outbound, request)
    }

    /// Fails unless the endpoint has the identity that the application requires.
    pub(super) fn check_identity(&self, required: Option<&HeaderValue>) -> Result<(), Error> {
        let Some(required) = required else {
            return Ok(());
        };
        let found = self.peer.as_ref().map(|peer| peer.id.as_str());
        if found.is_some_and(|found| found.as_bytes() == required.as_bytes()) {
            return Ok(());
        }
        Err(Error::new(
            Kind::IdentityRequired,
            format!(
                "required id {}, found {}",
                String::from_utf8_lossy(required.as_bytes()),
                found.unwrap_or("none")
            ),
        ))
    }

    /// Rewrites `request` for this endpoint: authority override and upgrade to HTTP/2.
    pub(super) fn rewrite(&self, request: &mut Request) -> RequestRewrite {
        let replaced = self.authority_override.as_ref().map(|authority| {
            let replaced = ReplacedAuthority {
                uri: request.uri().clone(),
                host: request.headers_mut().remove(HOST),
                canonical: request.headers_mut().remove(DST_CANONICAL),
            };
            uri::set_uri_authority(request.uri_mut(), authority.clone());
            Box::new(replaced)
        });
        let is_upgraded = self.upgrades_http1 && orig_proto::is_upgradable(request);
        RequestRewrite {
            upgraded_from: is_upgraded.then(|| orig_proto::upgrade(request)),
            replaced,
        }
    }

    pub(super) async fn connect(&self, request: &Request) -> Result<Connection, DialError> {
        self.client.connect(request).await
    }

    /// Sends a request on a connection from [`HttpEndpoint::connect`]. Returns the response, and
    /// whether the peer's proxy reports with it that the application did not get the request.
    pub(super) async fn send(
        &self,
        connection: Connection,
        request: &mut Request,
        rewrite: &RequestRewrite,
    ) -> Result<(Response, bool), SendError> {
        let mut response = connection.send(request).await?;
        if let Some(version) = rewrite.upgraded_from {
            orig_proto::downgrade_response(&mut response, version);
        } else {
            orig_proto::strip(response.headers_mut());
        }
        let is_unsent = self.read_peer_headers(&mut response);
        Ok((response, is_unsent))
    }

    /// Removes the peer proxy's headers from the response. Returns whether they report that the
    /// application did not get the request.
    fn read_peer_headers(&self, response: &mut Response) -> bool {
        let headers = response.headers_mut();
        if !headers::has_any(headers, &PEER_HEADERS) {
            return false;
        }
        let is_unsent = unsent::take(headers);
        if self.peer.is_none() {
            return false;
        }
        let addr = self.addr();
        if let Some(error) = headers.remove(PROXY_ERROR) {
            tracing::info!(%addr, error = %text(&error), "Remote proxy error");
        }
        if take_close(headers) && self.is_forward {
            MessageContext::of_mut(response.extensions_mut()).closes_connection = true;
            if response.version() == Version::HTTP_11 {
                let close = HeaderValue::from_static("close");
                response
                    .headers_mut()
                    .insert(http::header::CONNECTION, close);
            }
        }
        is_unsent
    }
}

impl RequestRewrite {
    /// Restores the request as the application sent it, for another endpoint.
    pub(super) fn undo(self, request: &mut Request) {
        if let Some(version) = self.upgraded_from {
            orig_proto::undo_upgrade(request, version);
        }
        let Some(replaced) = self.replaced else {
            return;
        };
        let ReplacedAuthority {
            uri,
            host,
            canonical,
        } = *replaced;
        *request.uri_mut() = uri;
        for (name, value) in [(HOST, host), (DST_CANONICAL, canonical)] {
            if let Some(value) = value {
                request.headers_mut().insert(name, value);
            }
        }
    }
}

/// Removes `l5d-proxy-connection`, and returns whether it requests a close.
fn take_close(headers: &mut HeaderMap) -> bool {
    headers
        .remove(PROXY_CONNECTION)
        .is_some_and(|value| value == "close")
}

fn text(value: &HeaderValue) -> std::borrow::Cow<'_, str> {
    String::from_utf8_lossy(value.as_bytes())
}

/// Returns the proxy's HTTP/2 settings with those that discovery overrides for the endpoint.
fn http2_params(default: Http2Params, endpoint: Option<Http2Params>) -> Http2Params {
    let Some(endpoint) = endpoint else {
        return default;
    };
    Http2Params {
        connection_window: endpoint.connection_window.or(default.connection_window),
        stream_window: endpoint.stream_window.or(default.stream_window),
        adaptive_window: endpoint.adaptive_window || default.adaptive_window,
        keep_alive: endpoint.keep_alive.or(default.keep_alive),
        max_frame_size: endpoint.max_frame_size.or(default.max_frame_size),
        max_send_buf_size: endpoint.max_send_buf_size.or(default.max_send_buf_size),
        max_concurrent_reset_streams: endpoint
            .max_concurrent_reset_streams
            .or(default.max_concurrent_reset_streams),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::Body;

    #[test]
    fn undone_rewrite_restores_request() {
        let original = || {
            http::Request::builder()
                .uri("http://web/a?b")
                .header("host", "web")
                .header("l5d-dst-canonical", "web.ns.svc.cluster.local:80")
                .body(Body::empty())
                .unwrap()
        };
        let mut request = original();
        let replaced = ReplacedAuthority {
            uri: request.uri().clone(),
            host: request.headers_mut().remove(HOST),
            canonical: request.headers_mut().remove(DST_CANONICAL),
        };
        uri::set_uri_authority(request.uri_mut(), Authority::from_static("gateway:80"));
        let rewrite = RequestRewrite {
            upgraded_from: Some(orig_proto::upgrade(&mut request)),
            replaced: Some(Box::new(replaced)),
        };
        assert_eq!(request.uri(), "http://gateway:80/a?b");
        rewrite.undo(&mut request);
        assert_eq!(request.uri(), original().uri());
        assert_eq!(request.version(), original().version());
        assert_eq!(request.headers(), original().headers());
    }
}

//! One endpoint as HTTP sees it: its connections, its metrics, and what a request must look like
//! for it.

use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;

use http::header::HOST;
use http::uri::Authority;
use http::{HeaderMap, HeaderName, HeaderValue, Uri, Version};
use mesh_core::endpoint::{Endpoint as Known, Http2Params, ProtocolHint, TlsPeer};

use crate::error::{DialError, Error, Kind};
use crate::http::client::{self, Client, Connection, SendError};
use crate::http::headers::{DST_CANONICAL, PROXY_CONNECTION, PROXY_ERROR};
use crate::http::respond::CloseConnection;
use crate::http::undelivered::{UNDELIVERED, Undelivered};
use crate::http::{Request, Response, headers, orig_proto, uri};
use crate::outbound::dial::{self, EndpointDial};
use crate::telemetry::http::EndpointHttp;
use crate::telemetry::labels;
use crate::worker::Worker;

/// What the peer's proxy says to this one in a response.
static OF_PEER: [HeaderName; 3] = [UNDELIVERED, PROXY_ERROR, PROXY_CONNECTION];

/// An endpoint of a balancer, or the one of forwarded traffic.
pub(super) struct Endpoint {
    client: Client<EndpointDial>,
    pub(super) metrics: Rc<EndpointHttp>,
    /// Who answers there, when it is a peer of the mesh and not the application beside us.
    peer: Option<TlsPeer>,
    carries_http1: bool,
    authority_override: Option<Authority>,
    /// Traffic is forwarded here because the application named the address; its connection then
    /// shares the fate of the endpoint's.
    is_forward: bool,
}

/// What an endpoint's shape has changed about a request.
#[derive(Default)]
pub(super) struct Shape {
    /// The version of a request that is carried as HTTP/2.
    carried: Option<Version>,
    replaced: Option<Box<Replaced>>,
}

/// What an authority override has taken away.
struct Replaced {
    uri: Uri,
    host: Option<HeaderValue>,
    canonical: Option<HeaderValue>,
}

/// A response of an endpoint.
pub(super) enum Received {
    Response(Response),
    /// The peer's proxy says that the application has given none.
    Undelivered(Response, Undelivered),
}

impl Endpoint {
    /// `authority` is that of the balancer.
    pub(super) fn new(worker: &Rc<Worker>, known: &Arc<Known>, authority: Option<&str>) -> Self {
        let is_local = worker.is_local(known.addr.ip());
        let tls = dial::client_tls(known, is_local);
        let labels = labels::outbound_endpoint(known, authority, &tls);
        let outbound = &worker.config.outbound;
        let http2 = http2_params(outbound.http2_client, known.http2);
        let params = client::Params::new(&outbound.http1_pool, http2);
        let authority_override = known.authority_override.as_deref().filter(|_| !is_local);
        Self {
            client: Client::new(
                EndpointDial::new(worker.clone(), known.clone(), authority),
                &params,
            ),
            metrics: Rc::new(worker.families.endpoint.endpoint(labels)),
            peer: known.tls.clone().filter(|_| !is_local),
            carries_http1: known.hint == ProtocolHint::Http2 && !is_local,
            authority_override: authority_override
                .and_then(|authority| Authority::try_from(authority).ok()),
            is_forward: authority.is_none(),
        }
    }

    pub(super) fn addr(&self) -> SocketAddr {
        self.client.dial().endpoint().addr
    }

    /// Fails unless the endpoint is who the application demands.
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

    /// Brings `request` into the shape that this endpoint takes.
    pub(super) fn shape(&self, request: &mut Request) -> Shape {
        let replaced = self.authority_override.as_ref().map(|authority| {
            let replaced = Replaced {
                uri: request.uri().clone(),
                host: request.headers_mut().remove(HOST),
                canonical: request.headers_mut().remove(DST_CANONICAL),
            };
            uri::set_uri_authority(request.uri_mut(), authority.clone());
            Box::new(replaced)
        });
        let carry = self.carries_http1 && orig_proto::may_upgrade(request);
        Shape {
            carried: carry.then(|| orig_proto::upgrade(request)),
            replaced,
        }
    }

    pub(super) async fn connect(&self, request: &Request) -> Result<Connection, DialError> {
        self.client.connect(request).await
    }

    /// Sends on a connection that [`Endpoint::connect`] made.
    pub(super) async fn send(
        &self,
        connection: Connection,
        request: &mut Request,
        shape: &Shape,
    ) -> Result<Received, SendError> {
        let mut response = connection.send(request).await?;
        if let Some(version) = shape.carried {
            orig_proto::restore(&mut response, version);
        } else {
            orig_proto::strip(response.headers_mut());
        }
        Ok(match self.read_peer_headers(&mut response) {
            Some(undelivered) => Received::Undelivered(response, undelivered),
            None => Received::Response(response),
        })
    }

    /// Takes what the peer's proxy tells us out of the response. Returns how the request failed to
    /// be delivered, if it did.
    fn read_peer_headers(&self, response: &mut Response) -> Option<Undelivered> {
        let headers = response.headers_mut();
        if !headers::has_any(headers, &OF_PEER) {
            return None;
        }
        let undelivered = Undelivered::take(headers);
        self.peer.as_ref()?;
        let addr = self.addr();
        if let Some(error) = headers.remove(PROXY_ERROR) {
            tracing::info!(%addr, error = %text(&error), "Remote proxy error");
        }
        if closes(headers) && self.is_forward {
            response.extensions_mut().insert(CloseConnection);
            if response.version() == Version::HTTP_11 {
                let close = HeaderValue::from_static("close");
                response
                    .headers_mut()
                    .insert(http::header::CONNECTION, close);
            }
        }
        undelivered
    }
}

impl Shape {
    /// Takes it back, so that another endpoint finds the request as the application sent it.
    pub(super) fn undo(self, request: &mut Request) {
        if let Some(version) = self.carried {
            orig_proto::undo(request, version);
        }
        let Some(replaced) = self.replaced else {
            return;
        };
        let Replaced {
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

fn closes(headers: &mut HeaderMap) -> bool {
    headers
        .remove(PROXY_CONNECTION)
        .is_some_and(|value| value == "close")
}

fn text(value: &HeaderValue) -> std::borrow::Cow<'_, str> {
    String::from_utf8_lossy(value.as_bytes())
}

/// The proxy's settings, except where discovery says otherwise of the endpoint.
fn http2_params(ours: Http2Params, endpoint: Option<Http2Params>) -> Http2Params {
    let Some(endpoint) = endpoint else {
        return ours;
    };
    Http2Params {
        connection_window: endpoint.connection_window.or(ours.connection_window),
        stream_window: endpoint.stream_window.or(ours.stream_window),
        adaptive_window: endpoint.adaptive_window || ours.adaptive_window,
        keep_alive: endpoint.keep_alive.or(ours.keep_alive),
        max_frame_size: endpoint.max_frame_size.or(ours.max_frame_size),
        max_send_buf_size: endpoint.max_send_buf_size.or(ours.max_send_buf_size),
        max_concurrent_reset_streams: endpoint
            .max_concurrent_reset_streams
            .or(ours.max_concurrent_reset_streams),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::Body;

    #[test]
    fn a_shape_can_be_taken_back() {
        let original = || {
            http::Request::builder()
                .uri("http://web/a?b")
                .header("host", "web")
                .header("l5d-dst-canonical", "web.ns.svc.cluster.local:80")
                .body(Body::empty())
                .unwrap()
        };
        let mut request = original();
        let replaced = Replaced {
            uri: request.uri().clone(),
            host: request.headers_mut().remove(HOST),
            canonical: request.headers_mut().remove(DST_CANONICAL),
        };
        uri::set_uri_authority(request.uri_mut(), Authority::from_static("gateway:80"));
        let shape = Shape {
            carried: Some(orig_proto::upgrade(&mut request)),
            replaced: Some(Box::new(replaced)),
        };
        assert_eq!(request.uri(), "http://gateway:80/a?b");
        shape.undo(&mut request);
        assert_eq!(request.uri(), original().uri());
        assert_eq!(request.version(), original().version());
        assert_eq!(request.headers(), original().headers());
    }
}

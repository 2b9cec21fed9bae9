//! Connects to one endpoint: TCP, mutual TLS if discovery provides an identity, and the transport
//! header if the peer supports it.
//!
//! Called by HTTP clients and by the opaque path. TLS is never optional: an endpoint with an
//! identity must authenticate as that identity, or the connection fails.

use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;

use mesh_core::endpoint::{Endpoint, ProtocolHint, TlsPeer};
use mesh_core::tap::{TapContext, TapDirection};

use crate::context::ProxyContext;
use crate::error::DialError;
use crate::http::client::Dial;
use crate::http::{Protocol, Request};
use crate::tap::TapRecorder;
use crate::telemetry::labels::{self, ClientTls, NoClientTls, NoServerTls, ServerTls};
use crate::telemetry::tcp::TransportMetrics;
use crate::tls::{self, Purpose};
use crate::trace::Tracer;
use crate::transport::Io;
use crate::transport::connect::{self, ConnectError, ConnectOptions};
use crate::transport::header::{self, SessionProtocol, TransportHeader};

/// Connects to one endpoint from one data thread.
#[derive(Debug)]
pub(crate) struct EndpointDial {
    context: Rc<ProxyContext>,
    endpoint: Arc<Endpoint>,
    plan: DialPlan,
    transport: Arc<TransportMetrics>,
}

/// How an endpoint is connected to; see [`plan`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DialPlan {
    /// The address that TCP connects to.
    pub(crate) addr: SocketAddr,
    pub(crate) tls: Option<TlsPeer>,
    /// Sent if the peer's proxy negotiates transport headers. The session is set for each
    /// connection.
    pub(crate) header: Option<TransportHeader>,
}

/// Decides how an endpoint is connected to.
///
/// An endpoint at one of the pod's own addresses is the pod's application: no TLS, no header.
/// Otherwise an identity requires TLS, and a peer that supports the transport header is connected
/// to at its proxy's port.
pub(crate) fn plan(endpoint: &Endpoint, is_local: bool) -> DialPlan {
    let plain = DialPlan {
        addr: endpoint.addr,
        tls: None,
        header: None,
    };
    let Some(tls) = endpoint.tls.clone().filter(|_| !is_local) else {
        return plain;
    };
    let (port, name) = match endpoint
        .authority_override
        .as_deref()
        .and_then(split_authority)
    {
        Some((host, port)) => (port, Some(host.into())),
        None => (endpoint.addr.port(), None),
    };
    let wants_header = endpoint.opaque_transport_port.is_some() || name.is_some();
    let dialled_port = endpoint
        .opaque_transport_port
        .unwrap_or(endpoint.addr.port());
    DialPlan {
        addr: SocketAddr::new(endpoint.addr.ip(), dialled_port),
        tls: Some(tls),
        header: wants_header.then_some(TransportHeader {
            port,
            name,
            session: SessionProtocol::Opaque,
        }),
    }
}

/// Returns the TLS of an endpoint's connections, for metric labels.
pub(crate) fn client_tls(endpoint: &Endpoint, is_local: bool) -> ClientTls {
    match &endpoint.tls {
        _ if is_local => ClientTls::None(NoClientTls::Loopback),
        Some(peer) => ClientTls::Established {
            server: peer.id.clone(),
        },
        None => ClientTls::None(NoClientTls::NotProvidedByServiceDiscovery),
    }
}

fn split_authority(authority: &str) -> Option<(&str, u16)> {
    let (host, port) = authority.rsplit_once(':')?;
    Some((host, port.parse().ok()?))
}

impl EndpointDial {
    /// `authority` is the balancer's, and `None` for traffic that is forwarded to a fixed address.
    pub(crate) fn new(
        context: Rc<ProxyContext>,
        endpoint: Arc<Endpoint>,
        authority: Option<&str>,
    ) -> Self {
        let is_local = context.is_local(endpoint.addr.ip());
        let tls = client_tls(&endpoint, is_local);
        let labels = labels::outbound_connect(&endpoint, authority, &tls);
        Self {
            transport: context.families.tcp.transport(labels),
            plan: plan(&endpoint, is_local),
            endpoint,
            context,
        }
    }

    pub(crate) fn endpoint(&self) -> &Arc<Endpoint> {
        &self.endpoint
    }

    /// Reports a request of `client` to observers.
    pub(crate) fn tap(&self, request: &Request, client: SocketAddr) -> Option<Box<TapRecorder>> {
        let Self {
            context, endpoint, ..
        } = self;
        if !context.shared.tap.is_active() {
            return None;
        }
        let tls = client_tls(endpoint, context.is_local(endpoint.addr.ip()));
        context.shared.tap.record(
            request,
            TapContext {
                direction: TapDirection::Outbound,
                source: client,
                source_labels: labels::tap_server_tls(&ServerTls::None(NoServerTls::Loopback)),
                destination: endpoint.addr,
                destination_labels: labels::tap_endpoint(endpoint, &tls),
                route_labels: mesh_core::labels::Labels::default(),
            },
        )
    }

    pub(crate) fn tracer(&self) -> Option<&Tracer> {
        self.context.shared.tracer.as_ref()
    }

    /// Opens a connection for `session`.
    pub(crate) async fn connect(&self, session: SessionProtocol) -> Result<Io, DialError> {
        let outbound = &self.context.config.outbound;
        let limit = outbound.connect_timeout;
        let options = ConnectOptions {
            timeout: limit,
            socket: outbound.connect,
        };
        let io = tokio::time::timeout(limit, self.establish(session, &options))
            .await
            .map_err(|_elapsed| ConnectError::TimedOut {
                addr: self.plan.addr,
                limit,
            })??;
        Ok(io.measured(self.transport.open()))
    }

    async fn establish(
        &self,
        session: SessionProtocol,
        options: &ConnectOptions,
    ) -> Result<Io, DialError> {
        let addr = self.plan.addr;
        refuse_loopback(addr)?;
        let tcp = connect::dial(addr, options).await?;
        let Some(peer) = &self.plan.tls else {
            return Ok(tcp);
        };
        let credentials = self.context.credentials().ok_or(DialError::NoCertificate)?;
        let wants_header = self.plan.header.is_some();
        let (mut io, negotiated) =
            tls::client::connect(tcp, &credentials, peer, wants_header, Purpose::Traffic)
                .await
                .map_err(|error| DialError::Tls {
                    addr,
                    message: error.to_string().into(),
                })?;
        if let Some(header) = self.plan.header.as_ref().filter(|_| negotiated) {
            let header = TransportHeader {
                session: self.session(session),
                ..header.clone()
            };
            header::write(&mut io, &header)
                .await
                .map_err(|source| DialError::Header {
                    addr,
                    source: Arc::new(source),
                })?;
        }
        Ok(io)
    }

    /// Returns the session to announce: a port that is opaque to the peer's proxy must not be
    /// announced as HTTP.
    fn session(&self, session: SessionProtocol) -> SessionProtocol {
        match self.endpoint.hint {
            ProtocolHint::Opaque => SessionProtocol::Opaque,
            ProtocolHint::Http2 | ProtocolHint::Unknown => session,
        }
    }
}

impl Dial for EndpointDial {
    async fn dial(&self, protocol: Protocol) -> Result<Io, DialError> {
        self.connect(match protocol {
            Protocol::Http1 => SessionProtocol::Http1,
            Protocol::Http2 => SessionProtocol::Http2,
        })
        .await
    }
}

/// Refuses loopback addresses as endpoints: they would reach the proxy's own pod. The kernel treats
/// the unspecified address as loopback.
fn refuse_loopback(addr: SocketAddr) -> Result<(), ConnectError> {
    let ip = addr.ip().to_canonical();
    if ip.is_loopback() || ip.is_unspecified() {
        return Err(ConnectError::Io {
            addr,
            source: io::ErrorKind::ConnectionRefused.into(),
        });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use mesh_core::identity::Identity;

    fn endpoint(tls: bool, opaque_transport_port: Option<u16>) -> Endpoint {
        Endpoint {
            addr: "10.0.0.9:8080".parse().unwrap(),
            weight: 10_000,
            labels: Default::default(),
            tls: tls.then(|| TlsPeer {
                id: Identity::parse("a.b").unwrap(),
                server_name: "a.b".into(),
            }),
            hint: ProtocolHint::Unknown,
            opaque_transport_port,
            authority_override: None,
            http2: None,
        }
    }

    #[test]
    fn loopback_endpoints_are_refused() {
        for loopback in [
            "127.0.0.1:80",
            "127.8.0.1:80",
            "[::1]:80",
            "[::ffff:127.0.0.1]:80",
            "0.0.0.0:80",
            "[::]:80",
            "[::ffff:0.0.0.0]:80",
        ] {
            assert!(
                refuse_loopback(loopback.parse().unwrap()).is_err(),
                "{loopback}"
            );
        }
        for other in ["10.0.0.1:80", "[fd00::1]:80"] {
            assert!(refuse_loopback(other.parse().unwrap()).is_ok(), "{other}");
        }
    }

    fn summary(plan: &DialPlan) -> (String, bool, Option<(u16, Option<&str>)>) {
        let header = plan.header.as_ref().map(|h| (h.port, h.name.as_deref()));
        (plan.addr.to_string(), plan.tls.is_some(), header)
    }

    #[test]
    fn dial_plan_follows_identity_and_transport_port() {
        let check = |endpoint: &Endpoint, local, addr: &str, tls, header| {
            let plan = plan(endpoint, local);
            assert_eq!(summary(&plan), (addr.to_owned(), tls, header));
        };
        check(&endpoint(false, None), false, "10.0.0.9:8080", false, None);
        // Without an identity there is no TLS, which the header requires.
        check(
            &endpoint(false, Some(4143)),
            false,
            "10.0.0.9:8080",
            false,
            None,
        );
        check(&endpoint(true, None), false, "10.0.0.9:8080", true, None);
        check(
            &endpoint(true, Some(4143)),
            false,
            "10.0.0.9:4143",
            true,
            Some((8080, None)),
        );
        check(
            &endpoint(true, Some(4143)),
            true,
            "10.0.0.9:8080",
            false,
            None,
        );
        let mut gateway = endpoint(true, Some(4143));
        gateway.authority_override = Some("web.ns.svc.cluster.local:80".into());
        let name = Some((80, Some("web.ns.svc.cluster.local")));
        check(&gateway, false, "10.0.0.9:4143", true, name);
    }
}

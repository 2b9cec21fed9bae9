//! [`place`]: a client and a server with and without proxies.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use mesh_api::outbound::ExtendedPolicy;
use mesh_core::endpoint::{Endpoint, ProtocolHint, TlsPeer};
use mesh_core::identity::Identity;
use mesh_core::meta::Meta;
use mesh_core::policy::outbound::{BackendTarget, OutboundPolicy, OutboundProtocol};
use mesh_core::profile::Profile;
use mesh_core::resilience::HttpRetry;
use mesh_simnet::Network;

use super::answers::{Answers, DETECT_TIMEOUT, allow_all, deny_all};
use super::mesh::{Mesh, Pod, SetUpError};
use super::proxy::Proxy;

/// Which of client and server are in the mesh.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Position {
    /// None.
    Direct,
    /// The client.
    Outbound,
    /// The server.
    Inbound,
    Both,
}

/// How a mesh treats the connections of its pods.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// Environment variables of the client's proxy, with their full names.
    pub client: Vec<(String, String)>,
    /// The same of the server's proxy.
    pub server: Vec<(String, String)>,
    /// Whether the protocol of the server's port is not detected.
    pub is_opaque: bool,
}

/// A client and a server in a world.
pub struct Placement {
    /// What the control plane answers.
    pub answers: Answers,
    /// The proxy of the client, if it is in the mesh.
    pub client: Option<Proxy>,
    /// The proxy of the server, if it is in the mesh.
    pub server: Option<Proxy>,
    /// `None` without proxies.
    mesh: Option<Mesh>,
    addr: SocketAddr,
    endpoint: Endpoint,
    is_opaque: bool,
}

mesh_core::names! {
    /// A change of what the control plane says about the server, while the mesh runs.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Change, ALL {
        /// The server's port allows no client.
        Deny = "mesh-denies",
        /// Requests are retried up to twice when their status is 5xx.
        Retry = "mesh-retries",
        /// The server's address leads to [`MOVED_SERVER`].
        Move = "mesh-moves",
    }
}

impl Change {
    /// Whether a proxy that acts on it is there.
    pub fn has_effect(self, position: Position) -> bool {
        match self {
            Self::Deny => position.has_server_proxy(),
            Self::Retry | Self::Move => position.has_client_proxy(),
        }
    }
}

/// Where the server is after [`Change::Move`], outside the mesh.
pub const MOVED_SERVER: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 3);
/// After this time all proxies have received a change, also on a network with small buffers and
/// long delays, where a handshake with the control plane takes ten seconds.
pub const CHANGE_TIME: Duration = Duration::from_secs(30);

/// Retries of [`Change::Retry`].
const MAX_RETRIES: u16 = 2;
const MAX_REPLAY: usize = 64 * 1024;

/// The host of the control plane.
pub const CONTROL_PLANE: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 254);

/// The identity of the client's proxy.
pub const CLIENT_ID: &str = "client.shop.serviceaccount.identity.linkerd.cluster.local";
const SERVER_ID: &str = "server.shop.serviceaccount.identity.linkerd.cluster.local";

/// Longer than the time limits of the proxy on what remains of a connection.
const GRACE: Duration = Duration::from_secs(60);

impl Position {
    /// All, the one without the mesh first.
    pub const ALL: [Self; 4] = [Self::Direct, Self::Outbound, Self::Inbound, Self::Both];

    /// Whether the client has a proxy.
    pub fn has_client_proxy(self) -> bool {
        matches!(self, Self::Outbound | Self::Both)
    }

    /// Whether the server has a proxy.
    pub fn has_server_proxy(self) -> bool {
        matches!(self, Self::Inbound | Self::Both)
    }
}

/// Starts the control plane and the proxies of a position, for one client and the address of one
/// server. The applications of both then use the network as they would without a mesh.
///
/// # Errors
///
/// A variable of `settings` is invalid.
pub fn place(
    network: &Network,
    client: IpAddr,
    server: SocketAddr,
    position: Position,
    settings: &Settings,
) -> Result<Placement, SetUpError> {
    let answers = Answers::new();
    let mut placement = Placement {
        client: None,
        server: None,
        mesh: None,
        answers: answers.clone(),
        addr: server,
        endpoint: Endpoint::plain(server),
        is_opaque: settings.is_opaque,
    };
    if position == Position::Direct {
        return Ok(placement);
    }
    answers.set_inbound(server.port(), allow_all(settings.is_opaque));
    let mesh = Mesh::start(network, CONTROL_PLANE.into(), &answers)?;
    if position.has_server_proxy() {
        let proxy = mesh.proxy(&Pod {
            ip: server.ip(),
            identity: SERVER_ID.to_owned(),
            variables: settings.server.clone(),
        })?;
        placement.endpoint = meshed(server, &proxy, settings.is_opaque)?;
        placement.server = Some(proxy);
    }
    let profile = profile(placement.endpoint.clone(), settings.is_opaque);
    answers.set_profile(server, &profile);
    if position.has_client_proxy() {
        placement.client = Some(mesh.proxy(&Pod {
            ip: client,
            identity: CLIENT_ID.to_owned(),
            variables: settings.client.clone(),
        })?);
    }
    placement.mesh = Some(mesh);
    Ok(placement)
}

impl Placement {
    /// Returns a function that makes changes.
    pub fn changes(&self) -> impl Fn(Change) + 'static {
        let Self {
            answers,
            addr,
            endpoint,
            is_opaque,
            ..
        } = self;
        let (answers, addr, is_opaque) = (answers.clone(), *addr, *is_opaque);
        let endpoint = endpoint.clone();
        move |change| match change {
            Change::Deny => answers.set_inbound(addr.port(), deny_all(is_opaque)),
            Change::Retry => answers.set_outbound(addr, retrying(endpoint.clone())),
            Change::Move => {
                let moved = SocketAddr::new(MOVED_SERVER.into(), addr.port());
                answers.set_profile(addr, &profile(Endpoint::plain(moved), is_opaque));
            }
        }
    }

    /// Ends the proxies as SIGTERM does, the client's first, and then the control plane. When the
    /// applications have closed their connections, none remains on the network. Returns what the
    /// proxies still hold.
    pub async fn stop(self) -> Vec<String> {
        let Self {
            client,
            server,
            mesh,
            ..
        } = self;
        let proxies = [("client", client), ("server", server)];
        let mut held = Vec::new();
        for (name, proxy) in proxies {
            if let Some(proxy) = proxy {
                let rest = proxy.drain(GRACE).await;
                held.extend(rest.iter().map(|it| format!("{it}, in the {name}'s proxy")));
            }
        }
        drop(mesh);
        held
    }
}

/// The endpoint of a pod with a proxy, as the destination service describes it.
fn meshed(addr: SocketAddr, proxy: &Proxy, is_opaque: bool) -> Result<Endpoint, SetUpError> {
    let id = Identity::parse(SERVER_ID);
    let id = id.map_err(|_invalid| SetUpError::Identity(SERVER_ID.to_owned()))?;
    Ok(Endpoint {
        tls: Some(TlsPeer {
            id,
            server_name: SERVER_ID.into(),
        }),
        hint: if is_opaque {
            ProtocolHint::Opaque
        } else {
            ProtocolHint::Http2
        },
        opaque_transport_port: Some(proxy.inbound().port()),
        ..Endpoint::plain(addr)
    })
}

/// A policy that sends everything to an endpoint, and retries requests of HTTP.
fn retrying(endpoint: Endpoint) -> ExtendedPolicy {
    let target = BackendTarget::Forward(Box::new(endpoint));
    let meta = Meta::new_default("retrying");
    let mut policy = OutboundPolicy::forwarding(&meta, target, DETECT_TIMEOUT);
    if let OutboundProtocol::Detect { http1, http2, .. } = &mut policy.protocol {
        let routes = http1.routes.iter_mut().chain(&mut http2.routes);
        for rule in routes.flat_map(|route| &mut route.rules) {
            rule.action.retry = Some(HttpRetry {
                max_retries: MAX_RETRIES,
                max_request_bytes: MAX_REPLAY,
                conditions: vec![500..=599],
                ..HttpRetry::default()
            });
        }
    }
    mesh_api::outbound::extended_to_proto(&policy)
}

fn profile(endpoint: Endpoint, is_opaque: bool) -> Profile {
    Profile {
        endpoint: Some(endpoint),
        opaque: is_opaque,
        ..Profile::default()
    }
}

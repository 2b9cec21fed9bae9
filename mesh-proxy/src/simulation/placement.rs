//! [`place`]: a client and a server with and without proxies.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::rc::Rc;
use std::time::Duration;

use mesh_core::endpoint::{Endpoint, ProtocolHint, TlsPeer};
use mesh_core::profile::Profile;
use mesh_simnet::Network;

use super::answers::{Answers, deny_all};
use super::features::{self, BALANCED, Feature};
use super::mesh::{Mesh, Pod, SetUpError, identity};
use super::position::Position;
use super::proxy::Proxy;

/// How a mesh treats the connections of its pods.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// Environment variables of the client's proxy, with their full names.
    pub client: Vec<(String, String)>,
    /// The same of the server's proxy.
    pub server: Vec<(String, String)>,
    /// Whether the protocol of the server's port is not detected.
    pub is_opaque: bool,
    /// What the mesh does beside forwarding.
    pub features: Vec<Feature>,
}

/// A client and a server in a world.
pub struct Placement {
    /// What the control plane answers.
    pub answers: Answers,
    /// The proxy of the client, if it is in the mesh.
    pub client: Option<Rc<Proxy>>,
    /// The proxy of the server, if it is in the mesh.
    pub server: Option<Rc<Proxy>>,
    /// `None` without proxies.
    mesh: Option<Rc<Mesh>>,
    server_address: ServerAddress,
}

/// What the control plane says about the server's address.
#[derive(Clone)]
struct ServerAddress {
    answers: Answers,
    addr: SocketAddr,
    endpoint: Endpoint,
    is_opaque: bool,
    features: Vec<Feature>,
}

mesh_core::names! {
    /// A change of the mesh while it runs: of what the control plane says about the server, or of
    /// the proxies.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Change, ALL {
        /// The server's port allows no client.
        Deny = "mesh-denies",
        /// Requests are retried up to twice when their status is 5xx.
        Retry = "mesh-retries",
        /// The server's address leads to [`MOVED_SERVER`].
        Move = "mesh-moves",
        /// The proxies end as by SIGTERM, as when both pods are deleted.
        Drain = "mesh-drains",
    }
}

impl Change {
    /// Whether a proxy that acts on it is there.
    pub fn has_effect(self, position: Position) -> bool {
        match self {
            Self::Deny => position.has_server_proxy(),
            Self::Retry | Self::Move => position.has_client_proxy(),
            Self::Drain => position != Position::Direct,
        }
    }
}

/// Where the server is after [`Change::Move`], outside the mesh.
pub const MOVED_SERVER: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 3);
/// After this time all proxies have received a change, also on a network with small buffers and
/// long delays, where a handshake with the control plane takes ten seconds.
pub const CHANGE_TIME: Duration = Duration::from_secs(30);

/// The host of the control plane.
pub const CONTROL_PLANE: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 254);

/// The identity of the client's proxy.
pub const CLIENT_ID: &str = "client.shop.serviceaccount.identity.linkerd.cluster.local";
const SERVER_ID: &str = "server.shop.serviceaccount.identity.linkerd.cluster.local";

/// Longer than the time limits of the proxy on what remains of a connection.
const GRACE: Duration = Duration::from_secs(60);

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
        server_address: ServerAddress {
            answers: answers.clone(),
            addr: server,
            endpoint: Endpoint::plain(server),
            is_opaque: settings.is_opaque,
            features: settings.features.clone(),
        },
    };
    if position == Position::Direct {
        return Ok(placement);
    }
    let client_id = identity(CLIENT_ID)?;
    let client_id = position.has_client_proxy().then_some(&client_id);
    let policy = features::inbound(client_id, client, settings.is_opaque, &settings.features);
    answers.set_inbound(server.port(), policy);
    let mesh = Mesh::start(network, CONTROL_PLANE.into(), &answers)?;
    let variables = |own: &[(String, String)]| {
        let of_features = features::variables(&settings.features);
        of_features.chain(own.iter().cloned()).collect()
    };
    let observes = settings.features.contains(&Feature::Tap);
    let proxy = |ip: IpAddr, identity: &str, own: &[(String, String)]| {
        let proxy = mesh.proxy(&Pod {
            ip,
            identity: identity.to_owned(),
            variables: variables(own),
        })?;
        if observes {
            proxy.observe();
        }
        Ok::<_, SetUpError>(proxy)
    };
    if position.has_server_proxy() {
        let proxy = proxy(server.ip(), SERVER_ID, &settings.server)?;
        placement.server_address.endpoint = meshed(server, &proxy, settings.is_opaque)?;
        placement.server = Some(proxy);
    }
    placement.server_address.publish();
    if position.has_client_proxy() {
        placement.client = Some(proxy(client, CLIENT_ID, &settings.client)?);
    }
    placement.mesh = Some(Rc::new(mesh));
    Ok(placement)
}

impl ServerAddress {
    /// Tells the proxies of clients where the address leads to.
    fn publish(&self) {
        let Self { answers, addr, .. } = self;
        let profile = Profile {
            endpoint: Some(self.endpoint.clone()),
            opaque: self.is_opaque,
            ..Profile::default()
        };
        answers.set_endpoints(BALANCED, vec![self.endpoint.clone()]);
        answers.set_profile(addr, &profile);
        if let Some(policy) = features::outbound(&self.endpoint, &self.features) {
            answers.set_outbound(addr, policy);
        }
    }
}

impl Placement {
    /// Returns a function that makes changes.
    pub fn changes(&self) -> impl FnMut(Change) + 'static {
        let mut server = self.server_address.clone();
        let mesh = self.mesh.clone();
        move |change| match change {
            Change::Deny => {
                let policy = deny_all(server.is_opaque);
                server.answers.set_inbound(server.addr.port(), policy);
            }
            Change::Retry => {
                if !server.features.contains(&Feature::Retries) {
                    server.features.push(Feature::Retries);
                }
                server.publish();
            }
            Change::Move => {
                let moved = SocketAddr::new(MOVED_SERVER.into(), server.addr.port());
                server.endpoint = Endpoint::plain(moved);
                server.publish();
            }
            Change::Drain => {
                if let Some(mesh) = &mesh {
                    mesh.drain_proxies();
                }
            }
        }
    }

    /// The mesh; `None` without proxies.
    pub fn mesh(&self) -> Option<Rc<Mesh>> {
        self.mesh.clone()
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
    Ok(Endpoint {
        tls: Some(TlsPeer {
            id: identity(SERVER_ID)?,
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

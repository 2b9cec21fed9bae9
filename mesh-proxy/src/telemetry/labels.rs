//! Builds the label sets, each in the order in which Linkerd's proxy prints it. Pure; called when
//! handles are resolved, by the rest of `telemetry`.
//!
//! Values that a client chooses are marked ([`Labels::push_outside`]): server names, authorities,
//! and ports that no container declares. Identities are not, as it takes a certificate of the mesh
//! to have one, nor is what the control plane says.

use std::net::{Ipv6Addr, SocketAddr};
use std::sync::Arc;

use mesh_core::endpoint::Endpoint;
use mesh_core::identity::Identity;
use mesh_core::meta::Meta;
use mesh_core::ports::PortSet;
use mesh_runtime::metrics::{Labels, OTHER};

use crate::transport::detect::{MAX_NAME, is_host_name};

/// Which way the traffic goes, seen from the application.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    Inbound,
    Outbound,
}

/// Where an inbound connection goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target {
    addr: SocketAddr,
    /// A client may dial any port of a pod, whether anything listens there or not.
    is_declared: bool,
}

/// TLS of a connection that we accepted.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum ServerTls {
    /// Ended here, with the client's identity if it showed a certificate.
    Established {
        client: Option<Identity>,
    },
    /// Somebody else's TLS, passed on.
    Opaque {
        sni: Option<Arc<str>>,
    },
    None(NoServerTls),
}

/// Why an accepted connection has no TLS.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NoServerTls {
    NoTlsFromRemote,
    /// Opaque port: nobody looked.
    PortSkipped,
    Loopback,
}

/// TLS of a connection that we opened.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum ClientTls {
    Established { server: Identity },
    None(NoClientTls),
}

/// Why an opened connection has no TLS.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NoClientTls {
    NotProvidedByServiceDiscovery,
    Loopback,
}

impl Target {
    /// `declared` are the ports that the pod's containers name.
    pub fn new(addr: SocketAddr, declared: &PortSet) -> Self {
        Self {
            addr,
            is_declared: declared.contains(addr.port()),
        }
    }

    pub fn port(self) -> u16 {
        self.addr.port()
    }

    fn push(self, labels: &mut Labels, name: &'static str, value: String) {
        match self.is_declared {
            true => labels.push(name, value),
            false => labels.push_outside(name, value),
        }
    }

    fn push_port(self, labels: &mut Labels, name: &'static str) {
        self.push(labels, name, self.addr.port().to_string());
    }
}

/// For addresses that no client from outside has chosen.
impl From<SocketAddr> for Target {
    fn from(addr: SocketAddr) -> Self {
        Self {
            addr,
            is_declared: true,
        }
    }
}

impl Direction {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Inbound => "inbound",
            Self::Outbound => "outbound",
        }
    }
}

impl NoServerTls {
    fn as_str(self) -> &'static str {
        match self {
            Self::NoTlsFromRemote => "no_tls_from_remote",
            Self::PortSkipped => "port_skipped",
            Self::Loopback => "loopback",
        }
    }
}

impl NoClientTls {
    fn as_str(self) -> &'static str {
        match self {
            Self::NotProvidedByServiceDiscovery => "not_provided_by_service_discovery",
            Self::Loopback => "loopback",
        }
    }
}

/// The series of an accepted inbound connection.
pub fn inbound_accept(target: Target, tls: &ServerTls, server: &Meta) -> Labels {
    let mut labels = transport(Direction::Inbound, "src");
    push_target(&mut labels, target);
    push_server_tls(&mut labels, tls);
    push_server(&mut labels, server, target);
    labels
}

/// The series of every connection to the application: Linkerd prints no target there.
pub fn inbound_connect() -> Labels {
    transport(Direction::Inbound, "dst")
        .with("tls", "no_identity")
        .with("no_tls_reason", NoServerTls::Loopback.as_str())
}

/// The series of a connection accepted from the application.
pub fn outbound_accept(target: SocketAddr) -> Labels {
    let mut labels = transport(Direction::Outbound, "src");
    push_target(&mut labels, target.into());
    push_server_tls(&mut labels, &ServerTls::None(NoServerTls::Loopback));
    labels
}

/// The series of connections to one endpoint. `authority` is that of the balancer, absent when the
/// traffic is forwarded to a fixed address.
pub fn outbound_connect(endpoint: &Endpoint, authority: Option<&str>, tls: &ClientTls) -> Labels {
    let mut labels = transport(Direction::Outbound, "dst");
    push_outbound_endpoint(&mut labels, endpoint, authority, tls);
    labels
}

/// The series of the requests to one endpoint.
pub fn outbound_endpoint(endpoint: &Endpoint, authority: Option<&str>, tls: &ClientTls) -> Labels {
    let mut labels = Labels::new().with("direction", Direction::Outbound.as_str());
    push_outbound_endpoint(&mut labels, endpoint, authority, tls);
    labels
}

/// The series of the proxy's own calls to a control-plane service.
pub fn control(addr: &str, tls: &ClientTls) -> Labels {
    let mut labels = Labels::new().with("addr", addr);
    push_client_tls(&mut labels, tls);
    labels
}

/// What an inbound request was judged by.
#[derive(Clone, Copy, Debug)]
pub struct Permit<'a> {
    pub server: &'a Meta,
    pub route: &'a Meta,
    pub authz: &'a Meta,
}

/// The series of the requests that the application received. `authority` only where the
/// configuration asks for that label.
pub fn inbound_endpoint(
    target: Target,
    authority: Option<&str>,
    tls: &ServerTls,
    permit: Permit<'_>,
) -> Labels {
    let mut labels = Labels::new().with("direction", Direction::Inbound.as_str());
    if let Some(authority) = authority {
        labels.push_outside("authority", authority);
    }
    push_target(&mut labels, target);
    push_server_tls(&mut labels, tls);
    push_server(&mut labels, permit.server, target);
    push_route(&mut labels, permit.route);
    push_authz(&mut labels, permit.authz);
    labels
}

/// The series of a judgement of an inbound request or connection; what does not apply is absent.
pub fn inbound_verdict(
    target: Target,
    tls: &ServerTls,
    server: &Meta,
    route: Option<&Meta>,
    authz: Option<&Meta>,
) -> Labels {
    let mut labels = Labels::new();
    push_target(&mut labels, target);
    push_server(&mut labels, server, target);
    if let Some(route) = route {
        push_route(&mut labels, route);
    }
    if let Some(authz) = authz {
        push_authz(&mut labels, authz);
    }
    push_server_tls(&mut labels, tls);
    labels
}

/// The series of the newer inbound families: the parent is the Server.
pub fn inbound_route(server: &Meta, target: Target, route: &Meta) -> Labels {
    let mut labels = Labels::new()
        .with("parent_group", server.group())
        .with("parent_kind", server.kind())
        .with("parent_name", server.name());
    target.push_port(&mut labels, "parent_port");
    labels
        .with("route_group", route.group())
        .with("route_kind", route.kind())
        .with("route_name", route.name())
}

/// `srv_*` alone, as the families of protocol detection have them.
pub fn server(server: &Meta, target: Target) -> Labels {
    let mut labels = Labels::new();
    push_server(&mut labels, server, target);
    labels
}

/// `parent_*` of an outbound policy.
pub fn parent(parent: &Meta) -> Labels {
    let mut labels = Labels::new();
    push_object(&mut labels, &PARENT, parent);
    labels
}

/// The series of a route of an outbound policy. `hostname` is printed even when empty.
pub fn outbound_route(parent: &Meta, route: &Meta, hostname: &str) -> Labels {
    let mut labels = self::parent(parent);
    push_outbound_route(&mut labels, route);
    labels.with("hostname", hostname)
}

/// The series of a backend of a route.
pub fn outbound_backend(parent: &Meta, route: &Meta, backend: &Meta) -> Labels {
    let mut labels = self::parent(parent);
    push_outbound_route(&mut labels, route);
    push_object(&mut labels, &BACKEND, backend);
    labels
}

/// The series of a balancer.
pub fn balancer(parent: &Meta, backend: &Meta) -> Labels {
    let mut labels = self::parent(parent);
    push_object(&mut labels, &BACKEND, backend);
    labels
}

/// The series of an opaque route; `target` is the fixed address of forwarded traffic.
pub fn tcp_route(parent: &Meta, route: &Meta, target: Option<SocketAddr>) -> Labels {
    let mut labels = self::parent(parent);
    push_outbound_route(&mut labels, route);
    labels
        .with(
            "target_ip",
            target.map_or(String::new(), |t| t.ip().to_string()),
        )
        .with(
            "target_port",
            target.map_or(String::new(), |t| t.port().to_string()),
        )
}

/// Adds `target_*`, as the error families have it.
pub fn push_target(labels: &mut Labels, target: Target) {
    target.push(labels, "target_addr", target.addr.to_string());
    target.push(labels, "target_ip", target.addr.ip().to_string());
    target.push_port(labels, "target_port");
}

pub fn push_server(labels: &mut Labels, server: &Meta, target: Target) {
    labels.push("srv_group", server.group());
    labels.push("srv_kind", server.kind());
    labels.push("srv_name", server.name());
    target.push_port(labels, "srv_port");
}

pub fn push_route(labels: &mut Labels, route: &Meta) {
    labels.push("route_group", route.group());
    labels.push("route_kind", route.kind());
    labels.push("route_name", route.name());
}

/// What a client's `authority` is called in a label: itself, unless it is longer than a host name
/// and a port can be, or the host is neither a name nor an address.
pub fn authority_value(authority: &str) -> &str {
    const LONGEST: usize = MAX_NAME + ":65535".len();
    let host = match authority.rsplit_once(':') {
        Some((host, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => host,
        _ => authority,
    };
    let is_address = || {
        let inner = host
            .strip_prefix('[')
            .and_then(|host| host.strip_suffix(']'));
        inner.is_some_and(|inner| inner.parse::<Ipv6Addr>().is_ok())
    };
    match authority.len() <= LONGEST && (is_host_name(host) || is_address()) {
        true => authority,
        false => OTHER,
    }
}

fn push_authz(labels: &mut Labels, authz: &Meta) {
    labels.push("authz_group", authz.group());
    labels.push("authz_kind", authz.kind());
    labels.push("authz_name", authz.name());
}

fn transport(direction: Direction, peer: &'static str) -> Labels {
    Labels::new()
        .with("direction", direction.as_str())
        .with("peer", peer)
}

fn push_server_tls(labels: &mut Labels, tls: &ServerTls) {
    match tls {
        ServerTls::Established { client } => {
            labels.push("tls", "true");
            labels.push("client_id", client.as_ref().map_or("", Identity::as_str));
        }
        ServerTls::Opaque { sni } => {
            labels.push("tls", "opaque");
            match sni {
                Some(sni) => labels.push_outside("sni", sni.clone()),
                None => labels.push("sni", ""),
            }
        }
        ServerTls::None(reason) => {
            labels.push("tls", "no_identity");
            labels.push("no_tls_reason", reason.as_str());
        }
    }
}

fn push_client_tls(labels: &mut Labels, tls: &ClientTls) {
    match tls {
        ClientTls::Established { server } => {
            labels.push("tls", "true");
            labels.push("server_id", server.as_str());
        }
        ClientTls::None(reason) => {
            labels.push("tls", "no_identity");
            labels.push("no_tls_reason", reason.as_str());
        }
    }
}

fn push_outbound_endpoint(
    labels: &mut Labels,
    endpoint: &Endpoint,
    authority: Option<&str>,
    tls: &ClientTls,
) {
    if let Some(authority) = authority {
        labels.push("authority", authority);
    }
    push_target(labels, endpoint.addr.into());
    push_client_tls(labels, tls);
    push_destination(labels, &endpoint.labels);
}

/// What discovery says of the endpoint, in alphabetical order as the map has it.
fn push_destination(labels: &mut Labels, of_endpoint: &mesh_core::labels::Labels) {
    for (name, value) in of_endpoint.iter() {
        labels.push(format!("dst_{name}"), value);
    }
}

/// The names of the labels that describe one object.
struct ObjectLabels {
    group: &'static str,
    kind: &'static str,
    namespace: &'static str,
    name: &'static str,
    port: &'static str,
    section: &'static str,
}

const PARENT: ObjectLabels = ObjectLabels {
    group: "parent_group",
    kind: "parent_kind",
    namespace: "parent_namespace",
    name: "parent_name",
    port: "parent_port",
    section: "parent_section_name",
};

const BACKEND: ObjectLabels = ObjectLabels {
    group: "backend_group",
    kind: "backend_kind",
    namespace: "backend_namespace",
    name: "backend_name",
    port: "backend_port",
    section: "backend_section_name",
};

fn push_object(labels: &mut Labels, names: &ObjectLabels, meta: &Meta) {
    labels.push(names.group, meta.group());
    labels.push(names.kind, meta.kind());
    labels.push(names.namespace, meta.namespace());
    labels.push(names.name, meta.name());
    labels.push(
        names.port,
        meta.port().map_or(String::new(), |port| port.to_string()),
    );
    labels.push(names.section, meta.section());
}

fn push_outbound_route(labels: &mut Labels, route: &Meta) {
    labels.push("route_group", route.group());
    labels.push("route_kind", route.kind());
    labels.push("route_namespace", route.namespace());
    labels.push("route_name", route.name());
}

#[cfg(test)]
mod tests;

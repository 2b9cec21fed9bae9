//! Builds the label sets, with the labels in the order of Linkerd's proxy. Called when handles are
//! resolved.
//!
//! Values that a client chooses are pushed with [`Labels::push_outside`]: server names,
//! authorities, and ports that no container declares. Identities of clients are pushed with
//! [`Labels::push_identity`]: they require a certificate of the mesh, and a user who may create
//! ServiceAccounts has any number of certificates. Values from the control plane are pushed as they
//! are.

use std::collections::BTreeMap;
use std::net::{Ipv6Addr, SocketAddr};
use std::sync::Arc;

use mesh_core::endpoint::Endpoint;
use mesh_core::identity::Identity;
use mesh_core::meta::Meta;
use mesh_core::ports::PortSet;
use mesh_runtime::metrics::{Labels, OTHER};

use crate::host_name::{MAX_NAME, is_host_name};

mesh_core::names! {
    /// The direction of traffic, from the application's point of view.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub(crate) enum Direction {
        Inbound = "inbound",
        Outbound = "outbound",
    }
}

/// The target address of a connection, as label values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TargetAddr {
    addr: SocketAddr,
    /// Whether the pod declares the port. Clients may dial any port.
    is_declared: bool,
}

/// The TLS of an accepted connection.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum ServerTls {
    /// Terminated by this proxy, with the client's identity if it presented a certificate.
    Established {
        client: Option<Identity>,
    },
    /// Forwarded as opaque bytes.
    Opaque {
        sni: Option<Arc<str>>,
    },
    None(NoServerTls),
}

mesh_core::names! {
    /// The reason why an accepted connection has no TLS.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub(crate) enum NoServerTls {
        NoTlsFromRemote = "no_tls_from_remote",
        /// Not detected, because the port is opaque.
        PortSkipped = "port_skipped",
        Loopback = "loopback",
    }
}

/// The TLS of a connection that the proxy opened.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum ClientTls {
    Established { server: Identity },
    None(NoClientTls),
}

mesh_core::names! {
    /// The reason why an opened connection has no TLS.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub(crate) enum NoClientTls {
        NotProvidedByServiceDiscovery = "not_provided_by_service_discovery",
        Loopback = "loopback",
    }
}

impl TargetAddr {
    /// `declared` are the ports that the pod's containers declare.
    pub(crate) fn new(addr: SocketAddr, declared: &PortSet) -> Self {
        Self {
            addr,
            is_declared: declared.contains(addr.port()),
        }
    }

    pub(crate) fn port(self) -> u16 {
        self.addr.port()
    }

    fn push(self, labels: &mut Labels, name: &'static str, value: String) {
        if self.is_declared {
            labels.push(name, value);
        } else {
            labels.push_outside(name, value);
        }
    }

    fn push_port(self, labels: &mut Labels, name: &'static str) {
        self.push(labels, name, self.addr.port().to_string());
    }
}

/// Converts addresses that no external client has chosen.
impl From<SocketAddr> for TargetAddr {
    fn from(addr: SocketAddr) -> Self {
        Self {
            addr,
            is_declared: true,
        }
    }
}

/// Returns the labels of an accepted inbound connection.
pub(crate) fn inbound_accept(target: TargetAddr, tls: &ServerTls, server: &Meta) -> Labels {
    let mut labels = transport(Direction::Inbound, "src");
    push_target(&mut labels, target);
    push_server_tls(&mut labels, tls);
    push_server(&mut labels, server, target);
    labels
}

/// Returns the labels of connections to the application, which in Linkerd have no target.
pub(crate) fn inbound_connect() -> Labels {
    transport(Direction::Inbound, "dst")
        .with("tls", "no_identity")
        .with("no_tls_reason", NoServerTls::Loopback.as_str())
}

/// Returns the labels of a connection accepted from the application.
pub(crate) fn outbound_accept(target: SocketAddr) -> Labels {
    let mut labels = transport(Direction::Outbound, "src");
    push_target(&mut labels, target.into());
    push_server_tls(&mut labels, &ServerTls::None(NoServerTls::Loopback));
    labels
}

/// Returns the labels of connections to one endpoint. `authority` is the balancer's, and `None` for
/// traffic that is forwarded to a fixed address.
pub(crate) fn outbound_connect(
    endpoint: &Endpoint,
    authority: Option<&str>,
    tls: &ClientTls,
) -> Labels {
    let mut labels = transport(Direction::Outbound, "dst");
    push_outbound_endpoint(&mut labels, endpoint, authority, tls);
    labels
}

/// Returns the labels of requests to one endpoint.
pub(crate) fn outbound_endpoint(
    endpoint: &Endpoint,
    authority: Option<&str>,
    tls: &ClientTls,
) -> Labels {
    let mut labels = Labels::new().with("direction", Direction::Outbound.as_str());
    push_outbound_endpoint(&mut labels, endpoint, authority, tls);
    labels
}

/// Returns the labels of the proxy's calls to a control-plane service.
pub(crate) fn control(addr: &str, tls: &ClientTls) -> Labels {
    let mut labels = Labels::new().with("addr", addr);
    push_client_tls(&mut labels, tls);
    labels
}

/// The policy objects that authorized an inbound request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PermitLabels<'a> {
    pub(crate) server: &'a Meta,
    pub(crate) route: &'a Meta,
    pub(crate) authz: &'a Meta,
}

/// Returns the labels of requests to the application. `authority` is set only if the configuration
/// enables that label.
pub(crate) fn inbound_endpoint(
    target: TargetAddr,
    authority: Option<&str>,
    tls: &ServerTls,
    permit: PermitLabels<'_>,
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

/// Returns the labels of an authorization decision on an inbound request or connection.
pub(crate) fn inbound_authz(
    target: TargetAddr,
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

/// Returns the labels of the newer inbound route families, whose parent is the Server.
pub(crate) fn inbound_route(server: &Meta, target: TargetAddr, route: &Meta) -> Labels {
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

/// Returns the TLS of an accepted connection, as taps name it: the reason takes the place of the
/// value if there is none.
pub(crate) fn tap_server_tls(tls: &ServerTls) -> mesh_core::labels::Labels {
    match tls {
        ServerTls::Established { client: Some(id) } => {
            [("tls", "true"), ("client_id", id.as_str())].into()
        }
        ServerTls::Established { client: None } => [("tls", "true")].into(),
        ServerTls::Opaque { .. } => [("tls", "opaque")].into(),
        ServerTls::None(reason) => [("tls", reason.as_str())].into(),
    }
}

/// Returns the objects that admitted a request, as taps name them.
pub(crate) fn tap_permit(permit: PermitLabels<'_>) -> mesh_core::labels::Labels {
    let PermitLabels {
        server,
        route,
        authz,
    } = permit;
    [
        ("srv_group", server.group()),
        ("srv_kind", server.kind()),
        ("srv_name", server.name()),
        ("route_group", route.group()),
        ("route_kind", route.kind()),
        ("route_name", route.name()),
        ("authz_group", authz.group()),
        ("authz_kind", authz.kind()),
        ("authz_name", authz.name()),
    ]
    .into()
}

/// Returns the labels and the TLS of an endpoint, as taps name them.
pub(crate) fn tap_endpoint(endpoint: &Endpoint, tls: &ClientTls) -> mesh_core::labels::Labels {
    let tls = match tls {
        ClientTls::Established { server } => vec![("tls", "true"), ("server_id", server.as_str())],
        ClientTls::None(reason) => vec![("tls", reason.as_str())],
    };
    endpoint.labels.iter().chain(tls).collect()
}

/// Returns the `srv_*` labels, as the protocol detection families have them.
pub(crate) fn server(server: &Meta, target: TargetAddr) -> Labels {
    let mut labels = Labels::new();
    push_server(&mut labels, server, target);
    labels
}

/// Returns the `parent_*` labels of an outbound policy.
pub(crate) fn parent(parent: &Meta) -> Labels {
    let mut labels = Labels::new();
    push_object(&mut labels, &PARENT, parent);
    labels
}

/// Returns the labels of a route of an outbound policy. `hostname` is present even if there is
/// none.
pub(crate) fn outbound_route(parent: &Meta, route: &Meta, hostname: Option<&str>) -> Labels {
    let mut labels = self::parent(parent);
    push_outbound_route(&mut labels, route);
    match hostname {
        Some(hostname) => labels.push_outside("hostname", hostname),
        None => labels.push("hostname", ""),
    }
    labels
}

/// Returns the labels of a route's backend.
pub(crate) fn outbound_backend(parent: &Meta, route: &Meta, backend: &Meta) -> Labels {
    let mut labels = self::parent(parent);
    push_outbound_route(&mut labels, route);
    push_object(&mut labels, &BACKEND, backend);
    labels
}

/// Returns the labels of a route of the ServiceProfile of `dst`, which is a name with a port.
/// `route` are the labels that the control plane gives to the route.
pub(crate) fn profile_route(
    direction: Direction,
    dst: &str,
    route: &BTreeMap<String, String>,
) -> Labels {
    let mut labels = Labels::new().with("direction", direction.as_str());
    match direction {
        Direction::Outbound => labels.push("dst", dst.to_owned()),
        // Clients of the application choose it.
        Direction::Inbound => labels.push_outside("dst", dst.to_owned()),
    }
    for (name, value) in route {
        labels.push(format!("rt_{name}"), value.clone());
    }
    labels
}

/// Returns the labels of a balancer.
pub(crate) fn balancer(parent: &Meta, backend: &Meta) -> Labels {
    let mut labels = self::parent(parent);
    push_object(&mut labels, &BACKEND, backend);
    labels
}

/// Returns the labels of an opaque route; `target` is the fixed address of forwarded traffic.
pub(crate) fn tcp_route(parent: &Meta, route: &Meta, target: Option<SocketAddr>) -> Labels {
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

/// Adds the `target_*` labels.
pub(crate) fn push_target(labels: &mut Labels, target: TargetAddr) {
    target.push(labels, "target_addr", target.addr.to_string());
    target.push(labels, "target_ip", target.addr.ip().to_string());
    target.push_port(labels, "target_port");
}

pub(crate) fn push_server(labels: &mut Labels, server: &Meta, target: TargetAddr) {
    labels.push("srv_group", server.group());
    labels.push("srv_kind", server.kind());
    labels.push("srv_name", server.name());
    target.push_port(labels, "srv_port");
}

pub(crate) fn push_route(labels: &mut Labels, route: &Meta) {
    labels.push("route_group", route.group());
    labels.push("route_kind", route.kind());
    labels.push("route_name", route.name());
}

/// Returns the label value of a client's `authority`: `OTHER` if it is longer than a host name with
/// a port can be, or if the host is neither a name nor an address.
pub(crate) fn authority_value(authority: &str) -> &str {
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
    if authority.len() <= LONGEST && (is_host_name(host) || is_address()) {
        authority
    } else {
        OTHER
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
            match client {
                Some(id) => labels.push_identity("client_id", id.as_str()),
                None => labels.push("client_id", ""),
            }
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

/// Adds the endpoint's labels from discovery, in alphabetical order.
fn push_destination(labels: &mut Labels, endpoint: &mesh_core::labels::Labels) {
    for (name, value) in endpoint.iter() {
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

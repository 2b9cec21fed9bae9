//! Computes the responses of the control plane from the request alone.
//!
//! A service is identified by its address, whose second byte selects its [`ServiceKind`]. Ordinary
//! services resolve to the server's address; the endpoints of all others are in 10.128.0.0/9, which
//! is local in the server's namespace.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use mesh_core::endpoint::{Endpoint, ProtocolHint, TlsPeer};
use mesh_core::identity::Identity;
use mesh_core::meta::{Meta, Resource};
use mesh_core::policy::inbound::{
    Authentication, Authorization, HttpServer, Network, ServerPolicy, ServerProtocol,
};
use mesh_core::policy::outbound::{
    Backend, BackendTarget, Distribution, HttpRoute, HttpRoutes, OutboundPolicy, OutboundProtocol,
    OutboundRule, RouteBackend, TcpRoute, TcpVerdict,
};
use mesh_core::resilience::{HttpRetry, PeakEwma, Queue, Timeouts};
use mesh_core::retry::{DEFAULT_BACKOFF, DEFAULT_LIMIT, DEFAULT_REQUEST_BYTES};
use mesh_core::route::Rule;

use super::Options;

/// Linkerd's default.
const DETECT_TIMEOUT: Duration = Duration::from_secs(10);
const INBOUND_PORT: u16 = 4143;
const NAMESPACE: &str = "bench";

/// First address of the endpoint pool.
const POOL: u32 = u32::from_be_bytes([10, 128, 0, 0]);
/// First endpoint of the service with many endpoints, above the endpoints of all other services.
const MANY_ENDPOINTS_POOL: u32 = u32::from_be_bytes([10, 250, 0, 0]);
/// Addresses reserved for each service.
const ADDRESSES_PER_SERVICE: u32 = 16;
const MANY_ENDPOINTS: u32 = 20_000;

/// The kind of a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ServiceKind {
    /// 10.96.0.0/16: the server, under its own address.
    Ordinary,
    /// 10.97.0.0/16: one endpoint of its own.
    One,
    /// 10.98.0.0/16: ten endpoints of its own.
    Ten,
    /// 10.99.0.0/16: ten endpoints. Each change adds or removes one of them.
    Moving,
    /// 10.100.0.0/16: many endpoints. The balancer rarely picks one twice, so TLS sessions cannot
    /// be resumed.
    ManyEndpoints,
    /// 10.101.0.0/16: the server, by routes with a retry policy.
    Retried,
}

/// Computes policies and endpoints.
pub(super) struct Responses {
    server: Ipv4Addr,
    server_identity: Identity,
    client_identity: Identity,
    opaque: Vec<u16>,
    plain: Vec<u16>,
    clear: Vec<u16>,
}

impl ServiceKind {
    fn from_address(service: Ipv4Addr) -> Option<Self> {
        match service.octets() {
            [10, 96, ..] => Some(Self::Ordinary),
            [10, 97, ..] => Some(Self::One),
            [10, 98, ..] => Some(Self::Ten),
            [10, 99, ..] => Some(Self::Moving),
            [10, 100, ..] => Some(Self::ManyEndpoints),
            [10, 101, ..] => Some(Self::Retried),
            _ => None,
        }
    }
}

impl Responses {
    pub(super) fn new(options: &Options) -> anyhow::Result<Self> {
        Ok(Self {
            server: options.server,
            server_identity: Identity::parse(&options.server_identity)?,
            client_identity: Identity::parse(&options.client_identity)?,
            opaque: options.opaque.clone(),
            plain: options.plain.clone(),
            clear: options.clear.clone(),
        })
    }

    /// Returns the outbound policy of a service's address; `None` for other addresses.
    pub(super) fn outbound(&self, addr: SocketAddr) -> Option<OutboundPolicy> {
        let IpAddr::V4(service) = addr.ip() else {
            return None;
        };
        let kind = ServiceKind::from_address(service)?;
        let name = name_of(service);
        let backends = balance(&name, addr.port());
        let tcp = TcpRoute {
            meta: Meta::new_default("opaque"),
            backends: backends.clone(),
            verdict: TcpVerdict::Forward,
        };
        let protocol = if self.is_opaque(addr.port()) {
            OutboundProtocol::Opaque(Some(tcp))
        } else {
            let http = http_routes(backends, (kind == ServiceKind::Retried).then(retry_policy));
            OutboundProtocol::Detect {
                timeout: DETECT_TIMEOUT,
                opaque: Some(tcp),
                http1: http.clone(),
                http2: http,
            }
        };
        Some(OutboundPolicy {
            parent: object("core", "Service", &name, Some(addr.port())),
            protocol,
        })
    }

    /// Returns the inbound policy of a port: it authorizes the client's identity, or
    /// unauthenticated clients on a port without TLS.
    pub(super) fn inbound(&self, port: u16) -> ServerPolicy {
        let all = Network::from(ipnet::IpNet::from(ipnet::Ipv4Net::default()));
        let authentication = if self.has_no_tls(port) {
            Authentication::Unauthenticated
        } else {
            Authentication::TlsAuthenticated {
                identities: vec![self.client_identity.clone()],
                suffixes: Vec::new(),
            }
        };
        let protocol = if self.is_opaque(port) {
            ServerProtocol::Opaque
        } else {
            ServerProtocol::Detect {
                timeout: DETECT_TIMEOUT,
                http: HttpServer::default(),
            }
        };
        ServerPolicy {
            meta: object("policy.linkerd.io", "server", "server", None),
            protocol,
            authorizations: Arc::new([Authorization {
                meta: object("policy.linkerd.io", "authorizationpolicy", "clients", None),
                networks: vec![all],
                authentication,
            }]),
            is_terminating: false,
        }
    }

    /// Returns the endpoints of an authority after `changes` changes; `None` if it does not
    /// identify a service.
    pub(super) fn endpoints(&self, authority: &str, changes: u64) -> Option<Vec<Endpoint>> {
        let (service, port) = service_of(authority)?;
        let own = |count: u32| {
            let services = u32::from(service) - u32::from_be_bytes([10, 96, 0, 0]);
            let first = POOL + services * ADDRESSES_PER_SERVICE;
            (first..first + count).map(Ipv4Addr::from).collect()
        };
        let addresses: Vec<Ipv4Addr> = match ServiceKind::from_address(service)? {
            ServiceKind::Ordinary | ServiceKind::Retried => vec![self.server],
            ServiceKind::One => own(1),
            ServiceKind::Ten => own(10),
            ServiceKind::Moving => own(if changes.is_multiple_of(2) { 10 } else { 9 }),
            ServiceKind::ManyEndpoints => (MANY_ENDPOINTS_POOL
                ..MANY_ENDPOINTS_POOL + MANY_ENDPOINTS)
                .map(Ipv4Addr::from)
                .collect(),
        };
        let endpoint = |ip: Ipv4Addr| self.endpoint(SocketAddr::new(ip.into(), port));
        Some(addresses.into_iter().map(endpoint).collect())
    }

    /// Returns whether the endpoints of an authority change.
    pub(super) fn moves(authority: &str) -> bool {
        service_of(authority).and_then(|(service, _)| ServiceKind::from_address(service))
            == Some(ServiceKind::Moving)
    }

    fn endpoint(&self, addr: SocketAddr) -> Endpoint {
        if self.has_no_tls(addr.port()) {
            return Endpoint::plain(addr);
        }
        let identity = self.server_identity.clone();
        Endpoint {
            tls: Some(TlsPeer {
                server_name: identity.to_string().into(),
                id: identity,
            }),
            hint: if self.is_opaque(addr.port()) {
                ProtocolHint::Opaque
            } else {
                ProtocolHint::Http2
            },
            opaque_transport_port: Some(INBOUND_PORT),
            // The destination controller sends this number of labels too.
            labels: [
                ("pod", format!("server-{}", addr.ip())),
                ("serviceaccount", "server".to_owned()),
                ("control_plane_ns", "linkerd".to_owned()),
                ("zone", "zone-a".to_owned()),
                ("zone_locality", "local".to_owned()),
                ("deployment", "server".to_owned()),
            ]
            .map(|(name, value)| (name.to_owned(), value))
            .into(),
            ..Endpoint::plain(addr)
        }
    }

    fn has_no_tls(&self, port: u16) -> bool {
        self.plain.contains(&port) || self.clear.contains(&port)
    }

    fn is_opaque(&self, port: u16) -> bool {
        self.opaque.contains(&port) || self.plain.contains(&port)
    }
}

fn http_routes(backends: Distribution, retry: Option<HttpRetry>) -> HttpRoutes {
    HttpRoutes {
        routes: vec![HttpRoute {
            meta: Meta::new_default("http"),
            hosts: Vec::new(),
            rules: vec![Rule {
                matches: Vec::new(),
                action: OutboundRule {
                    filters: Vec::new(),
                    backends,
                    timeouts: Timeouts::default(),
                    retry,
                    allow_request_headers: false,
                },
            }],
        }],
        failure_accrual: None,
    }
}

/// The policy of `retry.linkerd.io/http: 5xx`.
fn retry_policy() -> HttpRetry {
    HttpRetry {
        max_retries: DEFAULT_LIMIT,
        max_request_bytes: DEFAULT_REQUEST_BYTES,
        conditions: vec![500..=599],
        timeout: None,
        backoff: Some(DEFAULT_BACKOFF),
    }
}

fn balance(name: &str, port: u16) -> Distribution {
    let authority = format!("{name}.{NAMESPACE}.svc.cluster.local:{port}");
    Distribution::FirstAvailable(vec![Arc::new(RouteBackend {
        backend: Backend {
            meta: object("core", "Service", name, Some(port)),
            target: BackendTarget::Balance {
                authority: authority.into(),
                load: PeakEwma::default(),
                queue: Queue::LINKERD,
            },
        },
        filters: Vec::new(),
        verdict: TcpVerdict::Forward,
    })])
}

fn object(group: &str, kind: &str, name: &str, port: Option<u16>) -> Meta {
    Meta::Resource(Resource {
        group: group.into(),
        kind: kind.into(),
        namespace: NAMESPACE.into(),
        name: name.into(),
        section: "".into(),
        port,
    })
}

/// Derives the name of a service from its address.
fn name_of(service: Ipv4Addr) -> String {
    let [_, b, c, d] = service.octets();
    format!("s-{b}-{c}-{d}")
}

/// Parses address and port of a service from its authority.
fn service_of(authority: &str) -> Option<(Ipv4Addr, u16)> {
    let (host, port) = authority.rsplit_once(':')?;
    let name = host.split('.').next()?.strip_prefix("s-")?;
    let mut bytes = name.splitn(3, '-').map(str::parse);
    let mut byte = || bytes.next()?.ok();
    Some((
        Ipv4Addr::new(10, byte()?, byte()?, byte()?),
        port.parse().ok()?,
    ))
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    fn responses() -> Responses {
        Responses {
            server: [10, 78, 0, 2].into(),
            server_identity: Identity::parse("server.example").unwrap(),
            client_identity: Identity::parse("client.example").unwrap(),
            opaque: vec![9001],
            plain: vec![9002],
            clear: vec![9003],
        }
    }

    fn endpoints(service: [u8; 4], changes: u64) -> Vec<IpAddr> {
        let authority = format!("{}.bench.svc.cluster.local:80", name_of(service.into()));
        let endpoints = responses().endpoints(&authority, changes).unwrap();
        endpoints.iter().map(|e| e.addr.ip()).collect()
    }

    #[test]
    fn policy_authority_resolves_to_service() {
        let addr = SocketAddr::from(([10, 98, 3, 4], 80));
        let policy = responses().outbound(addr).unwrap();
        let OutboundProtocol::Detect { opaque, .. } = policy.protocol else {
            panic!("port 80 is not opaque");
        };
        let Distribution::FirstAvailable(backends) = opaque.unwrap().backends else {
            panic!("one backend");
        };
        let BackendTarget::Balance { authority, .. } = &backends[0].backend.target else {
            panic!("balanced");
        };
        assert_eq!(service_of(authority), Some(([10, 98, 3, 4].into(), 80)));
    }

    #[test]
    fn services_have_disjoint_endpoints() {
        assert_eq!(endpoints([10, 96, 0, 1], 0), [IpAddr::from([10, 78, 0, 2])]);
        let mut seen = HashSet::new();
        for service in [
            [10, 97, 0, 1],
            [10, 98, 0, 1],
            [10, 98, 0, 2],
            [10, 98, 255, 255],
            [10, 99, 0, 0],
            [10, 100, 0, 1],
        ] {
            for endpoint in endpoints(service, 0) {
                assert!(seen.insert(endpoint), "{endpoint} of {service:?}");
            }
        }
        assert_eq!(seen.len(), 1 + 10 + 10 + 10 + 10 + MANY_ENDPOINTS as usize);
    }

    #[test]
    fn each_change_adds_or_removes_one_endpoint() {
        let lengths: Vec<usize> = (0..3).map(|t| endpoints([10, 99, 0, 1], t).len()).collect();
        assert_eq!(lengths, [10, 9, 10]);
    }

    #[test]
    fn unknown_destinations_have_no_policy() {
        assert_eq!(responses().endpoints("web.shop:80", 0), None);
        assert_eq!(responses().outbound(([10, 78, 0, 2], 80).into()), None);
    }

    #[test]
    fn ports_without_tls_accept_unauthenticated_clients() {
        let policy = |port: u16| responses().inbound(port);
        let admits = |port: u16| policy(port).authorizations[0].authentication.clone();
        let looks = |port: u16| matches!(policy(port).protocol, ServerProtocol::Detect { .. });
        for port in [9002, 9003] {
            assert_eq!(admits(port), Authentication::Unauthenticated, "{port}");
        }
        assert_ne!(admits(8001), Authentication::Unauthenticated);
        assert!(looks(9003) && looks(8001) && !looks(9002) && !looks(9001));
    }

    #[test]
    fn endpoints_of_plain_ports_have_no_tls() {
        let of = |port: u16| {
            let authority = format!("s-96-0-1.bench.svc.cluster.local:{port}");
            responses().endpoints(&authority, 0).unwrap().remove(0)
        };
        assert_eq!(of(9002).tls, None);
        assert_eq!(of(9003).tls, None);
        assert_eq!(of(9001).hint, ProtocolHint::Opaque);
        assert_eq!(of(8001).hint, ProtocolHint::Http2);
    }
}

//! The effect of a set of objects, by the functions that decide in the controllers and the proxies.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::{Arc, LazyLock};

use mesh_core::identity::Identity;
use mesh_core::meta::Meta;
use mesh_core::policy::inbound::{
    Authorization, Client, ClientTls, InboundRule, ServerPolicy, ServerProtocol,
};
use mesh_core::policy::outbound::{OutboundPolicy, OutboundProtocol, Target};
use mesh_core::route::Route;
use mesh_objects::convert;
use mesh_objects::model::{Name, WorkloadRef};
use mesh_objects::policy::settings::PolicySettings;
use mesh_objects::policy::{inbound, outbound};
use mesh_objects::store::Store;
use mesh_test_support::policies;
use serde_json::Value;

/// A set of objects of `mesh_test_support::policies`.
pub(crate) struct Effect {
    pub(crate) store: Store,
    settings: PolicySettings,
}

/// The clients that decisions about authorizations differ for: in a pod and outside the cluster,
/// without TLS, without identity, and of several ServiceAccounts.
static CLIENTS: LazyLock<Vec<(IpAddr, Option<Option<Identity>>)>> = LazyLock::new(|| {
    let identity = |account: &str| {
        let name = format!("{account}.shop.serviceaccount.identity.linkerd.cluster.local");
        Some(Some(Identity::parse(&name).unwrap()))
    };
    let tls = [
        None,
        Some(None),
        identity("default"),
        identity("api"),
        identity("other"),
    ];
    let addresses = ["10.1.0.9", "10.2.0.9", "203.0.113.1"];
    let pairs = addresses
        .iter()
        .flat_map(|ip| tls.iter().map(move |tls| (ip, tls)));
    pairs
        .map(|(ip, tls)| (ip.parse().unwrap(), tls.clone()))
        .collect()
});

pub(crate) fn clients() -> impl Iterator<Item = Client<'static>> {
    CLIENTS.iter().map(|(ip, tls)| Client {
        ip: *ip,
        tls: match tls {
            None => ClientTls::None,
            Some(None) => ClientTls::Anonymous,
            Some(Some(identity)) => ClientTls::Identified(identity),
        },
    })
}

/// Returns the objects of a set in JSON.
pub(crate) fn json(texts: &[String]) -> Vec<Value> {
    let read = texts.iter().map(|text| serde_norway::from_str(text));
    read.collect::<Result<_, _>>().unwrap()
}

impl Effect {
    pub(crate) fn new(objects: &[Value]) -> Self {
        let records: Vec<_> = objects.iter().filter_map(convert::valid).collect();
        assert_eq!(records.len(), objects.len(), "{objects:?}");
        Self {
            store: records.into_iter().collect(),
            settings: PolicySettings {
                cluster_domain: "cluster.local".into(),
                control_namespace: "linkerd".into(),
                identity_domain: "cluster.local".into(),
                cluster_networks: vec!["10.0.0.0/8".parse().unwrap()],
                global_egress_namespace: "linkerd-egress".into(),
                default_policy: "all-unauthenticated".parse().unwrap(),
                probe_networks: Vec::new(),
                node_probe_sources: Vec::new(),
                default_opaque_ports: Default::default(),
                allow_request_headers: false,
            },
        }
    }

    /// Returns the policies of the ports of the pods whose Server is this one.
    pub(crate) fn of_server(&self, server: &str) -> Vec<ServerPolicy> {
        let ports = ["web-0", "api-0"].into_iter().flat_map(|pod| {
            let workload = WorkloadRef::Pod(Name::new("shop", pod));
            policies::PORTS.map(|port| self.inbound(&workload, port))
        });
        ports
            .filter(|policy| server_name(policy) == Some(server))
            .collect()
    }

    pub(crate) fn inbound(&self, workload: &WorkloadRef, port: u16) -> ServerPolicy {
        inbound::policy(&self.store, &self.settings, workload, port).unwrap()
    }

    /// Returns the policy of a port of the Service, for clients of a namespace.
    pub(crate) fn outbound(&self, client: &str, port: u16) -> OutboundPolicy {
        let target = Target::Addr(format!("10.96.0.1:{port}").parse().unwrap());
        let (store, settings) = (&self.store, &self.settings);
        let key = outbound::resolve(store, settings, &target, &Arc::from(client)).unwrap();
        outbound::policy(store, settings, &key).unwrap()
    }
}

/// Returns the name of the Server; `None` for a default policy.
pub(crate) fn server_name(policy: &ServerPolicy) -> Option<&str> {
    match &policy.meta {
        Meta::Resource(server) => Some(&server.name),
        Meta::Default(_) => None,
    }
}

/// Returns the names of the routes of a Server with the authorizations of their rules.
pub(crate) fn routes(policy: &ServerPolicy) -> BTreeMap<String, Arc<[Authorization]>> {
    fn named<M>(routes: &[Route<M, InboundRule>]) -> BTreeMap<String, Arc<[Authorization]>> {
        let routes = routes.iter().filter_map(|route| {
            let authorizations = &route.rules.first()?.action.authorizations;
            Some((name(&route.meta)?, authorizations.clone()))
        });
        routes.collect()
    }
    match &policy.protocol {
        ServerProtocol::Detect { http, .. }
        | ServerProtocol::Http1(http)
        | ServerProtocol::Http2(http) => named(&http.routes),
        ServerProtocol::Grpc(routes) => named(routes),
        ServerProtocol::Opaque | ServerProtocol::Tls => BTreeMap::new(),
    }
}

/// Returns whether the protocol is gRPC, and the names of the routes.
pub(crate) fn client_routes(policy: &OutboundPolicy) -> (bool, BTreeSet<String>) {
    fn names<M, A>(routes: &[Route<M, A>]) -> BTreeSet<String> {
        routes
            .iter()
            .filter_map(|route| name(&route.meta))
            .collect()
    }
    match &policy.protocol {
        OutboundProtocol::Detect { http1, .. } | OutboundProtocol::Http1(http1) => {
            (false, names(&http1.routes))
        }
        OutboundProtocol::Http2(http2) => (false, names(&http2.routes)),
        OutboundProtocol::Grpc(grpc) => (true, names(&grpc.routes)),
        OutboundProtocol::Opaque(_) | OutboundProtocol::Tls(_) => (false, BTreeSet::new()),
    }
}

/// Returns the name of an object; `None` for a default.
pub(crate) fn name(meta: &Meta) -> Option<String> {
    match meta {
        Meta::Resource(resource) => Some(resource.name.to_string()),
        Meta::Default(_) => None,
    }
}

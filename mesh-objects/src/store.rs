//! A set of objects by kind, with the lookups that decisions need.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::net::IpAddr;
use std::ops::Bound;
use std::sync::Arc;

use self::regions::Regions;
use crate::model::{
    Authentication, AuthenticationRef, AuthorizationPolicy, ConnectionRoute, EgressNetwork,
    ExternalWorkload, GrpcRoute, HttpRoute, Key, Kind, MeshTlsAuthentication, Name,
    NetworkAuthentication, Node, Object, OwnedObject, OwnerRef, PodRecord, RateLimitPolicy, Server,
    ServerAuthorization, Service, ServiceProfile, Slice, SliceTarget,
};

mod regions;

/// A change of the set of objects.
#[derive(Clone, Debug, PartialEq)]
pub enum Change {
    /// A new or changed object.
    Apply(Object),
    Delete(Key),
    /// Exactly these objects exist; all others have been deleted.
    Replace(Vec<Object>),
}

/// Objects sorted by namespace and name, so that a namespace's objects are adjacent.
type Table<T> = BTreeMap<Name, Arc<T>>;

/// The objects of the cluster.
#[derive(Debug, Default)]
pub struct Store {
    pods: Table<PodRecord>,
    nodes: Table<Node>,
    replica_sets: Table<OwnedObject>,
    jobs: Table<OwnedObject>,
    services: Table<Service>,
    slices: Table<Slice>,
    external_workloads: Table<ExternalWorkload>,
    servers: Table<Server>,
    server_authorizations: Table<ServerAuthorization>,
    authorization_policies: Table<AuthorizationPolicy>,
    mesh_tls_authentications: Table<MeshTlsAuthentication>,
    network_authentications: Table<NetworkAuthentication>,
    rate_limit_policies: Table<RateLimitPolicy>,
    policy_http_routes: Table<HttpRoute>,
    gateway_http_routes: Table<HttpRoute>,
    grpc_routes: Table<GrpcRoute>,
    service_profiles: Table<ServiceProfile>,
    tls_routes: Table<ConnectionRoute>,
    tcp_routes: Table<ConnectionRoute>,
    egress_networks: Table<EgressNetwork>,
    slices_by_service: HashMap<Name, BTreeSet<Name>>,
    services_by_ip: HashMap<IpAddr, BTreeSet<Name>>,
    /// By pod and host address.
    pods_by_ip: HashMap<IpAddr, BTreeSet<Name>>,
    external_workloads_by_ip: HashMap<IpAddr, BTreeSet<Name>>,
    /// The number of pods of each node, including nodes without a record.
    pods_of_nodes: HashMap<Arc<str>, usize>,
    regions: Regions,
}

/// The effect of a batch of changes, which determines the views to recompute.
#[derive(Debug, Default)]
pub struct ChangeSet {
    pub pods: HashSet<Name>,
    /// The namespaces of changed objects other than pods.
    pub namespaces: HashSet<Arc<str>>,
    /// The Services that have changed, or that have a changed EndpointSlice or pod.
    services_of_endpoints: HashSet<Name>,
    /// The namespaces of other changed objects that endpoints depend on, such as the Server or the
    /// owner of a pod.
    namespaces_of_endpoints: HashSet<Arc<str>>,
    pub servers: HashSet<Name>,
    /// Whether a node or an authentication changed. Objects of all namespaces refer to these.
    pub shared: bool,
    /// Whether a Service changed, which may be a backend or a target in any namespace.
    pub services: bool,
}

impl ChangeSet {
    pub fn is_empty(&self) -> bool {
        self.pods.is_empty() && self.namespaces.is_empty() && !self.shared && !self.services
    }

    /// Whether the endpoints of a Service may have changed. EndpointSlices and Servers refer to
    /// pods of their own namespace; nodes affect all namespaces.
    pub fn affects_endpoints(&self, service: &Name) -> bool {
        self.shared
            || self.services_of_endpoints.contains(service)
            || self.namespaces_of_endpoints.contains(&service.namespace)
    }

    /// Whether the endpoint of a pod in the same zones may have changed.
    pub fn affects_endpoint_of(&self, pod: &Name) -> bool {
        self.shared
            || self.pods.contains(pod)
            || self.namespaces_of_endpoints.contains(&pod.namespace)
    }

    fn record(&mut self, key: &Key, object: &Object) {
        let namespace = &key.name.namespace;
        match object {
            Object::Pod(_) => {
                self.pods.insert(key.name.clone());
                return;
            }
            Object::Node(_)
            | Object::MeshTlsAuthentication(_)
            | Object::NetworkAuthentication(_) => {
                self.shared = true;
            }
            Object::Service(service) => {
                self.services = true;
                self.services_of_endpoints.insert(service.name.clone());
            }
            Object::EndpointSlice(slice) => self.services_of_endpoints.extend(service_name(slice)),
            Object::ServiceProfile(_) => {}
            Object::Server(_) => {
                self.servers.insert(key.name.clone());
                self.namespaces_of_endpoints.insert(namespace.clone());
            }
            _ => {
                self.namespaces_of_endpoints.insert(namespace.clone());
            }
        }
        self.namespaces.insert(namespace.clone());
    }
}

/// Defines access to the tables by kind.
macro_rules! tables {
    ($($kind:ident: $table:ident,)+) => {
        impl Store {
            fn object(&self, key: &Key) -> Option<Object> {
                match key.kind {
                    $(Kind::$kind => self.$table.get(&key.name).cloned().map(Object::$kind),)+
                    Kind::Listed(_) | Kind::Reported(_) | Kind::External(_) => None,
                }
            }

            fn put(&mut self, name: Name, object: Object) {
                match object {
                    $(Object::$kind(object) => {
                        self.$table.insert(name, object);
                    })+
                    // Only for the metrics API, and the controllers of statuses and slices.
                    Object::Listed(_) | Object::Reported(_) | Object::External(_) => {}
                }
            }

            fn take(&mut self, key: &Key) -> Option<Object> {
                match key.kind {
                    $(Kind::$kind => self.$table.remove(&key.name).map(Object::$kind),)+
                    Kind::Listed(_) | Kind::Reported(_) | Kind::External(_) => None,
                }
            }

            fn keys(&self) -> impl Iterator<Item = Key> {
                fn of<T>(kind: Kind, table: &Table<T>) -> impl Iterator<Item = Key> {
                    table.keys().cloned().map(move |name| Key { kind, name })
                }
                std::iter::empty()$(.chain(of(Kind::$kind, &self.$table)))+
            }
        }
    };
}

tables! {
    Pod: pods,
    Node: nodes,
    ReplicaSet: replica_sets,
    Job: jobs,
    Service: services,
    EndpointSlice: slices,
    ExternalWorkload: external_workloads,
    Server: servers,
    ServerAuthorization: server_authorizations,
    AuthorizationPolicy: authorization_policies,
    MeshTlsAuthentication: mesh_tls_authentications,
    NetworkAuthentication: network_authentications,
    RateLimitPolicy: rate_limit_policies,
    PolicyHttpRoute: policy_http_routes,
    GatewayHttpRoute: gateway_http_routes,
    GatewayGrpcRoute: grpc_routes,
    ServiceProfile: service_profiles,
    GatewayTlsRoute: tls_routes,
    GatewayTcpRoute: tcp_routes,
    EgressNetwork: egress_networks,
}

/// Defines lookups by namespace.
macro_rules! in_namespace {
    ($($lookup:ident: $table:ident of $record:ident,)+) => {
        impl Store {
            $(pub fn $lookup(&self, namespace: &Arc<str>) -> impl Iterator<Item = &$record> {
                in_namespace(&self.$table, namespace)
            })+
        }
    };
}

in_namespace! {
    servers_in: servers of Server,
    external_workloads_in: external_workloads of ExternalWorkload,
    server_authorizations_in: server_authorizations of ServerAuthorization,
    rate_limit_policies_in: rate_limit_policies of RateLimitPolicy,
    authorization_policies_in: authorization_policies of AuthorizationPolicy,
    grpc_routes_in: grpc_routes of GrpcRoute,
    tls_routes_in: tls_routes of ConnectionRoute,
    tcp_routes_in: tcp_routes of ConnectionRoute,
    egress_networks_in: egress_networks of EgressNetwork,
}

impl FromIterator<Object> for Store {
    fn from_iter<I: IntoIterator<Item = Object>>(objects: I) -> Self {
        let mut store = Self::default();
        store.apply(vec![Change::Replace(objects.into_iter().collect())]);
        store
    }
}

impl Store {
    /// Applies changes and returns their effect. An object that is applied unchanged has none.
    pub fn apply(&mut self, batch: Vec<Change>) -> ChangeSet {
        let mut changes = ChangeSet::default();
        for change in batch {
            match change {
                Change::Apply(object) => self.insert(object, &mut changes),
                Change::Delete(key) => self.remove(&key, &mut changes),
                Change::Replace(objects) => {
                    let remaining: HashSet<Key> = objects.iter().map(Object::key).collect();
                    for key in self
                        .keys()
                        .filter(|key| !remaining.contains(key))
                        .collect::<Vec<_>>()
                    {
                        self.remove(&key, &mut changes);
                    }
                    for object in objects {
                        self.insert(object, &mut changes);
                    }
                }
            }
        }
        self.record_services_of_pods(&mut changes);
        changes
    }

    /// Records the Services that have one of the changed pods as endpoint.
    fn record_services_of_pods(&self, changes: &mut ChangeSet) {
        let ChangeSet {
            pods,
            services_of_endpoints,
            ..
        } = changes;
        let namespaces: HashSet<&Arc<str>> = pods.iter().map(|pod| &pod.namespace).collect();
        let is_changed = |target: &SliceTarget| match target {
            SliceTarget::Pod(pod) => pods.contains(pod),
            // A changed ExternalWorkload affects its namespace.
            SliceTarget::External(_) | SliceTarget::None | SliceTarget::Other => false,
        };
        let slices = namespaces
            .into_iter()
            .flat_map(|namespace| in_namespace(&self.slices, namespace));
        let changed =
            slices.filter(|slice| slice.endpoints.iter().any(|it| is_changed(&it.target)));
        services_of_endpoints.extend(changed.filter_map(service_name));
    }

    fn insert(&mut self, object: Object, changes: &mut ChangeSet) {
        let key = object.key();
        if self.object(&key).as_ref() == Some(&object) {
            return;
        }
        self.remove(&key, changes);
        changes.record(&key, &object);
        self.add_to_lookups(&object);
        self.put(key.name, object);
    }

    fn remove(&mut self, key: &Key, changes: &mut ChangeSet) {
        if let Some(object) = self.take(key) {
            changes.record(key, &object);
            self.remove_from_lookups(&object);
        }
    }

    /// Adds an object to the lookups by address, node and Service.
    fn add_to_lookups(&mut self, object: &Object) {
        match object {
            Object::Service(service) => {
                for ip in &service.cluster_ips {
                    add_lookup(&mut self.services_by_ip, *ip, &service.name);
                }
            }
            Object::Pod(pod) => {
                for ip in pod.ips.iter().chain(&pod.host_ips) {
                    add_lookup(&mut self.pods_by_ip, *ip, &pod.name);
                }
                if let Some(node) = &pod.node {
                    *self.pods_of_nodes.entry(node.clone()).or_default() += 1;
                }
            }
            Object::ExternalWorkload(workload) => {
                for ip in &workload.ips {
                    add_lookup(&mut self.external_workloads_by_ip, *ip, &workload.name);
                }
            }
            Object::EndpointSlice(slice) => {
                if let Some(service) = service_name(slice) {
                    add_lookup(&mut self.slices_by_service, service, &slice.name);
                }
            }
            Object::Node(node) => self.regions.add(node),
            _ => {}
        }
    }

    fn remove_from_lookups(&mut self, object: &Object) {
        match object {
            Object::Service(service) => {
                for ip in &service.cluster_ips {
                    remove_lookup(&mut self.services_by_ip, ip, &service.name);
                }
            }
            Object::Pod(pod) => {
                for ip in pod.ips.iter().chain(&pod.host_ips) {
                    remove_lookup(&mut self.pods_by_ip, ip, &pod.name);
                }
                if let Some(node) = &pod.node
                    && let Some(pods) = self.pods_of_nodes.get_mut(node)
                {
                    *pods -= 1;
                    if *pods == 0 {
                        self.pods_of_nodes.remove(node);
                    }
                }
            }
            Object::ExternalWorkload(workload) => {
                for ip in &workload.ips {
                    remove_lookup(&mut self.external_workloads_by_ip, ip, &workload.name);
                }
            }
            Object::EndpointSlice(slice) => {
                if let Some(service) = service_name(slice) {
                    remove_lookup(&mut self.slices_by_service, &service, &slice.name);
                }
            }
            Object::Node(node) => self.regions.remove(node),
            _ => {}
        }
    }

    pub fn pod(&self, name: &Name) -> Option<&PodRecord> {
        self.pods.get(name).map(Arc::as_ref)
    }

    pub fn service(&self, name: &Name) -> Option<&Service> {
        self.services.get(name).map(Arc::as_ref)
    }

    pub fn service_profile(&self, name: &Name) -> Option<&ServiceProfile> {
        self.service_profiles.get(name).map(Arc::as_ref)
    }

    /// Returns whether there is a node with this name, or a pod on it.
    pub fn has_node(&self, node: &str) -> bool {
        self.pods_of_nodes.contains_key(node) || self.nodes.contains_key(&Name::new("", node))
    }

    /// Returns whether the address belongs to a Service, a pod, a pod's host or an
    /// ExternalWorkload.
    pub fn has_ip(&self, ip: IpAddr) -> bool {
        self.services_by_ip.contains_key(&ip)
            || self.pods_by_ip.contains_key(&ip)
            || self.external_workloads_by_ip.contains_key(&ip)
    }

    /// Returns whether the Service has the endpoints of other Services.
    pub fn has_members(&self, service: &Name) -> bool {
        self.service(service)
            .is_some_and(|service| service.members.is_some())
    }

    /// Returns whether the Service has an endpoint with this hostname, ready or not.
    pub fn has_instance(&self, service: &Name, hostname: &Arc<str>) -> bool {
        self.slices_of(service)
            .flat_map(|slice| &slice.endpoints)
            .any(|endpoint| endpoint.hostname.as_ref() == Some(hostname))
    }

    pub fn node(&self, name: &str) -> Option<&Node> {
        self.nodes.get(&Name::new("", name)).map(Arc::as_ref)
    }

    pub fn zone_of_node(&self, node: &str) -> Option<&Arc<str>> {
        self.node(node)?.zone.as_ref()
    }

    /// Returns the region of a zone that a node is in.
    pub fn region_of_zone(&self, zone: &str) -> Option<&Arc<str>> {
        self.regions.of(zone)
    }

    /// Returns the zones of nodes with their regions.
    pub fn regions(&self) -> impl Iterator<Item = (&Arc<str>, &Arc<str>)> {
        self.regions.iter()
    }

    /// Returns an authentication that exists. ServiceAccounts need not exist.
    pub fn authentication<'a>(
        &'a self,
        reference: &'a AuthenticationRef,
    ) -> Option<Authentication<'a>> {
        Some(match reference {
            AuthenticationRef::MeshTls(name) => {
                Authentication::MeshTls(self.mesh_tls_authentications.get(name)?)
            }
            AuthenticationRef::Network(name) => {
                Authentication::Network(self.network_authentications.get(name)?)
            }
            AuthenticationRef::ServiceAccount(name) => Authentication::ServiceAccount(name),
        })
    }

    /// Returns the Services with this cluster IP, by namespace and name. A cluster assigns each to
    /// one Service, so several are a fault, which Linkerd's controllers treat differently: profiles
    /// are refused, and policies are of the Service that was read last. Here policies are of the
    /// first, so that all replicas choose the same.
    pub fn services_at(&self, ip: IpAddr) -> impl Iterator<Item = &Service> {
        let names = self.services_by_ip.get(&ip);
        names
            .into_iter()
            .flatten()
            .filter_map(|name| self.service(name))
    }

    /// Returns the pods with this pod or host address.
    pub fn pods_at(&self, ip: IpAddr) -> impl Iterator<Item = &PodRecord> + Clone {
        let names = self.pods_by_ip.get(&ip);
        names
            .into_iter()
            .flatten()
            .filter_map(|name| self.pod(name))
    }

    /// Returns the ExternalWorkloads with this address, by namespace and name.
    pub fn external_workloads_at(&self, ip: IpAddr) -> impl Iterator<Item = &ExternalWorkload> {
        let names = self.external_workloads_by_ip.get(&ip);
        names
            .into_iter()
            .flatten()
            .filter_map(|name| self.external_workload(name))
    }

    pub fn slices_of(&self, service: &Name) -> impl Iterator<Item = &Slice> {
        let names = self.slices_by_service.get(service);
        names
            .into_iter()
            .flatten()
            .filter_map(|name| self.slices.get(name).map(Arc::as_ref))
    }

    pub fn servers(&self) -> impl Iterator<Item = &Server> {
        self.servers.values().map(Arc::as_ref)
    }

    pub fn external_workload(&self, name: &Name) -> Option<&ExternalWorkload> {
        self.external_workloads.get(name).map(Arc::as_ref)
    }

    /// Returns the routes of both API groups.
    pub fn http_routes_in(&self, namespace: &Arc<str>) -> impl Iterator<Item = &HttpRoute> {
        in_namespace(&self.policy_http_routes, namespace)
            .chain(in_namespace(&self.gateway_http_routes, namespace))
    }

    /// Returns the workload that owns a pod.
    pub fn owner_of(&self, pod: &PodRecord) -> OwnerRef {
        let Some(direct) = &pod.owner else {
            return OwnerRef {
                kind: "pod".into(),
                name: pod.name.name.clone(),
            };
        };
        let (table, parents): (_, &[&str]) = match &*direct.kind {
            "replicaset" => (
                &self.replica_sets,
                &["deployment", "statefulset", "daemonset", "job"],
            ),
            "job" => (&self.jobs, &["cronjob"]),
            _ => return direct.clone(),
        };
        let name = Name {
            namespace: pod.name.namespace.clone(),
            name: direct.name.clone(),
        };
        table
            .get(&name)
            .and_then(|owned| owned.owner.clone())
            .filter(|parent| parents.contains(&&*parent.kind))
            .unwrap_or_else(|| direct.clone())
    }
}

fn service_name(slice: &Slice) -> Option<Name> {
    Some(Name {
        namespace: slice.name.namespace.clone(),
        name: slice.service.clone()?,
    })
}

fn add_lookup<K: Eq + std::hash::Hash>(
    lookup: &mut HashMap<K, BTreeSet<Name>>,
    key: K,
    name: &Name,
) {
    lookup.entry(key).or_default().insert(name.clone());
}

fn remove_lookup<K: Eq + std::hash::Hash>(
    lookup: &mut HashMap<K, BTreeSet<Name>>,
    key: &K,
    name: &Name,
) {
    if let Some(names) = lookup.get_mut(key) {
        names.remove(name);
        if names.is_empty() {
            lookup.remove(key);
        }
    }
}

fn in_namespace<'a, T>(table: &'a Table<T>, namespace: &Arc<str>) -> impl Iterator<Item = &'a T> {
    let first = Name {
        namespace: namespace.clone(),
        name: "".into(),
    };
    let namespace = namespace.clone();
    table
        .range((Bound::Included(first), Bound::Unbounded))
        .take_while(move |(name, _)| name.namespace == namespace)
        .map(|(_, object)| object.as_ref())
}

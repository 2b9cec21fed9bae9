//! Profiles of destinations.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use mesh_core::endpoint::{Endpoint, ProtocolHint};
use mesh_core::meta::{Meta, Resource};
use mesh_core::profile::Profile;
use mesh_core::resilience::RetryBudget;
use mesh_objects::model::{
    ExternalWorkload, Kind, Name, Phase, PodRecord, PortProtocol, Service, ServiceProfile,
    SliceTarget,
};
use mesh_objects::policy::outbound::service_meta;
use mesh_objects::policy::pod_address::{AmbiguousPod, pod_at};
use mesh_objects::store::Store;

use super::settings::DestinationSettings;
use super::{external_endpoints, pod_endpoints};

/// A destination and the namespace of its clients.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ProfileKey {
    pub target: ProfileTarget,
    /// Empty for a client without namespace.
    pub client_namespace: Arc<str>,
}

/// A destination.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum ProfileTarget {
    Service {
        service: Name,
        port: u16,
        /// The requested name.
        fqn: Arc<str>,
    },
    /// An endpoint of a Service, by its hostname.
    Instance {
        service: Name,
        hostname: Arc<str>,
        port: u16,
    },
    Addr(SocketAddr),
    /// A name outside the cluster, in lower case.
    External {
        host: Arc<str>,
        port: u16,
    },
}

/// Why a destination has no profile.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProfileError {
    #[error("no such service: {0}")]
    NoSuchService(Name),
    #[error("service {0} is an ExternalName service")]
    ExternalName(Name),
    #[error("service {0} has no endpoint with hostname {1}")]
    NoSuchInstance(Name, Arc<str>),
    #[error("services {0} and {1} both have the address {2}")]
    AmbiguousService(Name, Name, IpAddr),
    #[error(transparent)]
    AmbiguousPod(#[from] AmbiguousPod),
    #[error("external workloads {0} and {1} both have the address {2}")]
    AmbiguousWorkload(Name, Name, SocketAddr),
}

/// The retry budget without a ServiceProfile, as in Linkerd.
const DEFAULT_RETRY_BUDGET: RetryBudget = RetryBudget {
    ttl: Duration::from_secs(10),
    min_per_second: 10,
    ratio: 0.2,
};

pub(super) fn profile(
    store: &Store,
    settings: &DestinationSettings,
    key: &ProfileKey,
) -> Result<Profile, ProfileError> {
    let client = &key.client_namespace;
    match &key.target {
        ProfileTarget::Service { service, port, fqn } => {
            let found = store
                .service(service)
                .ok_or_else(|| ProfileError::NoSuchService(service.clone()))?;
            service_profile(store, settings, found, *port, fqn.clone(), client)
        }
        ProfileTarget::Instance {
            service,
            hostname,
            port,
        } => instance_profile(store, settings, service, hostname, *port),
        ProfileTarget::Addr(addr) => addr_profile(store, settings, *addr, client),
        ProfileTarget::External { host, port } => {
            Ok(external_profile(store, settings, host, *port, client))
        }
    }
}

/// Returns the ServiceProfile of a name outside the cluster, which is in the client's namespace.
pub(super) fn of_external<'a>(
    store: &'a Store,
    host: &Arc<str>,
    client: &Arc<str>,
) -> Option<&'a ServiceProfile> {
    store.service_profile(&Name {
        namespace: client.clone(),
        name: host.clone(),
    })
}

/// Returns the ServiceProfile of a Service: that in the client's namespace, else that in the
/// namespace of the Service.
fn of_service<'a>(
    store: &'a Store,
    settings: &DestinationSettings,
    service: &Name,
    client: &Arc<str>,
) -> Option<&'a ServiceProfile> {
    let Name { namespace, name } = service;
    let fqn: Arc<str> = format!("{name}.{namespace}.svc.{}", settings.cluster_domain).into();
    [client, namespace].into_iter().find_map(|namespace| {
        store.service_profile(&Name {
            namespace: namespace.clone(),
            name: fqn.clone(),
        })
    })
}

fn service_profile(
    store: &Store,
    settings: &DestinationSettings,
    service: &Service,
    port: u16,
    fqn: Arc<str>,
    client: &Arc<str>,
) -> Result<Profile, ProfileError> {
    // With an empty profile the proxy uses the policy of the undefined port.
    if !service.ports.iter().any(|entry| entry.number == port) {
        return Ok(Profile::default());
    }
    if service.external_name {
        return Err(ProfileError::ExternalName(service.name.clone()));
    }
    let protocol = service.protocol(port, &settings.default_opaque_ports);
    let found = of_service(store, settings, &service.name, client);
    Ok(Profile {
        fqn: Some(fqn),
        opaque: protocol == PortProtocol::Opaque,
        parent: Some(service_meta(&service.name, port)),
        uid: service.uid.clone(),
        ..found.map_or_else(default_profile, |found| written_profile(found, port))
    })
}

/// Returns the profile of a name outside the cluster. Without a ServiceProfile it is empty, so that
/// the proxy uses the address that it has.
fn external_profile(
    store: &Store,
    settings: &DestinationSettings,
    host: &Arc<str>,
    port: u16,
    client: &Arc<str>,
) -> Profile {
    let Some(found) = of_external(store, host, client) else {
        return Profile::default();
    };
    let own = Some(&found.rules.opaque_ports).filter(|ports| !ports.is_empty());
    let opaque_ports = own.unwrap_or(&settings.default_opaque_ports);
    Profile {
        fqn: Some(host.clone()),
        opaque: opaque_ports.contains(port),
        ..written_profile(found, port)
    }
}

fn default_profile() -> Profile {
    Profile {
        retry_budget: Some(DEFAULT_RETRY_BUDGET),
        ..Profile::default()
    }
}

/// Returns the profile that a ServiceProfile describes for a port of its destination.
fn written_profile(written: &ServiceProfile, port: u16) -> Profile {
    let Name { namespace, name } = &written.name;
    let kind = Kind::ServiceProfile;
    let source = Resource::new(kind.group(), kind.as_str(), namespace.clone(), name.clone());
    let rules = &written.rules;
    Profile {
        routes: rules.routes.clone(),
        retry_budget: rules.retry_budget.or(Some(DEFAULT_RETRY_BUDGET)),
        overrides: rules.overrides.iter().map(|part| part.at(port)).collect(),
        source: Some(Meta::Resource(source)),
        ..Profile::default()
    }
}

fn addr_profile(
    store: &Store,
    settings: &DestinationSettings,
    addr: SocketAddr,
    client: &Arc<str>,
) -> Result<Profile, ProfileError> {
    let mut services = store.services_at(addr.ip());
    if let Some(service) = services.next() {
        if let Some(other) = services.next() {
            let (one, other) = (service.name.clone(), other.name.clone());
            return Err(ProfileError::AmbiguousService(one, other, addr.ip()));
        }
        let Name { namespace, name } = &service.name;
        let fqn = format!("{name}.{namespace}.svc.{}", settings.cluster_domain);
        return service_profile(store, settings, service, addr.port(), fqn.into(), client);
    }
    if let Some((pod, own)) = pod_at(store.pods_at(addr.ip()), addr)? {
        return Ok(pod_profile(store, settings, pod, addr, own));
    }
    let workloads = store.external_workloads_at(addr.ip());
    let mut workloads = workloads.filter(|workload| workload.ports.contains(&addr.port()));
    match (workloads.next(), workloads.next()) {
        (Some(one), Some(other)) => {
            let (one, other) = (one.name.clone(), other.name.clone());
            Err(ProfileError::AmbiguousWorkload(one, other, addr))
        }
        (Some(workload), None) => Ok(external_workload_profile(store, settings, workload, addr)),
        (None, _) => Ok(plain_profile(settings, addr)),
    }
}

fn instance_profile(
    store: &Store,
    settings: &DestinationSettings,
    service: &Name,
    hostname: &Arc<str>,
    port: u16,
) -> Result<Profile, ProfileError> {
    let missing = || ProfileError::NoSuchInstance(service.clone(), hostname.clone());
    let pod = store
        .slices_of(service)
        .flat_map(|slice| &slice.endpoints)
        .find_map(|endpoint| match &endpoint.target {
            SliceTarget::Pod(pod) if endpoint.hostname.as_ref() == Some(hostname) => store.pod(pod),
            _ => None,
        })
        .ok_or_else(missing)?;
    let ip = pod.ips.first().ok_or_else(missing)?;
    let addr = SocketAddr::new(*ip, port);
    Ok(pod_profile(store, settings, pod, addr, addr))
}

/// Returns the profile of the pod at the address `requested`, whose own address is `own`.
///
/// A pod that is not running, or whose proxy's ports are unknown, has a plain profile.
fn pod_profile(
    store: &Store,
    settings: &DestinationSettings,
    pod: &PodRecord,
    requested: SocketAddr,
    own: SocketAddr,
) -> Profile {
    if pod.phase != Phase::Running {
        return plain_profile(settings, requested);
    }
    let zone = pod
        .node
        .as_deref()
        .and_then(|node| store.zone_of_node(node));
    let zone = zone.map(Arc::as_ref);
    match pod_endpoints::endpoint(store, settings, pod, own, own.port(), zone) {
        None => plain_profile(settings, requested),
        Some(mut endpoint) => {
            // The host only forwards the host ports, not the port of the proxy, which is therefore
            // only reachable at the pod's own address.
            if !endpoint.has_proxy() {
                endpoint.addr = requested;
            }
            endpoint.labels = endpoint.labels.with("namespace", &pod.name.namespace);
            let opaque = pod_endpoints::is_opaque(store, settings, pod, own.port());
            Profile {
                uid: pod.uid.clone(),
                ..endpoint_profile(endpoint, opaque)
            }
        }
    }
}

fn external_workload_profile(
    store: &Store,
    settings: &DestinationSettings,
    workload: &ExternalWorkload,
    addr: SocketAddr,
) -> Profile {
    let zone = workload.zone.as_deref();
    let endpoint = external_endpoints::endpoint(store, settings, workload, addr, zone);
    let Some(mut endpoint) = endpoint else {
        return plain_profile(settings, addr);
    };
    let namespace = &workload.name.namespace;
    endpoint.labels = endpoint.labels.with("namespace", namespace);
    let opaque = endpoint.hint == ProtocolHint::Opaque;
    endpoint_profile(endpoint, opaque)
}

/// Returns the profile of an unknown address.
fn plain_profile(settings: &DestinationSettings, addr: SocketAddr) -> Profile {
    let opaque = settings.default_opaque_ports.contains(addr.port());
    endpoint_profile(Endpoint::plain(addr), opaque)
}

fn endpoint_profile(endpoint: Endpoint, opaque: bool) -> Profile {
    Profile {
        opaque,
        endpoint: Some(endpoint),
        ..default_profile()
    }
}

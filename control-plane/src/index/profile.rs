//! Profiles: what a destination is, before anything is sent to it.

use std::{
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use mesh_core::{
    endpoint::Endpoint,
    meta::{Meta, Resource},
    profile::Profile,
    resilience::RetryBudget,
};

use super::{settings::DestinationSettings, store::Store, workloads};
use crate::model::{Name, Phase, PortProtocol, Service, SliceTarget, Workload};

/// What is asked about.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum ProfileKey {
    Service {
        service: Name,
        port: u16,
        /// The name as it was asked for.
        fqn: Arc<str>,
    },
    /// One endpoint of a Service, by its host name.
    Instance {
        service: Name,
        hostname: Arc<str>,
        port: u16,
    },
    Addr(SocketAddr),
}

/// Why there is no profile.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProfileError {
    #[error("no such service: {0}")]
    NoSuchService(Name),
    #[error("service {0} is an ExternalName service")]
    ExternalName(Name),
    #[error("no endpoint of service {0} is named {1}")]
    NoSuchInstance(Name, Arc<str>),
    #[error("services {0} and {1} both have the address {2}")]
    AmbiguousService(Name, Name, IpAddr),
    #[error("pods {0} and {1} both have the address {2}")]
    AmbiguousPod(Name, Name, SocketAddr),
}

/// The budget that applies where no ServiceProfile sets one, as in Linkerd.
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
    match key {
        ProfileKey::Service { service, port, fqn } => {
            let found = store
                .service(service)
                .ok_or_else(|| ProfileError::NoSuchService(service.clone()))?;
            of_service(settings, found, *port, fqn.clone())
        }
        ProfileKey::Instance {
            service,
            hostname,
            port,
        } => of_instance(store, settings, service, hostname, *port),
        ProfileKey::Addr(addr) => of_addr(store, settings, *addr),
    }
}

fn of_service(
    settings: &DestinationSettings,
    service: &Service,
    port: u16,
    fqn: Arc<str>,
) -> Result<Profile, ProfileError> {
    // An empty profile makes the proxy go by the policy of the undefined port.
    if !service.ports.iter().any(|entry| entry.number == port) {
        return Ok(Profile::default());
    }
    if service.external_name {
        return Err(ProfileError::ExternalName(service.name.clone()));
    }
    let protocol = service.protocol(port, &settings.default_opaque_ports);
    Ok(Profile {
        fqn: Some(fqn),
        opaque: protocol == PortProtocol::Opaque,
        retry_budget: Some(DEFAULT_RETRY_BUDGET),
        parent: Some(Meta::Resource(Resource {
            group: "core".into(),
            kind: "Service".into(),
            namespace: service.name.namespace.clone(),
            name: service.name.name.clone(),
            section: "".into(),
            port: Some(port),
        })),
        ..Profile::default()
    })
}

fn of_addr(
    store: &Store,
    settings: &DestinationSettings,
    addr: SocketAddr,
) -> Result<Profile, ProfileError> {
    let mut services = store.services_at(addr.ip());
    if let Some(service) = services.next() {
        if let Some(other) = services.next() {
            let (one, other) = (service.name.clone(), other.name.clone());
            return Err(ProfileError::AmbiguousService(one, other, addr.ip()));
        }
        let Name { namespace, name } = &service.name;
        let fqn = format!("{name}.{namespace}.svc.{}", settings.cluster_domain);
        return of_service(settings, service, addr.port(), fqn.into());
    }
    Ok(match pod_at(store, addr)? {
        None => bare(settings, addr),
        Some((pod, own)) => of_pod(store, settings, pod, addr, own),
    })
}

fn of_instance(
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
    Ok(of_pod(store, settings, pod, addr, addr))
}

/// The pod at an address, and its own address and port there: by its own addresses, else by a port
/// of its host.
fn pod_at(
    store: &Store,
    addr: SocketAddr,
) -> Result<Option<(&Workload, SocketAddr)>, ProfileError> {
    let own = |pod: &Workload| (!pod.host_network && pod.ips.contains(&addr.ip())).then_some(addr);
    if let Some(found) = the_one(store, addr, own)? {
        return Ok(Some(found));
    }
    the_one(store, addr, |pod| {
        let port = pod.behind_host_addr(addr)?;
        Some(SocketAddr::new(pod.own_ip_beside(addr.ip())?, port))
    })
}

/// The one pod that has `own`. A pod that is being deleted keeps its address until its containers
/// have ended, and until then its proxy expects TLS; but a pod that stays comes first.
fn the_one(
    store: &Store,
    addr: SocketAddr,
    own: impl Fn(&Workload) -> Option<SocketAddr>,
) -> Result<Option<(&Workload, SocketAddr)>, ProfileError> {
    for terminating in [false, true] {
        let mut found = store
            .pods_at(addr.ip())
            .filter(|pod| pod.phase != Phase::Ended && pod.terminating == terminating)
            .filter_map(|pod| own(pod).map(|own| (pod, own)));
        match (found.next(), found.next()) {
            (Some((one, _)), Some((other, _))) => {
                let (one, other) = (one.name.clone(), other.name.clone());
                return Err(ProfileError::AmbiguousPod(one, other, addr));
            }
            (Some(one), None) => return Ok(Some(one)),
            (None, _) => {}
        }
    }
    Ok(None)
}

/// The profile of the pod that was asked for as `asked` and whose own address is `own`.
///
/// A pod that does not run, or whose proxy cannot be found, is an address like any other.
fn of_pod(
    store: &Store,
    settings: &DestinationSettings,
    pod: &Workload,
    asked: SocketAddr,
    own: SocketAddr,
) -> Profile {
    if pod.phase != Phase::Running {
        return bare(settings, asked);
    }
    let zone = pod
        .node
        .as_deref()
        .and_then(|node| store.zone_of_node(node));
    let zone = zone.map(Arc::as_ref);
    match workloads::endpoint(store, settings, pod, own, own.port(), zone) {
        None => bare(settings, asked),
        Some(mut endpoint) => {
            // The host forwards the pod's host ports, not its proxy's port: a proxy is only
            // reached at the pod's own address.
            if !endpoint.has_proxy() {
                endpoint.addr = asked;
            }
            endpoint.labels = endpoint.labels.with("namespace", &pod.name.namespace);
            let opaque = workloads::is_opaque(store, settings, pod, own.port());
            of_endpoint(endpoint, opaque)
        }
    }
}

/// What is said of an address that belongs to nothing known.
fn bare(settings: &DestinationSettings, addr: SocketAddr) -> Profile {
    let opaque = settings.default_opaque_ports.contains(addr.port());
    of_endpoint(workloads::plain_endpoint(addr), opaque)
}

fn of_endpoint(endpoint: Endpoint, opaque: bool) -> Profile {
    Profile {
        opaque,
        retry_budget: Some(DEFAULT_RETRY_BUDGET),
        endpoint: Some(endpoint),
        ..Profile::default()
    }
}

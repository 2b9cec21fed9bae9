//! Records of the objects that decide about mirrors. Written objects have only fingerprints,
//! because their contents follow from the target cluster's.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher as _};
use std::net::IpAddr;
use std::sync::Arc;

use mesh_core::annotation::{
    LOCAL_DISCOVERY, MIRRORED_CLUSTER, MIRRORED_SERVICE, REMOTE_DISCOVERY,
};
use mesh_k8s::kinds::core::{EndpointPort, EndpointSubset, Endpoints, Service, ServicePort};
use mesh_k8s::kinds::{EndpointSlice, IntOrString, ObjectMeta};
use mesh_k8s::pod::meta_annotation;
use mesh_objects::convert::SERVICE_LABEL;
use mesh_objects::model::{Labels, Name};

use super::limits::MAX_SERVICE_BYTES;
use super::packed::Packed;
use super::target::is_copied;

pub(super) type Table<T> = BTreeMap<Name, Arc<T>>;

/// A Service of the target cluster that the Link selects.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct RemoteService {
    pub(super) uid: Arc<str>,
    pub(super) version: Arc<str>,
    pub(super) headless: bool,
    pub(super) labels: Packed,
    /// Annotations that a mirror can get.
    pub(super) annotations: Packed,
    /// Without the ports of nodes.
    pub(super) ports: Box<[ServicePort]>,
    /// Whether annotations and ports were left out, because they are [too long](MAX_SERVICE_BYTES).
    pub(super) is_cut: bool,
}

/// An EndpointSlice of the target cluster.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct RemoteSlice {
    pub(super) service: Arc<str>,
    pub(super) is_empty: bool,
    /// Whether it has an endpoint that is ready.
    pub(super) ready: bool,
    /// The endpoints with a host name, of headless Services, and whether they are ready.
    pub(super) hosts: BTreeMap<Arc<str>, bool>,
    /// The ports of the hosts.
    pub(super) ports: Vec<EndpointPort>,
}

/// A Service of this cluster.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum LocalService {
    /// A mirror or a federated Service, by its label.
    Mirror(LocalMirror),
    /// Any other. Its name is in use.
    Other,
}

/// A mirror or a federated Service.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct LocalMirror {
    pub(super) version: Arc<str>,
    /// The cluster of the mirrored Service. A federated Service has none.
    pub(super) cluster: Option<Arc<str>>,
    /// The headless mirror that a host's mirror belongs to.
    pub(super) headless_mirror: Option<Arc<str>>,
    pub(super) headless: bool,
    pub(super) address: Option<IpAddr>,
    pub(super) pairs: Pairs,
    /// The fingerprint of the ports.
    pub(super) ports: u64,
    /// The members of a federated Service in other clusters.
    pub(super) remote_members: Option<Arc<str>>,
    /// The members of a federated Service in this cluster.
    pub(super) local_members: Option<Arc<str>>,
}

/// An Endpoints object with the label of a cluster.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct LocalEndpoints {
    pub(super) version: Arc<str>,
    pub(super) cluster: Arc<str>,
    /// Whether it belongs to a mirror. The ones for probes do not.
    pub(super) of_mirror: bool,
    pub(super) pairs: Pairs,
    /// The fingerprint of addresses and ports.
    pub(super) subsets: u64,
}

/// The fingerprints of labels and annotations, in ascending order.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Pairs(Box<[u64]>);

/// The label of a host's mirror, with the name of the headless mirror.
pub(super) const HEADLESS_MIRROR: &str = "mirror.linkerd.io/headless-mirror-svc-name";

const HEADLESS: &str = "None";

impl Pairs {
    pub(super) fn new(labels: Option<&Labels>, annotations: Option<&Labels>) -> Self {
        let labels = labels.into_iter().flatten();
        let labels = labels.map(|pair| fingerprint(&(false, pair)));
        let annotations = annotations.into_iter().flatten();
        let annotations = annotations.map(|pair| fingerprint(&(true, pair)));
        let pairs: BTreeSet<u64> = labels.chain(annotations).collect();
        Self(pairs.into_iter().collect())
    }

    /// Returns whether an object has these, with any others.
    pub(super) fn include(&self, others: &Self) -> bool {
        others.0.iter().all(|it| self.0.binary_search(it).is_ok())
    }
}

impl RemoteService {
    pub(super) fn new(service: Service) -> Self {
        let meta = service.metadata;
        let spec = service.spec.unwrap_or_default();
        let labels = meta.labels.unwrap_or_default();
        let mut annotations = meta.annotations.unwrap_or_default();
        annotations.retain(|key, _| is_copied(key));
        let ports = spec.ports.unwrap_or_default().into_iter();
        let mut new = Self {
            uid: meta.uid.unwrap_or_default().into(),
            version: meta.resource_version.unwrap_or_default().into(),
            headless: spec.cluster_ip.as_deref() == Some(HEADLESS),
            labels: Packed::new(&labels),
            annotations: Packed::new(&annotations),
            ports: ports.map(without_node_port).collect(),
            is_cut: false,
        };
        if new.size() > MAX_SERVICE_BYTES {
            new.annotations = Packed::default();
            new.ports = Box::default();
            new.is_cut = true;
        }
        new
    }

    /// Returns the length of its texts.
    pub(super) fn size(&self) -> usize {
        let ports = self.ports.iter().map(|port| {
            let name = port.name.as_ref().map_or(0, String::len);
            size_of::<ServicePort>() + name + port.app_protocol.as_ref().map_or(0, String::len)
        });
        self.labels.size() + self.annotations.size() + ports.sum::<usize>()
    }
}

fn without_node_port(port: ServicePort) -> ServicePort {
    ServicePort {
        node_port: None,
        protocol: port.protocol.or_else(|| Some("TCP".to_owned())),
        ..port
    }
}

impl RemoteSlice {
    /// Returns the slice of a Service, with its hosts if they are used; `None` for one that belongs
    /// to none.
    pub(super) fn new(slice: EndpointSlice, has_hosts: bool) -> Option<Self> {
        let labels = slice.metadata.labels.as_ref();
        let service = labels?.get(SERVICE_LABEL)?.as_str().into();
        let mut new = Self {
            service,
            is_empty: slice.endpoints.is_empty(),
            ready: false,
            hosts: BTreeMap::new(),
            ports: Vec::new(),
        };
        for endpoint in slice.endpoints {
            let conditions = endpoint.conditions;
            let ready = conditions.and_then(|it| it.ready).unwrap_or(true);
            new.ready |= ready;
            if let Some(host) = endpoint.hostname.filter(|_| has_hosts) {
                *new.hosts.entry(host.into()).or_default() |= ready;
            }
        }
        if !new.hosts.is_empty() {
            let ports = slice.ports.into_iter().flatten();
            let ports = ports.filter_map(|port| {
                Some(EndpointPort {
                    app_protocol: port.app_protocol,
                    name: port.name.filter(|name| !name.is_empty()),
                    port: port.port?,
                    protocol: port.protocol,
                })
            });
            new.ports = ports.collect();
        }
        Some(new)
    }

    /// Returns the length of its texts.
    pub(super) fn size(&self) -> usize {
        let hosts: usize = self.hosts.keys().map(|host| host.len()).sum();
        self.service.len() + hosts + self.ports.len() * size_of::<EndpointPort>()
    }
}

impl LocalService {
    pub(super) fn new(service: &Service) -> Self {
        let meta = &service.metadata;
        let label = |key: &str| meta.labels.as_ref()?.get(key).map(|it| Arc::from(&**it));
        if label(MIRRORED_SERVICE).as_deref() != Some("true") {
            return Self::Other;
        }
        let annotation = |key: &str| meta_annotation(meta, key).filter(|it| !it.is_empty());
        let spec = service.spec.as_ref();
        let address = spec.and_then(|spec| spec.cluster_ip.as_deref());
        let ports = spec.and_then(|spec| spec.ports.as_deref());
        Self::Mirror(LocalMirror {
            version: version(meta),
            cluster: label(MIRRORED_CLUSTER),
            headless_mirror: label(HEADLESS_MIRROR),
            headless: address == Some(HEADLESS),
            address: address.and_then(|address| address.parse().ok()),
            pairs: pairs(meta),
            ports: ports_fingerprint(ports.unwrap_or_default()),
            remote_members: annotation(REMOTE_DISCOVERY).map(Arc::from),
            local_members: annotation(LOCAL_DISCOVERY).map(Arc::from),
        })
    }

    /// Returns the mirror of a Service of this cluster.
    pub(super) fn mirror_of(&self, cluster: Option<&str>) -> Option<&LocalMirror> {
        match self {
            Self::Mirror(mirror) if mirror.cluster.as_deref() == cluster => Some(mirror),
            _ => None,
        }
    }
}

impl LocalEndpoints {
    /// Returns `None` for Endpoints without the label of a cluster.
    pub(super) fn new(endpoints: &Endpoints) -> Option<Self> {
        let meta = &endpoints.metadata;
        let labels = meta.labels.as_ref()?;
        Some(Self {
            version: version(meta),
            cluster: labels.get(MIRRORED_CLUSTER)?.as_str().into(),
            of_mirror: labels.get(MIRRORED_SERVICE).is_some_and(|it| it == "true"),
            pairs: pairs(meta),
            subsets: subsets_fingerprint(endpoints.subsets.as_deref().unwrap_or_default()),
        })
    }
}

pub(super) fn version(meta: &ObjectMeta) -> Arc<str> {
    meta.resource_version.as_deref().unwrap_or_default().into()
}

fn pairs(meta: &ObjectMeta) -> Pairs {
    Pairs::new(meta.labels.as_ref(), meta.annotations.as_ref())
}

/// Returns a fingerprint of ports without the ports of nodes, which this cluster allocates.
pub(super) fn ports_fingerprint(ports: &[ServicePort]) -> u64 {
    let ports = ports.iter().map(|port| {
        // The API server sets the target to the number of the port.
        let target = match &port.target_port {
            None => port.port.to_string(),
            Some(IntOrString::Int(number)) => number.to_string(),
            Some(IntOrString::String(name)) => name.clone(),
        };
        (
            port.name.as_deref().unwrap_or_default(),
            port.protocol.as_deref().unwrap_or("TCP"),
            port.port,
            target,
            port.app_protocol.as_deref(),
        )
    });
    fingerprint(&ports.collect::<Vec<_>>())
}

/// Returns a fingerprint of addresses and their ports, in any order and any grouping: the API
/// server sorts and groups them.
pub(super) fn subsets_fingerprint(subsets: &[EndpointSubset]) -> u64 {
    let mut all = BTreeSet::new();
    for subset in subsets {
        let (ready, not_ready) = (&subset.addresses, &subset.not_ready_addresses);
        let ready = ready.iter().flatten().map(|address| (true, address));
        let not_ready = not_ready.iter().flatten().map(|address| (false, address));
        for (ready, address) in ready.chain(not_ready) {
            for port in subset.ports.iter().flatten() {
                all.insert((
                    ready,
                    address.ip.as_str(),
                    address.hostname.as_deref().unwrap_or_default(),
                    port.name.as_deref().unwrap_or_default(),
                    port.protocol.as_deref().unwrap_or("TCP"),
                    port.port,
                    port.app_protocol.as_deref(),
                ));
            }
        }
    }
    fingerprint(&all)
}

fn fingerprint(value: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

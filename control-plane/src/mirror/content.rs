//! The contents of mirrors, federated Services and their Endpoints, field by field as in Linkerd.

use std::net::IpAddr;

use mesh_core::annotation::{
    LOCAL_DISCOVERY, MIRRORED_CLUSTER, MIRRORED_SERVICE, REMOTE_DISCOVERY, REMOTE_GATEWAY_IDENTITY,
    REMOTE_SERVICE, REMOTE_SERVICE_FQN,
};
use mesh_k8s::kinds::core::{EndpointAddress, EndpointPort, EndpointSubset, ServicePort};
use mesh_objects::model::{Labels, Name};
use serde_json::{Value, json};

use super::objects::Mirrors;
use super::planned::{Entry, Form, HostGroup, Source};
use super::records::{HEADLESS_MIRROR, LocalService};
use super::target::Target;

/// What a Service should be.
#[derive(Debug)]
pub(super) struct ServiceContent<'a> {
    pub(super) labels: Labels,
    pub(super) annotations: Labels,
    pub(super) ports: &'a [ServicePort],
    pub(super) headless: bool,
}

/// What an Endpoints object should be.
#[derive(Debug)]
pub(super) struct EndpointsContent {
    pub(super) labels: Labels,
    pub(super) annotations: Labels,
    pub(super) subsets: Vec<EndpointSubset>,
}

/// The annotation with the version of the mirrored Service. Users and other controllers may add
/// metadata to a mirror, so a label that its Service has lost would be no difference without it.
const REMOTE_VERSION: &str = "mirror.linkerd.io/remote-resource-version";

const PROBE_PORT: &str = "mc-probe";

impl ServiceContent<'_> {
    pub(super) fn object(&self, name: &Name) -> Value {
        let mut object = json!({
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {
                "name": &*name.name,
                "namespace": &*name.namespace,
                "labels": &self.labels,
                "annotations": &self.annotations,
            },
            "spec": { "ports": self.ports },
        });
        if self.headless {
            object["spec"]["clusterIP"] = "None".into();
        }
        object
    }
}

impl EndpointsContent {
    /// Returns the object. `version` is the one that it replaces.
    pub(super) fn object(&self, name: &Name, version: Option<&str>) -> Value {
        json!({
            "apiVersion": "v1",
            "kind": "Endpoints",
            "metadata": {
                "name": &*name.name,
                "namespace": &*name.namespace,
                "labels": &self.labels,
                "annotations": &self.annotations,
                "resourceVersion": version,
            },
            "subsets": &self.subsets,
        })
    }
}

/// Returns what a mirror should be; `None` for an entry that is none.
pub(super) fn of_service<'a>(target: &Target, entry: &'a Entry) -> Option<ServiceContent<'a>> {
    let cluster = target.cluster.as_deref().unwrap_or_default();
    match entry {
        Entry::Mirror(source, form) => {
            let mut labels = of_mirror(target, source);
            let mut set = |key: &str, value: &str| labels.insert(key.to_owned(), value.to_owned());
            if *form == Form::Discovery {
                set(REMOTE_DISCOVERY, cluster);
                set(REMOTE_SERVICE, &source.name.name);
            }
            let mut annotations = copied_annotations(target, source);
            let fqn = fqn(target, &source.name);
            annotations.insert(REMOTE_SERVICE_FQN.to_owned(), fqn);
            Some(ServiceContent {
                labels,
                annotations,
                ports: &source.service.ports,
                headless: *form == Form::Headless,
            })
        }
        Entry::Host(source, host) => {
            let version = source.service.version.to_string();
            let annotations = [
                (REMOTE_SERVICE_FQN, host_fqn(target, &source.name, host)),
                (REMOTE_VERSION, version),
            ];
            Some(ServiceContent {
                labels: of_host(target, source),
                annotations: owned(annotations),
                ports: &source.service.ports,
                headless: false,
            })
        }
        _ => None,
    }
}

/// Returns what a federated Service should be with these members, if the member owns ports and
/// metadata.
pub(super) fn of_federated<'a>(
    target: &Target,
    source: &'a Source,
    remote_members: &str,
    local_members: &str,
) -> ServiceContent<'a> {
    let mut annotations = copied_annotations(target, source);
    let lists = [
        (REMOTE_DISCOVERY, remote_members),
        (LOCAL_DISCOVERY, local_members),
    ];
    for (key, list) in lists.into_iter().filter(|(_, list)| !list.is_empty()) {
        annotations.insert(key.to_owned(), list.to_owned());
    }
    ServiceContent {
        labels: common_labels(target, source),
        annotations,
        ports: &source.service.ports,
        headless: false,
    }
}

impl Mirrors {
    /// Returns what an Endpoints object should be; `None` for an entry that is none.
    pub(super) fn endpoints_content(
        &self,
        target: &Target,
        entry: &Entry,
    ) -> Option<EndpointsContent> {
        let gateway = target.gateway.as_ref()?;
        let (labels, fqn, subsets) = match entry {
            Entry::MirrorEndpoints(source, ready) => {
                let subsets = ready.then(|| self.gateway_subset(gateway.port, source));
                let fqn = fqn(target, &source.name);
                (of_mirror(target, source), fqn, Vec::from_iter(subsets))
            }
            Entry::HeadlessEndpoints(source, groups) => {
                let subsets = groups.iter();
                let subsets = subsets.filter_map(|group| self.hosts_subset(target, source, group));
                let fqn = fqn(target, &source.name);
                (of_mirror(target, source), fqn, subsets.collect())
            }
            Entry::HostEndpoints(source, host, ready) => {
                let subsets = ready.then(|| self.gateway_subset(gateway.port, source));
                let fqn = host_fqn(target, &source.name, host);
                (of_host(target, source), fqn, Vec::from_iter(subsets))
            }
            Entry::ProbeEndpoints => return Some(self.probe_content(target)),
            _ => return None,
        };
        let mut annotations = owned([(REMOTE_SERVICE_FQN, fqn)]);
        if !gateway.identity.is_empty() {
            annotations.insert(REMOTE_GATEWAY_IDENTITY.to_owned(), gateway.identity.clone());
        }
        Some(EndpointsContent {
            labels,
            annotations,
            subsets,
        })
    }

    /// The probes find out whether the gateway is alive, so their addresses are always ready.
    fn probe_content(&self, target: &Target) -> EndpointsContent {
        let cluster = target.cluster.as_deref().unwrap_or_default();
        let gateway = target.gateway.as_ref();
        let identity = gateway.map(|gateway| gateway.identity.clone());
        let probe = gateway.and_then(|gateway| gateway.probe.as_ref());
        let port = EndpointPort {
            name: Some(PROBE_PORT.to_owned()),
            port: probe.map_or(0, |probe| i32::from(probe.port)),
            protocol: Some("TCP".to_owned()),
            ..EndpointPort::default()
        };
        let subset = EndpointSubset {
            addresses: Some(self.gateway_addresses()),
            ports: Some(vec![port]),
            ..EndpointSubset::default()
        };
        EndpointsContent {
            labels: owned([(MIRRORED_CLUSTER, cluster.to_owned())]),
            annotations: owned([(REMOTE_GATEWAY_IDENTITY, identity.unwrap_or_default())]),
            subsets: vec![subset],
        }
    }

    /// Returns the gateway under the names of a Service's ports.
    fn gateway_subset(&self, port: u16, source: &Source) -> EndpointSubset {
        let ports = source.service.ports.iter().map(|of_service| EndpointPort {
            app_protocol: None,
            name: of_service.name.clone(),
            port: i32::from(port),
            protocol: of_service.protocol.clone(),
        });
        let ports: Vec<EndpointPort> = ports.collect();
        let addresses = self.gateway_addresses();
        if self.gateway.alive {
            subset(addresses, Vec::new(), ports)
        } else {
            subset(Vec::new(), addresses, ports)
        }
    }

    fn gateway_addresses(&self) -> Vec<EndpointAddress> {
        let addresses = self.gateway.addresses.iter().flat_map(|it| it.iter());
        addresses.map(|ip| address(*ip, None)).collect()
    }

    /// Returns the mirrors of hosts, as far as they have addresses.
    fn hosts_subset(
        &self,
        target: &Target,
        source: &Source,
        group: &HostGroup,
    ) -> Option<EndpointSubset> {
        let (mut addresses, mut not_ready) = (Vec::new(), Vec::new());
        for (host, ready) in &group.hosts {
            let local = target.mirror(&Name {
                namespace: source.name.namespace.clone(),
                name: host.clone(),
            });
            let service = self.services.objects.get(&local).map(|it| &**it);
            let Some(LocalService::Mirror(mirror)) = service else {
                continue;
            };
            let of = target.mirror(&source.name);
            if mirror.headless_mirror.as_deref() != Some(&*of.name) {
                continue;
            }
            let Some(ip) = mirror.address else {
                continue;
            };
            let list = if *ready && self.gateway.alive {
                &mut addresses
            } else {
                &mut not_ready
            };
            list.push(address(ip, Some(host.to_string())));
        }
        let is_empty = addresses.is_empty() && not_ready.is_empty();
        (!is_empty).then(|| subset(addresses, not_ready, group.ports.clone()))
    }
}

fn subset(
    ready: Vec<EndpointAddress>,
    not_ready: Vec<EndpointAddress>,
    ports: Vec<EndpointPort>,
) -> EndpointSubset {
    let some = |list: Vec<EndpointAddress>| (!list.is_empty()).then_some(list);
    EndpointSubset {
        addresses: some(ready),
        not_ready_addresses: some(not_ready),
        ports: Some(ports),
    }
}

fn address(ip: IpAddr, hostname: Option<String>) -> EndpointAddress {
    EndpointAddress {
        ip: ip.to_string(),
        hostname,
        ..EndpointAddress::default()
    }
}

fn common_labels(target: &Target, source: &Source) -> Labels {
    let mut labels = target.copied_labels(&source.service.labels);
    labels.insert(MIRRORED_SERVICE.to_owned(), "true".to_owned());
    labels
}

/// Returns the labels of a mirror and its Endpoints.
fn of_mirror(target: &Target, source: &Source) -> Labels {
    let cluster = target.cluster.as_deref().unwrap_or_default();
    let mut labels = common_labels(target, source);
    labels.insert(MIRRORED_CLUSTER.to_owned(), cluster.to_owned());
    labels
}

/// Returns the labels of a host's mirror and its Endpoints.
fn of_host(target: &Target, source: &Source) -> Labels {
    let mut labels = of_mirror(target, source);
    let headless = target.mirror(&source.name).name.to_string();
    labels.insert(HEADLESS_MIRROR.to_owned(), headless);
    labels
}

fn copied_annotations(target: &Target, source: &Source) -> Labels {
    let mut annotations = target.copied_annotations(&source.service.annotations);
    let version = source.service.version.to_string();
    annotations.insert(REMOTE_VERSION.to_owned(), version);
    annotations
}

fn fqn(target: &Target, Name { namespace, name }: &Name) -> String {
    format!("{name}.{namespace}.svc.{}", target.domain)
}

fn host_fqn(target: &Target, service: &Name, host: &str) -> String {
    format!("{host}.{}", fqn(target, service))
}

fn owned<const N: usize>(pairs: [(&str, String); N]) -> Labels {
    pairs.map(|(key, value)| (key.to_owned(), value)).into()
}

//! The slices that a Service should have: a pure function of the Service, the workloads and the
//! slices so far.
//!
//! An endpoint stays in its slice, so that a change of one workload changes one slice. A new
//! endpoint fills a slice with room before there is another one. A slice that is not needed any
//! longer becomes the next one that is, so that a change of the Service's ports leaves no moment
//! without endpoints.

use std::collections::{BTreeMap, HashSet};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::net::IpAddr;
use std::sync::Arc;

use mesh_k8s::select::service_matches;
use mesh_objects::convert::{EXTERNAL_MANAGER, MANAGED_BY_LABEL, SERVICE_LABEL};
use mesh_objects::model::{
    AddressFamily, EndpointPort, ExternalEndpoint, ExternalSlice, Labels, Name, SelectedWorkload,
    SelectingService, TargetPort,
};

/// The most endpoints of a slice, as in Linkerd, and by default in Kubernetes.
pub(super) const MAX_ENDPOINTS: usize = 100;

/// The label of a headless Service's slices.
const HEADLESS_LABEL: &str = "service.kubernetes.io/headless";

/// The slices of a Service so far.
pub(super) struct Slices<'a> {
    /// The names that have a slice, also of others.
    pub(super) names: HashSet<&'a Arc<str>>,
    /// First the ones that exist, then the ones that are still to be written.
    pub(super) contents: Vec<(&'a Arc<str>, &'a ExternalSlice)>,
}

/// The endpoints with the same family and the same ports, by workload.
type Group = BTreeMap<Arc<str>, ExternalEndpoint>;

/// Returns the slices that a Service should have, by name.
pub(super) fn desired_slices<'a>(
    name: &Name,
    service: &SelectingService,
    workloads: impl Iterator<Item = (&'a Arc<str>, &'a SelectedWorkload)>,
    slices: &Slices<'_>,
) -> BTreeMap<Arc<str>, ExternalSlice> {
    let mut groups = groups(service, workloads);
    let content = |family, ports: Vec<EndpointPort>, endpoints| ExternalSlice {
        service: name.name.clone(),
        service_uid: service.uid.clone(),
        labels: labels(name, service),
        family,
        ports,
        endpoints,
    };
    let mut desired = BTreeMap::new();
    let mut unused: Vec<(&Arc<str>, AddressFamily)> = Vec::new();
    for (slice, before) in &slices.contents {
        let key = (before.family, before.ports.clone());
        let group = groups.get_mut(&key);
        let kept = group.map_or_else(Vec::new, |group| keep(before, group));
        let (family, ports) = key;
        if kept.is_empty() {
            unused.push((slice, family));
        } else {
            desired.insert(Arc::clone(slice), content(family, ports, kept));
        }
    }
    for ((family, ports), group) in groups {
        let mut rest = group.into_values();
        let same = desired
            .values_mut()
            .filter(|slice| slice.family == family && slice.ports == ports);
        for slice in same {
            let room = MAX_ENDPOINTS - slice.endpoints.len();
            slice.endpoints.extend(rest.by_ref().take(room));
        }
        loop {
            let endpoints: Vec<_> = rest.by_ref().take(MAX_ENDPOINTS).collect();
            if endpoints.is_empty() {
                break;
            }
            let reused = unused.iter().position(|(_, of)| *of == family);
            let slice = match reused {
                Some(at) => unused.swap_remove(at).0.clone(),
                None => free_name(name, service, family, |slice| {
                    slices.names.contains(slice) || desired.contains_key(slice)
                }),
            };
            desired.insert(slice, content(family, ports.clone(), endpoints));
        }
    }
    desired
}

/// Returns whether an API server accepts an address in an EndpointSlice.
pub(crate) fn is_accepted(ip: IpAddr) -> bool {
    let is_special = ip.is_unspecified() || ip.is_loopback();
    let is_local = match ip {
        IpAddr::V4(ip) => ip.is_link_local() || ip.octets()[..3] == [224, 0, 0],
        IpAddr::V6(ip) => ip.is_unicast_link_local() || ip.segments()[0] & 0xff0f == 0xff02,
    };
    !is_special && !is_local
}

fn groups<'a>(
    service: &SelectingService,
    workloads: impl Iterator<Item = (&'a Arc<str>, &'a SelectedWorkload)>,
) -> BTreeMap<(AddressFamily, Vec<EndpointPort>), Group> {
    let mut groups: BTreeMap<_, Group> = BTreeMap::new();
    for (name, workload) in workloads {
        if !service_matches(Some(&service.selector), Some(&workload.labels)) {
            continue;
        }
        let ports = ports(service, workload);
        for family in &service.families {
            let ips = workload.ips.iter().copied();
            let addresses: Vec<_> = ips
                .filter(|ip| family.contains(*ip) && is_accepted(*ip))
                .collect();
            if addresses.is_empty() {
                continue;
            }
            let endpoint = ExternalEndpoint {
                workload: name.clone(),
                workload_uid: workload.uid.clone(),
                addresses,
                ready: workload.ready,
                hostname: service.headless.then(|| name.clone()),
                zone: workload.zone.clone(),
            };
            let group = groups.entry((*family, ports.clone())).or_default();
            group.insert(name.clone(), endpoint);
        }
    }
    groups
}

/// Returns the ports of the endpoints. A port whose name the workload lacks is left out.
fn ports(service: &SelectingService, workload: &SelectedWorkload) -> Vec<EndpointPort> {
    let ports = service.ports.iter().filter_map(|port| {
        let number = match &port.target {
            TargetPort::Number(number) => *number,
            TargetPort::Name(name) => {
                let mut named = workload.ports.iter();
                let named = named.find(|it| it.name == *name && it.protocol == port.protocol);
                named?.number
            }
        };
        Some(EndpointPort {
            name: port.name.clone(),
            protocol: port.protocol.clone(),
            number,
            app_protocol: port.app_protocol.clone(),
        })
    });
    ports.collect()
}

/// Takes the endpoints that stay in a slice out of their group.
fn keep(slice: &ExternalSlice, group: &mut Group) -> Vec<ExternalEndpoint> {
    let kept = slice.endpoints.iter();
    let kept = kept.filter_map(|endpoint| group.remove(&endpoint.workload));
    kept.take(MAX_ENDPOINTS).collect()
}

fn labels(name: &Name, service: &SelectingService) -> Labels {
    let mut labels = service.labels.clone();
    let mut set = |key: &str, value: &str| labels.insert(key.to_owned(), value.to_owned());
    set(SERVICE_LABEL, &name.name);
    set(MANAGED_BY_LABEL, EXTERNAL_MANAGER);
    if service.headless {
        set(HEADLESS_LABEL, "");
    } else {
        labels.remove(HEADLESS_LABEL);
    }
    labels
}

/// Returns a name that no slice has. It follows from the Service and the slices, so that a write
/// that is repeated, because its response was lost, creates no second slice.
fn free_name(
    name: &Name,
    service: &SelectingService,
    family: AddressFamily,
    is_used: impl Fn(&Arc<str>) -> bool,
) -> Arc<str> {
    let mut number = 0_u32;
    loop {
        let mut hasher = DefaultHasher::new();
        (&service.uid, family, number).hash(&mut hasher);
        let suffix = suffix(hasher.finish());
        let slice = format!("linkerd-external-{}-{suffix}", name.name).into();
        if !is_used(&slice) {
            return slice;
        }
        number += 1;
    }
}

/// Returns five characters, from the alphabet of Kubernetes for generated names, which makes no
/// words.
fn suffix(mut number: u64) -> String {
    const ALPHABET: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
    let characters = std::iter::repeat_with(|| {
        let (rest, digit) = (number / 27, number % 27);
        number = rest;
        char::from(ALPHABET[digit as usize])
    });
    characters.take(5).collect()
}

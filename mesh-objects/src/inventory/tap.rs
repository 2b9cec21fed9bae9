//! Which pods a tap reaches, and which pod has an address. The tap API and the taps of local nodes
//! decide by it, and phrase what they do not find.

use std::net::{IpAddr, SocketAddr};

use mesh_core::identity::{Identity, service_account};
use mesh_core::labels::Labels;
use mesh_core::tap::AddressTable;

use super::Inventory;
use crate::model::{ListedKind, ListedObject, Name, PodDetail, PodPhase, Selector};

/// A pod whose proxy is tapped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TappedPod {
    pub name: Name,
    /// The address of the proxy's tap service.
    pub addr: SocketAddr,
    /// The identity that the proxy must have.
    pub identity: String,
}

/// The parts of the identities and addresses of proxies.
#[derive(Clone, Debug)]
pub struct MeshNames {
    pub control_namespace: String,
    pub trust_domain: String,
    /// The port of the tap service; `None` for the one that the pod's specification has.
    pub tap_port: Option<u16>,
}

/// The pods that a tap reaches, and why it does not reach the others.
#[derive(Clone, Debug, Default)]
pub struct Tappable {
    pub pods: Vec<TappedPod>,
    pub not_running: usize,
    /// The running pods without a proxy of the mesh.
    pub unmeshed: usize,
    pub disabled: usize,
    /// The meshed pods that were created without tap, and must be restarted.
    pub not_enabled: usize,
}

/// Returns the pods of an object that can be tapped, of those with these labels.
pub fn tappable(
    inventory: &Inventory,
    object: &ListedObject,
    selector: &Selector,
    mesh: &MeshNames,
) -> Tappable {
    let mut found = Tappable::default();
    for (object, pod) in inventory.pods(object) {
        if !selector.matches(&object.labels) {
            continue;
        }
        if pod.phase != PodPhase::Running {
            found.not_running += 1;
            continue;
        }
        match tapped(object, pod, mesh) {
            None => found.unmeshed += 1,
            Some(_) if pod.is_tap_disabled => found.disabled += 1,
            Some(_) if !pod.is_tap_enabled => found.not_enabled += 1,
            Some(tapped) => found.pods.push(tapped),
        }
    }
    found
}

/// Returns a meshed pod with an address.
fn tapped(object: &ListedObject, pod: &PodDetail, mesh: &MeshNames) -> Option<TappedPod> {
    if *pod.control_plane_ns != *mesh.control_namespace {
        return None;
    }
    let ip: IpAddr = pod.ip.parse().ok()?;
    let port = mesh.tap_port.or(pod.tap_port)?;
    let identity = service_account(
        &pod.service_account,
        &object.name.namespace,
        &mesh.control_namespace,
        &mesh.trust_domain,
    );
    // A name of Kubernetes is one; a pod from elsewhere may have any.
    Identity::parse(&identity).ok()?;
    Some(TappedPod {
        name: object.name.clone(),
        addr: SocketAddr::new(ip, port),
        identity,
    })
}

/// Describes the running pods.
pub fn addresses(inventory: &Inventory) -> AddressTable {
    let pods = inventory.in_namespace(ListedKind::Pod, "");
    pods.filter_map(|object| {
        let pod = object.pod()?;
        let ip = pod.ip.parse().ok()?;
        (pod.phase == PodPhase::Running).then(|| (ip, labels(inventory, object)))
    })
    .collect()
}

/// Returns the labels of a pod in metrics: its workload, its namespace and itself.
fn labels(inventory: &Inventory, object: &ListedObject) -> Labels {
    let workload = inventory.workload(object);
    [
        ("namespace", &*object.name.namespace),
        ("pod", &*object.name.name),
        (workload.label(), &*workload.name),
    ]
    .into()
}

#[cfg(test)]
mod tests;

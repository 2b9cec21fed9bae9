//! Which pods a tap reaches, and which pod has an address.

use std::net::{IpAddr, SocketAddr};

use mesh_core::identity::{Identity, service_account};
use mesh_core::labels::Labels;
use mesh_core::tap::AddressTable;
use mesh_objects::model::{ListedKind, ListedObject, Name, PodDetail, PodPhase, Selector};
use tonic::Status;

use super::request::TapQuery;
use crate::inventory::Inventory;

/// A pod whose proxy is tapped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TappedPod {
    pub(crate) name: Name,
    /// The address of the proxy's tap service.
    pub(crate) addr: SocketAddr,
    /// The identity that the proxy must have.
    pub(crate) identity: String,
}

/// The parts of the identities and addresses of proxies.
#[derive(Clone, Debug)]
pub(crate) struct MeshNames {
    pub(crate) control_namespace: String,
    pub(crate) trust_domain: String,
    /// The port of the tap service.
    pub(crate) tap_port: u16,
}

/// Pods that one tap reaches. Each has a connection and a share of the requests.
const MAX_PODS: usize = 1_000;

/// Returns the pods of a query's target that can be tapped.
pub(crate) fn tappable(
    inventory: &Inventory,
    query: &TapQuery,
    selector: &Selector,
    mesh: &MeshNames,
) -> Result<Vec<TappedPod>, Status> {
    let target = &query.target;
    let name = match target.kind {
        ListedKind::Namespace => Name::new("", &target.namespace),
        _ => Name::new(&target.namespace, &target.name),
    };
    let object = inventory
        .get(target.kind, &name)
        .ok_or_else(|| Status::not_found(format!("there is no {target}")))?;
    let mut found = Vec::new();
    let (mut not_enabled, mut disabled) = (0, 0);
    for (object, pod) in inventory.pods(object) {
        let is_member = *pod.control_plane_ns == *mesh.control_namespace;
        if pod.phase != PodPhase::Running || !is_member || !selector.matches(&object.labels) {
            continue;
        }
        match (pod.is_tap_disabled, pod.is_tap_enabled) {
            (true, _) => disabled += 1,
            (false, false) => not_enabled += 1,
            (false, true) => found.extend(tapped(object, pod, mesh)),
        }
    }
    if found.is_empty() {
        return Err(Status::not_found(format!(
            "no pods to tap for {target}: {not_enabled} meshed pods were created without tap and must be restarted, {disabled} have tap disabled"
        )));
    }
    if found.len() > MAX_PODS {
        return Err(Status::resource_exhausted(format!(
            "{target} has {} pods to tap; expected at most {MAX_PODS}: select some by label",
            found.len()
        )));
    }
    Ok(found)
}

fn tapped(object: &ListedObject, pod: &PodDetail, mesh: &MeshNames) -> Option<TappedPod> {
    let ip: IpAddr = pod.ip.parse().ok()?;
    let account = match &*pod.service_account {
        "" => "default",
        account => account,
    };
    let identity = service_account(
        account,
        &object.name.namespace,
        &mesh.control_namespace,
        &mesh.trust_domain,
    );
    // A name of Kubernetes is one; a pod from elsewhere may have any.
    Identity::parse(&identity).ok()?;
    Some(TappedPod {
        name: object.name.clone(),
        addr: SocketAddr::new(ip, mesh.tap_port),
        identity,
    })
}

/// Describes the running pods.
pub(crate) fn addresses(inventory: &Inventory) -> AddressTable {
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
pub(super) mod tests {
    use mesh_core::tap::TapFilter;
    use tonic::Code;

    use super::super::request::Target;
    use super::*;

    const WORKLOADS: &str = "
{apiVersion: v1, kind: Namespace, metadata: {name: shop}}
---
{apiVersion: apps/v1, kind: Deployment, metadata: {name: web, namespace: shop}}
---
apiVersion: apps/v1
kind: ReplicaSet
metadata: {name: web-1, namespace: shop, ownerReferences: [{apiVersion: apps/v1, kind: Deployment, name: web, uid: a}]}
---
{apiVersion: v1, kind: Service, metadata: {name: web, namespace: shop}, spec: {selector: {app: web}}}
";

    pub(in crate::tap) fn pod(name: &str, ip: &str, annotation: &str, phase: &str) -> String {
        format!(
            "---\napiVersion: v1\nkind: Pod\nmetadata:\n  name: {name}\n  namespace: shop\n  labels: {{app: web, name: {name}, linkerd.io/control-plane-ns: linkerd}}\n  annotations: {{{annotation}}}\n  ownerReferences: [{{apiVersion: apps/v1, kind: ReplicaSet, name: web-1, uid: b}}]\nspec: {{containers: [], serviceAccountName: web}}\nstatus: {{phase: {phase}, podIP: {ip}}}\n"
        )
    }

    pub(in crate::tap) const ENABLED: &str = "viz.linkerd.io/tap-enabled: \"true\"";

    /// Returns a Deployment `web` in namespace `shop` with the pods.
    pub(in crate::tap) fn inventory(pods: &[String]) -> Inventory {
        Inventory::of_manifests(&format!("{WORKLOADS}{}", pods.concat()))
    }

    fn query(kind: ListedKind, name: &str) -> TapQuery {
        TapQuery {
            target: Target {
                kind,
                namespace: "shop".to_owned(),
                name: name.to_owned(),
            },
            label_selector: String::new(),
            filter: TapFilter::All(Vec::new()),
            with_headers: false,
            max_rps: 100.0,
        }
    }

    fn find(inventory: &Inventory, query: &TapQuery) -> Result<Vec<TappedPod>, Status> {
        let mesh = MeshNames {
            control_namespace: "linkerd".to_owned(),
            trust_domain: "cluster.local".to_owned(),
            tap_port: 4190,
        };
        tappable(inventory, query, &Selector::default(), &mesh)
    }

    #[test]
    fn pods_of_each_kind_of_target_are_found() {
        let inventory = inventory(&[
            pod("web-1-a", "10.0.0.1", ENABLED, "Running"),
            pod("web-1-b", "10.0.0.2", ENABLED, "Pending"),
        ]);
        for (kind, name) in [
            (ListedKind::Namespace, ""),
            (ListedKind::Deployment, "web"),
            (ListedKind::ReplicaSet, "web-1"),
            (ListedKind::Service, "web"),
            (ListedKind::Pod, "web-1-a"),
        ] {
            let pods = find(&inventory, &query(kind, name)).unwrap();
            let expected = TappedPod {
                name: Name::new("shop", "web-1-a"),
                addr: "10.0.0.1:4190".parse().unwrap(),
                identity: "web.shop.serviceaccount.identity.linkerd.cluster.local".to_owned(),
            };
            assert_eq!(pods, [expected], "{kind:?}");
        }
        let missing = find(&inventory, &query(ListedKind::StatefulSet, "web")).unwrap_err();
        assert_eq!(missing.code(), Code::NotFound);
        assert!(
            missing.message().contains("there is no statefulsets/web"),
            "{missing}"
        );
    }

    #[test]
    fn pods_that_cannot_be_tapped_are_counted_in_the_error() {
        let disabled = "viz.linkerd.io/tap-enabled: \"true\", viz.linkerd.io/disable-tap: \"1\"";
        let inventory = inventory(&[
            pod("web-1-a", "10.0.0.1", "", "Running"),
            pod("web-1-b", "10.0.0.2", "", "Running"),
            pod("web-1-c", "10.0.0.3", disabled, "Running"),
        ]);
        let error = find(&inventory, &query(ListedKind::Deployment, "web")).unwrap_err();
        assert_eq!(error.code(), Code::NotFound);
        assert!(
            error
                .message()
                .contains("2 meshed pods were created without tap"),
            "{error}"
        );
        assert!(error.message().contains("1 have tap disabled"), "{error}");
    }

    #[test]
    fn pods_of_one_tap_are_bounded() {
        let pods =
            (0..=MAX_PODS).map(|n| pod(&format!("web-1-{n}"), "10.0.0.1", ENABLED, "Running"));
        let inventory = inventory(&pods.collect::<Vec<_>>());
        let error = find(&inventory, &query(ListedKind::Deployment, "web")).unwrap_err();
        assert_eq!(error.code(), Code::ResourceExhausted);
        assert!(error.message().contains("select some by label"), "{error}");
    }

    #[test]
    fn addresses_of_one_running_pod_have_labels() {
        let inventory = inventory(&[
            pod("web-1-a", "10.0.0.1", "", "Running"),
            pod("web-1-b", "10.0.0.2", "", "Running"),
            // On the network of the same node.
            pod("web-1-c", "10.0.0.2", "", "Running"),
            pod("web-1-d", "10.0.0.1", "", "Succeeded"),
        ]);
        let table = addresses(&inventory);
        let labels = table.labels("10.0.0.1".parse().unwrap());
        let expected = [
            ("deployment", "web"),
            ("namespace", "shop"),
            ("pod", "web-1-a"),
        ];
        assert_eq!(labels, Some(&expected.into()));
        assert_eq!(table.labels("10.0.0.2".parse().unwrap()), None);
        assert_eq!(table.labels("10.0.0.9".parse().unwrap()), None);
    }
}

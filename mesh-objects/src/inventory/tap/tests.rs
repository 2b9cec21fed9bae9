//! Selections from the objects of a mesh.

use super::super::tests::of_manifests;
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

fn pod(name: &str, ip: &str, annotation: &str, phase: &str) -> String {
    format!(
        "---\napiVersion: v1\nkind: Pod\nmetadata:\n  name: {name}\n  namespace: shop\n  labels: {{app: web, name: {name}, linkerd.io/control-plane-ns: linkerd}}\n  annotations: {{{annotation}}}\n  ownerReferences: [{{apiVersion: apps/v1, kind: ReplicaSet, name: web-1, uid: b}}]\nspec: {{containers: [], serviceAccountName: web}}\nstatus: {{phase: {phase}, podIP: {ip}}}\n"
    )
}

const ENABLED: &str = "viz.linkerd.io/tap-enabled: \"true\"";

/// Returns a Deployment `web` in namespace `shop` with the pods.
fn inventory(pods: &[String]) -> Inventory {
    of_manifests(&format!("{WORKLOADS}{}", pods.concat()))
}

/// Selects with the port of the tap service, or with the ports of the pods.
fn find(inventory: &Inventory, kind: ListedKind, name: &str, tap_port: Option<u16>) -> Tappable {
    let mesh = MeshNames {
        control_namespace: "linkerd".to_owned(),
        trust_domain: "cluster.local".to_owned(),
        tap_port,
    };
    let name = match kind {
        ListedKind::Namespace => Name::new("", name),
        _ => Name::new("shop", name),
    };
    let object = inventory.get(kind, &name).unwrap();
    tappable(inventory, object, &Selector::default(), &mesh)
}

#[test]
fn pods_of_each_kind_of_target_are_found() {
    let inventory = inventory(&[
        pod("web-1-a", "10.0.0.1", ENABLED, "Running"),
        pod("web-1-b", "10.0.0.2", ENABLED, "Pending"),
    ]);
    for (kind, name) in [
        (ListedKind::Namespace, "shop"),
        (ListedKind::Deployment, "web"),
        (ListedKind::ReplicaSet, "web-1"),
        (ListedKind::Service, "web"),
        (ListedKind::Pod, "web-1-a"),
    ] {
        let found = find(&inventory, kind, name, Some(4190));
        let expected = TappedPod {
            name: Name::new("shop", "web-1-a"),
            addr: "10.0.0.1:4190".parse().unwrap(),
            identity: "web.shop.serviceaccount.identity.linkerd.cluster.local".to_owned(),
        };
        assert_eq!(found.pods, [expected], "{kind:?}");
    }
}

#[test]
fn pods_that_are_not_tapped_are_counted_by_their_reason() {
    let disabled = "viz.linkerd.io/tap-enabled: \"true\", viz.linkerd.io/disable-tap: \"1\"";
    let other = pod("web-1-e", "10.0.0.5", ENABLED, "Running")
        .replace("control-plane-ns: linkerd", "control-plane-ns: other");
    let inventory = inventory(&[
        pod("web-1-a", "10.0.0.1", "", "Running"),
        pod("web-1-b", "10.0.0.2", "", "Running"),
        pod("web-1-c", "10.0.0.3", disabled, "Running"),
        pod("web-1-d", "10.0.0.4", ENABLED, "Succeeded"),
        other,
    ]);
    let found = find(&inventory, ListedKind::Deployment, "web", Some(4190));
    assert_eq!(found.pods, []);
    let left_out = (found.not_enabled, found.disabled, found.not_running);
    assert_eq!((left_out, found.unmeshed), ((2, 1, 1), 1));
}

#[test]
fn pod_without_a_proxy_has_no_port_of_its_own() {
    let inventory = inventory(&[pod("web-1-a", "10.0.0.1", ENABLED, "Running")]);
    let found = find(&inventory, ListedKind::Pod, "web-1-a", None);
    assert_eq!((found.pods.len(), found.unmeshed), (0, 1));
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

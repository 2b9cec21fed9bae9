//! The pods of a query, or why there are none.

use mesh_objects::inventory::Inventory;
use mesh_objects::inventory::tap::{self, MeshNames, TappedPod};
use mesh_objects::model::{ListedKind, Name, Selector};
use tonic::Status;

use super::request::TapQuery;

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
    let found = tap::tappable(inventory, object, selector, mesh);
    let (not_enabled, disabled) = (found.not_enabled, found.disabled);
    let pods = found.pods;
    if pods.is_empty() {
        return Err(Status::not_found(format!(
            "no pods to tap for {target}: {not_enabled} meshed pods were created without tap and must be restarted, {disabled} have tap disabled"
        )));
    }
    if pods.len() > MAX_PODS {
        return Err(Status::resource_exhausted(format!(
            "{target} has {} pods to tap; expected at most {MAX_PODS}: select some by label",
            pods.len()
        )));
    }
    Ok(pods)
}

#[cfg(test)]
pub(super) mod tests {
    use mesh_core::tap::TapFilter;
    use tonic::Code;

    use super::super::request::Target;
    use super::*;
    use crate::inventory::tests::of_manifests;

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
        of_manifests(&format!("{WORKLOADS}{}", pods.concat()))
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
            tap_port: Some(4190),
        };
        tappable(inventory, query, &Selector::default(), &mesh)
    }

    #[test]
    fn missing_target_is_named() {
        let inventory = inventory(&[pod("web-1-a", "10.0.0.1", ENABLED, "Running")]);
        let found = find(&inventory, &query(ListedKind::Deployment, "web")).unwrap();
        assert_eq!(found.len(), 1);
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
}

//! Selections from the objects of a node.

use crate::resource::Resource;

use super::*;

fn pod(name: &str, ip: &str, annotation: &str, phase: &str) -> Value {
    let env: String = ["INBOUND:4143", "CONTROL:4190", "ADMIN:4191"]
        .iter()
        .filter_map(|port| port.split_once(':'))
        .map(|(name, port)| {
            format!("{{name: LINKERD2_PROXY_{name}_LISTEN_ADDR, value: '0.0.0.0:{port}'}}, ")
        })
        .collect();
    let text = format!(
        "
metadata:
  name: {name}
  namespace: shop
  labels: {{app: web, name: {name}, linkerd.io/control-plane-ns: linkerd}}
  annotations: {{{annotation}}}
  ownerReferences: [{{apiVersion: apps/v1, kind: ReplicaSet, name: web-1, uid: b}}]
spec:
  serviceAccountName: web
  containers: [{{name: linkerd-proxy, env: [{env}]}}]
status: {{phase: {phase}, podIP: {ip}}}
"
    );
    serde_norway::from_str(&text).unwrap()
}

const ENABLED: &str = "viz.linkerd.io/tap-enabled: 'true'";

fn inventory(pods: Vec<Value>) -> Inventory {
    let set = "{metadata: {name: web-1, namespace: shop, ownerReferences: [{apiVersion: apps/v1, kind: Deployment, name: web, uid: a}]}}";
    let service = "{metadata: {name: front, namespace: shop}, spec: {selector: {app: web}}}";
    let set = (ListedKind::ReplicaSet, serde_norway::from_str(set).unwrap());
    let service = (
        ListedKind::Service,
        serde_norway::from_str(service).unwrap(),
    );
    let pods = pods.into_iter().map(|pod| (ListedKind::Pod, pod));
    let mut inventory = Inventory::new();
    for (kind, json) in pods.chain([set, service]) {
        inventory.insert(convert::listed_object(kind, json).unwrap());
    }
    inventory
}

fn query(target: &str, namespace: &str) -> TapQuery {
    TapQuery::new(&Resource::parse(target).unwrap(), namespace).unwrap()
}

fn names(pods: &[TappedPod]) -> Vec<&str> {
    pods.iter().map(|pod| &*pod.name.name).collect()
}

#[test]
fn pods_of_each_kind_of_target_are_found() {
    let inventory = inventory(vec![
        pod("web-1-a", "10.0.0.1", ENABLED, "Running"),
        pod("web-1-b", "10.0.0.2", ENABLED, "Pending"),
    ]);
    for target in [
        "ns/shop",
        "deploy/web",
        "rs/web-1",
        "svc/front",
        "po/web-1-a",
    ] {
        let pods = select(&inventory, &query(target, "shop")).unwrap();
        let expected = TappedPod {
            name: Name::new("shop", "web-1-a"),
            addr: "10.0.0.1:4190".parse().unwrap(),
            identity: "web.shop.serviceaccount.identity.linkerd.cluster.local".to_owned(),
        };
        assert_eq!(pods, [expected], "{target}");
    }
}

#[test]
fn labels_select_among_the_pods() {
    let inventory = inventory(vec![
        pod("web-1-a", "10.0.0.1", ENABLED, "Running"),
        pod("web-1-b", "10.0.0.2", ENABLED, "Running"),
    ]);
    let mut query = query("deploy/web", "shop");
    query.selector = "name in (web-1-b)".to_owned();
    assert_eq!(names(&select(&inventory, &query).unwrap()), ["web-1-b"]);
    query.selector = "name in web".to_owned();
    let error = select(&inventory, &query).unwrap_err().to_string();
    assert!(error.contains("invalid label selector"), "{error}");
}

#[test]
fn error_names_the_namespace_or_the_reasons() {
    let disabled = format!("{ENABLED}, viz.linkerd.io/disable-tap: 'true'");
    let mut unmeshed = pod("web-1-d", "10.0.0.4", "", "Running");
    unmeshed["spec"]["containers"] = Value::Array(Vec::new());
    let inventory = inventory(vec![
        pod("web-1-a", "10.0.0.1", "", "Running"),
        pod("web-1-b", "10.0.0.2", &disabled, "Running"),
        pod("web-1-c", "10.0.0.3", ENABLED, "Succeeded"),
        unmeshed,
    ]);
    for (target, namespace, problem) in [
        ("deploy/web", "default", "in shop: select it with -n"),
        ("deploy/gone", "shop", "no pods of deployment/gone"),
        ("ns/gone", "shop", "no pods of namespace gone"),
        (
            "deploy/web",
            "shop",
            "of its 4 pods, 1 are not running, 1 are not in the mesh, 1 have tap disabled, and 1 were created without tap",
        ),
    ] {
        let error = select(&inventory, &query(target, namespace)).unwrap_err();
        assert!(error.to_string().contains(problem), "{target}: {error}");
    }
}

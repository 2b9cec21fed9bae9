//! The objects that `linkerd multicluster check` and `gateways` look for, by name and label. They
//! report a link that works as broken if one of them is missing.

use serde_json::Value;

use crate::helm;

const CLUSTER: &str = "mirror.linkerd.io/cluster-name";
const COMPONENT: &str = "component";
const GATEWAY: &str = "mirror.linkerd.io/mirrored-gateway";

/// The names in a chart, and the labels `component` of its objects and pods.
struct Names {
    account: &'static str,
    role: &'static str,
    cluster_role: &'static str,
    binding: &'static str,
    component: &'static str,
    of_pods: &'static str,
}

const EXTENSION: Names = Names {
    account: "controller-target",
    role: "controller-read-remote-creds-target",
    cluster_role: "linkerd-multicluster-controller-access-local-resources",
    binding: "linkerd-multicluster-controller-access-local-resources-target",
    component: "controller",
    of_pods: "controller",
};

const LINK: Names = Names {
    account: "linkerd-service-mirror-target",
    role: "linkerd-service-mirror-read-remote-creds-target",
    cluster_role: "linkerd-service-mirror-access-local-resources-target",
    binding: "linkerd-service-mirror-access-local-resources-target",
    component: "service-mirror",
    of_pods: "linkerd-service-mirror",
};

#[test]
fn objects_of_service_mirrors_are_found_by_linkerds_check() {
    require_helm!("objects_of_service_mirrors_are_found_by_linkerds_check");
    let values = "controllers: [{link: {ref: {name: target}}}]";
    expect(&helm::multicluster(values).unwrap(), &EXTENSION);
    expect(&helm::multicluster_link("{}").unwrap(), &LINK);
}

fn expect(objects: &[Value], names: &Names) {
    let cluster_role = helm::find(objects, "ClusterRole", names.cluster_role);
    assert_eq!(label(cluster_role, COMPONENT), names.component);
    for (kind, name) in [
        ("ServiceAccount", names.account),
        ("Role", names.role),
        ("RoleBinding", names.role),
        ("ClusterRoleBinding", names.binding),
    ] {
        let object = helm::find(objects, kind, name);
        let labels = (label(object, COMPONENT), label(object, CLUSTER));
        assert_eq!(labels, (names.component, "target"), "{kind} {name}");
    }
    let of_target = |kind: &str| {
        let all = objects.iter().filter(|it| it["kind"] == kind);
        let found = all.filter(|it| label(it, CLUSTER) == "target");
        found.collect::<Vec<&Value>>()
    };
    let [deployment] = of_target("Deployment")[..] else {
        panic!("not one Deployment");
    };
    assert_eq!(label(deployment, COMPONENT), names.component);
    let pod = &deployment["spec"]["template"];
    let labels = (label(pod, COMPONENT), label(pod, CLUSTER));
    assert_eq!(labels, (names.of_pods, "target"));
    let [probe] = of_target("Service")[..] else {
        panic!("not one Service");
    };
    assert_eq!(label(probe, GATEWAY), "true");
}

fn label<'a>(object: &'a Value, key: &str) -> &'a str {
    let labels = &object["metadata"]["labels"];
    labels[key].as_str().unwrap_or_default()
}

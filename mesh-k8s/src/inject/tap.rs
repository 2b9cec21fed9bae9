//! The pod patch of the tap injector: which proxies may be observed, and by whom.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, EnvVar, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::InjectError;
use super::patch::{Operations, Patch};
use crate::pod::{PROXY_CONTAINER, is_annotated};

/// Written by the tap injector: the proxy of the pod has a tap service.
pub const TAP_ENABLED: &str = "viz.linkerd.io/tap-enabled";
/// `true` on a pod or a namespace: the tap injector leaves the pods alone.
pub const DISABLE_TAP: &str = "viz.linkerd.io/disable-tap";

/// The variable with the only client identity that the proxy's tap service serves.
const TAP_SVC_NAME: &str = "LINKERD2_PROXY_TAP_SVC_NAME";

/// Returns the patch that lets `observer`, an identity, tap the proxy of a pod. It is empty for a
/// pod without a proxy, for a pod that has been patched, and if the pod or its namespace disables
/// tap.
///
/// # Errors
///
/// The variable cannot be serialized.
pub fn tap_patch(namespace: &ObjectMeta, pod: &Pod, observer: &str) -> Result<Patch, InjectError> {
    let mut operations = Operations::default();
    let metas = [namespace, &pod.metadata];
    let annotations = pod.metadata.annotations.as_ref();
    let is_patched = annotations.is_some_and(|annotations| annotations.contains_key(TAP_ENABLED));
    if is_patched
        || metas
            .into_iter()
            .any(|meta| is_annotated(meta, DISABLE_TAP))
    {
        return Ok(operations.finish());
    }
    let Some((list, index, proxy)) = find_proxy(pod) else {
        return Ok(operations.finish());
    };
    let index = index.to_string();
    let variable = EnvVar {
        name: TAP_SVC_NAME.to_owned(),
        value: Some(observer.to_owned()),
        value_from: None,
    };
    operations.ensure_list(&["spec", list, &index, "env"], proxy.env.is_some());
    operations.add(
        &["spec", list, &index, "env", "-"],
        "variable of tap",
        &variable,
    )?;
    let enabled = BTreeMap::from([(TAP_ENABLED.to_owned(), "true".to_owned())]);
    operations.metadata_entries("annotations", annotations, enabled);
    Ok(operations.finish())
}

/// Returns the list and the position of the proxy, which may be a native sidecar.
fn find_proxy(pod: &Pod) -> Option<(&'static str, usize, &Container)> {
    let spec = pod.spec.as_ref()?;
    let init = spec.init_containers.as_deref().unwrap_or_default();
    let lists = [
        ("containers", &spec.containers[..]),
        ("initContainers", init),
    ];
    lists.into_iter().find_map(|(list, containers)| {
        let mut numbered = containers.iter().enumerate();
        let (index, proxy) = numbered.find(|(_, it)| it.name == PROXY_CONTAINER)?;
        Some((list, index, proxy))
    })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const OBSERVER: &str = "tap.linkerd-viz.serviceaccount.identity.linkerd.cluster.local";

    /// Returns the patched pod; `None` if the patch is empty.
    fn patched(namespace: &Value, pod: &Value) -> Option<Value> {
        let namespace: ObjectMeta = serde_json::from_value(namespace.clone()).unwrap();
        let typed: Pod = serde_json::from_value(pod.clone()).unwrap();
        let patch = tap_patch(&namespace, &typed, OBSERVER).unwrap();
        let mut patched = pod.clone();
        patch.apply(&mut patched).unwrap();
        (!patch.is_empty()).then_some(patched)
    }

    fn pod(list: &str, annotations: &Value) -> Value {
        let containers = json!([
            {"name": "app"},
            {"name": "linkerd-proxy", "env": [{"name": "A", "value": "b"}]},
        ]);
        let mut pod = json!({"metadata": {}, "spec": {"containers": [{"name": "app"}]}});
        pod["spec"][list] = containers;
        if !annotations.is_null() {
            pod["metadata"]["annotations"] = annotations.clone();
        }
        pod
    }

    #[test]
    fn proxy_gets_the_observer_and_the_pod_the_annotation() {
        for list in ["containers", "initContainers"] {
            for annotations in [Value::Null, json!({"a": "b"})] {
                let pod = patched(&json!({}), &pod(list, &annotations)).unwrap();
                let env = &pod["spec"][list][1]["env"];
                assert_eq!(env[0]["name"], "A");
                assert_eq!(env[1], json!({"name": TAP_SVC_NAME, "value": OBSERVER}));
                assert_eq!(pod["metadata"]["annotations"][TAP_ENABLED], "true");
                assert_eq!(pod["metadata"]["annotations"]["a"], annotations["a"]);
            }
        }
    }

    #[test]
    fn proxy_without_variables_gets_a_list() {
        let pod = json!({"spec": {"containers": [{"name": "linkerd-proxy"}]}});
        let mut with_metadata = pod;
        with_metadata["metadata"] = json!({});
        let pod = patched(&json!({}), &with_metadata).unwrap();
        assert_eq!(pod["spec"]["containers"][0]["env"][0]["value"], OBSERVER);
    }

    #[test]
    fn pods_that_are_left_alone() {
        let none = Value::Null;
        let disabled = |value: &str| json!({ DISABLE_TAP: value });
        let namespace = |value: &str| json!({"annotations": disabled(value)});
        let unmeshed = json!({"metadata": {}, "spec": {"containers": [{"name": "app"}]}});
        let table = [
            (json!({}), unmeshed, false),
            (
                json!({}),
                pod("containers", &json!({TAP_ENABLED: "true"})),
                false,
            ),
            (json!({}), pod("containers", &disabled("true")), false),
            (json!({}), pod("containers", &disabled("T")), false),
            (json!({}), pod("containers", &disabled("yes")), true),
            (namespace("true"), pod("containers", &none), false),
            (namespace("false"), pod("containers", &none), true),
        ];
        for (namespace, pod, expected) in table {
            assert_eq!(
                patched(&namespace, &pod).is_some(),
                expected,
                "{namespace} {pod}"
            );
        }
    }
}

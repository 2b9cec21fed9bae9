//! The settings that proxies of a machine outside Kubernetes and of pods share: `meshctl machine
//! admit` gives them to the machine (docs/adr/0230).

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::PodSpec;
use mesh_core::machine::{MeshSettings, ServiceAddress};

use super::env::{self, EnvInputs};
use super::{Annotations, InjectError};
use crate::values::{Values, non_empty};

/// Variables about the pod or its container; the agent of the machine sets its own.
const OF_THE_POD: [&str; 17] = [
    "LINKERD2_PROXY_ADMIN_LISTEN_ADDR",
    "LINKERD2_PROXY_CONTROL_LISTEN_ADDR",
    "LINKERD2_PROXY_DESTINATION_CONTEXT",
    "LINKERD2_PROXY_IDENTITY_DIR",
    "LINKERD2_PROXY_IDENTITY_LOCAL_NAME",
    "LINKERD2_PROXY_IDENTITY_TOKEN_FILE",
    "LINKERD2_PROXY_IDENTITY_TRUST_ANCHORS",
    "LINKERD2_PROXY_INBOUND_IPS",
    "LINKERD2_PROXY_INBOUND_LISTEN_ADDR",
    "LINKERD2_PROXY_INBOUND_PORTS",
    "LINKERD2_PROXY_OUTBOUND_LISTEN_ADDR",
    "LINKERD2_PROXY_OUTBOUND_LISTEN_ADDRS",
    "LINKERD2_PROXY_POLICY_WORKLOAD",
    "LINKERD2_PROXY_SHUTDOWN_ENDPOINT_ENABLED",
    "LINKERD2_PROXY_TRACE_ATTRIBUTES_PATH",
    "LINKERD2_PROXY_TRACE_EXTRA_ATTRIBUTES",
    "MESH_PROXY_REDIRECT_CHECK",
];

/// Returns the settings of a mesh for a machine. The addresses of its services are those of pods.
///
/// # Errors
///
/// Invalid values, as [`patch`](super::patch) reports them.
pub fn machine_settings(values: &Values, anchors: &str) -> Result<MeshSettings, InjectError> {
    let inputs = EnvInputs {
        values,
        spec: &PodSpec::default(),
        component: None,
        opaque_ports: non_empty(&values.proxy.opaque_ports).map(str::to_owned),
        trace_attributes: Annotations::new(),
    };
    let mut variables = BTreeMap::new();
    for variable in env::proxy(&inputs)? {
        if let Some(value) = variable.value {
            variables.insert(variable.name, value);
        }
    }
    let mut take = |name: &str| {
        let variable = variables.remove(&format!("LINKERD2_PROXY_{name}"));
        variable.unwrap_or_default()
    };
    let mut service = |name: &str| ServiceAddress {
        address: take(&format!("{name}_SVC_ADDR")),
        name: take(&format!("{name}_SVC_NAME")),
    };
    let [identity, destination, policy] = ["IDENTITY", "DESTINATION", "POLICY"].map(&mut service);
    let is_of_proxy =
        |name: &str| name.starts_with("LINKERD2_PROXY_") || name.starts_with("MESH_PROXY_");
    variables.retain(|name, _| is_of_proxy(name) && !OF_THE_POD.contains(&name.as_str()));
    Ok(MeshSettings {
        control_plane_namespace: values.namespace.clone(),
        trust_domain: values.trust_domain().to_owned(),
        identity,
        destination,
        policy,
        trust_anchors: anchors.to_owned(),
        proxy_environment: variables,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_those_of_pods_without_what_is_about_the_pod() {
        let mut values = Values::default();
        values.proxy.default_inbound_policy = "all-authenticated".to_owned();
        values.proxy.tracing.enabled = true;
        values.proxy.tracing.collector.endpoint = "collector.example:4317".to_owned();
        let settings = machine_settings(&values, "PEM").unwrap();
        assert_eq!(
            settings.identity,
            ServiceAddress {
                address: "linkerd-identity-headless.linkerd.svc.cluster.local.:8080".to_owned(),
                name: "linkerd-identity.linkerd.serviceaccount.identity.linkerd.cluster.local"
                    .to_owned(),
            }
        );
        assert!(
            settings
                .destination
                .address
                .starts_with("linkerd-dst-headless.")
        );
        assert!(settings.policy.address.ends_with(":8090"));
        assert_eq!(settings.policy.name, settings.destination.name);
        let variables = &settings.proxy_environment;
        for (name, value) in [
            ("INBOUND_DEFAULT_POLICY", "all-authenticated"),
            ("DESTINATION_PROFILE_SUFFIXES", "svc.cluster.local."),
            ("TRACE_COLLECTOR_SVC_ADDR", "collector.example:4317"),
            ("CONTROL_STREAM_LIFETIME", "1h"),
        ] {
            let found = variables.get(&format!("LINKERD2_PROXY_{name}"));
            assert_eq!(found.map(String::as_str), Some(value), "{name}");
        }
        // A value that refers to another variable is about the pod.
        let refers = |value: &String| value.contains("$(");
        assert!(!variables.values().any(refers), "{variables:#?}");
        let listens = |name: &String| name.contains("_LISTEN_ADDR") || name.contains("_pod");
        assert!(!variables.keys().any(listens), "{variables:#?}");
    }
}

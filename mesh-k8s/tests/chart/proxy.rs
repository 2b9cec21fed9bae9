//! Compares the proxies that the chart renders into the control plane's own pods with those that
//! the injector would add.

use mesh_k8s::inject::{self, Values};
use mesh_k8s::kinds::{ObjectMeta, Pod};
use mesh_k8s::pod::owner::Owner;
use serde_json::{Value, json};

use crate::helm;

/// Sets of values that change the proxies, each rendered alone.
const CASES: [&str; 16] = [
    "{}",
    "{clusterDomain: example.org, identityTrustDomain: '', proxy: {image: null, inbound: {server: null}}}",
    "disableIPv6: false",
    "refuseIPv6: true",
    "{meshAgent: {enabled: false}, refuseIPv6: true}",
    "meshAgent: {enabled: false}",
    "{meshAgent: {enabled: false}, cniEnabled: true}",
    "{meshAgent: {enabled: false}, proxyInit: {iptablesMode: legacy, ignoreInboundPorts: '25', skipSubnets: 10.1.0.0/16, closeWaitTimeoutSecs: 5, runAsRoot: true, logLevel: debug, logFormat: json}, proxy: {gid: 7}}",
    "{meshAgent: {enabled: false}, cniEnabled: true, networkValidator: {connectAddr: '192.0.2.9:1', listenAddr: '0.0.0.0:4140', timeout: 3s}, disableIPv6: false}",
    "{clusterDomain: example.org, identityTrustDomain: trust.example, clusterNetworks: 10.0.0.0/8, linkerdVersion: 9.9.9, imagePullPolicy: Always}",
    "proxy: {image: {name: r/p, version: v1, pullPolicy: Never}, uid: 3000, gid: 3001, ports: {inbound: 5143, outbound: 5140, admin: 5191, control: 5190}, logLevel: debug, logFormat: json, logHTTPHeaders: insecure, accessLog: apache}",
    "proxy: {cores: 3, runtime: {workers: {minimum: 2, maximum: 4, maximumCPURatio: 0.5}}, resources: {cpu: {request: 100m, limit: 1}, memory: {request: 20Mi, limit: 250Mi}, ephemeral-storage: {request: 1Gi}}}",
    "proxy: {enableShutdownEndpoint: true, enableExternalProfiles: true, isGateway: true, isIngress: true, shutdownGracePeriod: 10s, disableOutboundProtocolDetectTimeout: true, disableInboundProtocolDetectTimeout: true, requireIdentityOnInboundPorts: '8086', metrics: {hostnameLabels: true}}",
    "proxy: {outboundConnectTimeout: 1ms, inboundConnectTimeout: 2ms, outboundDiscoveryCacheUnusedTimeout: 3s, inboundDiscoveryCacheUnusedTimeout: 4s, opaquePorts: '25', control: {streams: {initialTimeout: 5s, idleTimeout: 6s, lifetime: 7s}}, livenessProbe: {initialDelaySeconds: 8, timeoutSeconds: 9}, readinessProbe: {initialDelaySeconds: 1, timeoutSeconds: 2}, startupProbe: {initialDelaySeconds: 3, periodSeconds: 4, failureThreshold: 5}, inbound: {server: {http2: {maxFrameSize: 16384}}}, outbound: {server: {http2: {keepAliveInterval: 1s}}}}",
    "{clusterDomain: example.org, identityTrustDomain: trust.example, proxy: {tracing: {enabled: true, traceServiceName: mesh, labels: {cluster: east}, collector: {endpoint: 'collector.tracing:4317', meshIdentity: {serviceAccountName: collector, namespace: tracing}}}}}",
    "{proxy: {nativeSidecar: false, waitBeforeExitSeconds: 5, additionalEnv: [{name: A, value: b}], experimentalEnv: [{name: C, valueFrom: {fieldRef: {fieldPath: metadata.name}}}], securityContext: {runAsUser: 5}}, identity: {serviceAccountTokenProjection: false}}",
];

const COMPONENTS: [&str; 3] = ["identity", "destination", "proxy-injector"];

#[test]
fn proxies_of_chart_match_injector() {
    require_helm!("proxies_of_chart_match_injector");
    for case in CASES {
        let objects = helm::control_plane(case).unwrap();
        // The values that the injector reads.
        let config = helm::find(&objects, "ConfigMap", "linkerd-config");
        let given = config["data"]["values"].as_str().unwrap();
        let mut values = Values::read(serde_norway::from_str(given).unwrap()).unwrap();
        values.namespace = "linkerd".into();
        for component in COMPONENTS {
            let name = format!("linkerd-{component}");
            let rendered = &helm::find(&objects, "Deployment", &name)["spec"]["template"];
            let injected = inject(
                &without_proxy(rendered),
                &for_component(&values, component),
                component,
            );
            let (rendered, injected) = (comparable(rendered), comparable(&injected));
            for part in [
                "annotations",
                "labels",
                "initContainers",
                "containers",
                "volumes",
            ] {
                pretty_assertions(case, component, &rendered[part], &injected[part]);
            }
        }
    }
}

/// Applies the settings that the chart makes for the proxy of one controller and no annotation can
/// make.
fn for_component(values: &Values, component: &str) -> Values {
    let mut values = values.clone();
    if component == "identity" {
        values.proxy.require_tls_on_inbound_ports = "8080".into();
        values.proxy.native_sidecar = false;
    }
    if component == "identity" || (component == "destination" && !values.proxy.native_sidecar) {
        values.proxy.r#await = false;
    }
    values
}

fn without_proxy(template: &Value) -> Value {
    let mut pod = template.clone();
    for list in ["initContainers", "containers", "volumes"] {
        let added = [
            "linkerd-proxy",
            "linkerd-init",
            "linkerd-network-validator",
            "linkerd-identity-end-entity",
            "linkerd-identity-token",
            "linkerd-podinfo",
            "linkerd-proxy-init-xtables-lock",
        ];
        if let Some(list) = pod["spec"][list].as_array_mut() {
            list.retain(|item| !added.iter().any(|name| item["name"] == *name));
        }
    }
    // The annotations of the chart that the injector also reads.
    let read = [
        "config.linkerd.io/default-inbound-policy",
        "config.linkerd.io/opaque-ports",
    ];
    pod["metadata"]["annotations"]
        .as_object_mut()
        .unwrap()
        .retain(|key, _| read.contains(&key.as_str()));
    pod["metadata"]["annotations"]["linkerd.io/inject"] = "enabled".into();
    pod["metadata"]["namespace"] = "linkerd".into();
    // The chart itself mounts tokens where a container needs one; without a token the injector
    // would skip the pod.
    pod["spec"]["automountServiceAccountToken"] = true.into();
    pod
}

fn inject(pod: &Value, values: &Values, component: &str) -> Value {
    let read: Pod = serde_json::from_value(pod.clone()).unwrap();
    let owner = Owner {
        kind: "deployment".into(),
        name: format!("linkerd-{component}"),
    };
    let outcome = inject::patch(values, &ObjectMeta::default(), &read, &owner).unwrap();
    assert!(outcome.warnings.is_empty(), "{:?}", outcome.warnings);
    let mut patched = pod.clone();
    outcome.patch.apply(&mut patched).unwrap();
    patched
}

/// Returns the parts of a pod that are compared, without intended differences.
fn comparable(pod: &Value) -> Value {
    let mut spec = pod["spec"].clone();
    for list in ["initContainers", "containers"] {
        for container in spec[list].as_array_mut().into_iter().flatten() {
            let name = container["name"].as_str().unwrap().to_owned();
            // The position of the controllers' containers is compared, not their content.
            if !name.starts_with("linkerd-") {
                *container = json!(name);
                continue;
            }
            for var in container["env"].as_array_mut().into_iter().flatten() {
                // The chart refers to the ConfigMap, because the anchors may be created after
                // rendering.
                if var["name"] == "LINKERD2_PROXY_IDENTITY_TRUST_ANCHORS" {
                    *var = json!("anchors");
                }
            }
            // The token of the API server is for the controllers; the chart gives it to the proxy
            // only where it proves the proxy's identity.
            if let Some(mounts) = container["volumeMounts"].as_array_mut() {
                mounts.retain(|mount| mount["name"] != "kube-api-access");
            }
        }
    }
    let own = [
        "identity-issuer",
        "linkerd-identity-trust-roots",
        "config",
        "tls",
        "kube-api-access",
    ];
    let mut volumes: Vec<Value> = spec["volumes"].as_array().unwrap().clone();
    volumes.retain(|volume| !own.iter().any(|name| volume["name"] == *name));
    volumes.sort_by_key(|volume| volume["name"].as_str().unwrap().to_owned());
    volumes.dedup();
    let mut annotations = pod["metadata"]["annotations"].clone();
    // The creator, the request for injection, and what restarts a Deployment.
    for key in [
        "linkerd.io/created-by",
        "linkerd.io/inject",
        "linkerd.io/trust-root-sha256",
        "checksum/config",
    ] {
        annotations.as_object_mut().unwrap().remove(key);
    }
    if spec["initContainers"].as_array().is_some_and(Vec::is_empty) {
        spec["initContainers"] = Value::Null;
    }
    json!({
        "annotations": annotations,
        "labels": pod["metadata"]["labels"],
        "initContainers": spec["initContainers"],
        "containers": spec["containers"],
        "volumes": volumes,
    })
}

fn pretty_assertions(case: &str, component: &str, rendered: &Value, injected: &Value) {
    if rendered != injected {
        let text = |value: &Value| serde_norway::to_string(value).unwrap();
        let (rendered, injected) = (text(rendered), text(injected));
        let differences: Vec<String> = similar(&rendered, &injected);
        panic!(
            "values {case}: the proxy of {component} differs (- chart, + injector):\n{}",
            differences.join("\n")
        );
    }
}

/// Returns the lines that only one of the two has.
fn similar(left: &str, right: &str) -> Vec<String> {
    let only = |sign: char, these: &str, those: &str| -> Vec<String> {
        let those: Vec<&str> = those.lines().collect();
        these
            .lines()
            .filter(|line| !those.contains(line))
            .map(|line| format!("{sign} {line}"))
            .collect()
    };
    let mut lines = only('-', left, right);
    lines.extend(only('+', right, left));
    if lines.is_empty() {
        lines.push("the order of lines".to_owned());
    }
    lines
}

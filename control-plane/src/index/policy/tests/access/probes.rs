//! The kubelet's requests, which are authorized in addition to the policy of their port.

use mesh_objects::model::{Name, WorkloadRef};
use mesh_objects::policy::settings::NodeProbeSource;

use super::{check_port, lines, message, object};
use crate::index::PolicyIndex;
use crate::index::tests::fixture::{apply, policy_settings};

/// A pod with the default policy `deny`, two addresses of its node, and these fields of a container
/// with the ports 8080 (`http`) and 9090.
fn pod(container: &str) -> String {
    pod_with("", &format!("- {{name: app, {PORTS}, {container}}}"))
}

const PORTS: &str = "ports: [{name: http, containerPort: 8080}, {containerPort: 9090}]";

fn pod_with(annotations: &str, containers: &str) -> String {
    format!(
        "---\napiVersion: v1\nkind: Pod\nmetadata:\n  name: web-1\n  namespace: shop\n  labels: {{app: web, linkerd.io/control-plane-ns: linkerd}}\n  \
         annotations: {{config.linkerd.io/default-inbound-policy: deny{annotations}}}\nspec:\n  nodeName: node-a\n  containers:\n  {}\n\
         status: {{phase: Running, podIP: 10.1.0.1, hostIP: 192.168.0.1, hostIPs: [{{ip: 192.168.0.1}}, {{ip: 'fd00::1'}}]}}\n",
        containers.replace('\n', "\n  ")
    )
}

const NODE: &str = "---
apiVersion: v1
kind: Node
metadata: {name: node-a}
spec: {podCIDR: 10.1.0.0/24, podCIDRs: [10.1.0.0/24, 'fd00:1::/64', 10.9.0.0/32]}
---
apiVersion: v1
kind: Node
metadata: {name: node-b}
spec: {podCIDR: 10.1.1.0/24}
";

const DENY: &str =
    "default/deny detectTimeout=10s protocol=detect\nroutes default/default\nrule matches=[/*]\n";

/// The lines about a route of probes with these matches.
fn probe_route(matches: &str) -> String {
    format!(
        "routes default/probe\nrule authorizations=[default/probe authentication=none networks=[cidr=0.0.0.0/0]] matches=[{matches}]\n"
    )
}

const NODE_AUTHZ: &str = "authorizations default/probe authentication=none networks=[cidr=192.168.0.1/32, cidr=fd00::1/128]\n";

/// Checks the messages about a port without and with admission of the node's host addresses.
#[track_caller]
fn check_both(objects: &str, port: u16, without: &str, with: &str) {
    check_port(objects, port, without);
    check_sources(objects, port, &[NodeProbeSource::HostIps], with);
}

#[track_caller]
fn check_sources(objects: &str, port: u16, sources: &[NodeProbeSource], expect: &str) {
    let mut settings = policy_settings();
    settings.node_probe_sources = sources.to_vec();
    let mut index = PolicyIndex::new(settings);
    index.apply(apply(objects));
    let pod = WorkloadRef::Pod(Name::new("shop", "web-1"));
    assert_eq!(message(&mut index, pod, port), lines(expect), "{objects}");
}

#[test]
fn path_of_probe_is_admitted_as_the_kubelet_sends_it() {
    for (path, sent) in [
        ("healthz", "/healthz"),
        ("'/ready?a=1'", "/ready"),
        ("''", "/"),
        ("/a%20b", "/a%20b"),
        ("'/a b'", "/a%20b"),
        ("'/100%'", "/100%25"),
        ("'/a;b//c/../d'", "/a;b//c/../d"),
        ("'http://other/ready'", "/ready"),
    ] {
        let route = format!("{DENY}{}", probe_route(&format!("GET {sent}")));
        let objects = pod(&format!(
            "readinessProbe: {{httpGet: {{path: {path}, port: http, httpHeaders: [{{name: Host, value: a.example}}]}}}}"
        ));
        check_both(&objects, 8080, &route, &format!("{route}{NODE_AUTHZ}"));
        check_both(&objects, 9090, DENY, DENY);
    }
}

#[test]
fn probes_and_hooks_of_every_container_are_admitted() {
    let containers = "\
- {name: app, readinessProbe: {httpGet: {path: /ready, port: 8080}}, livenessProbe: {httpGet: {path: /live, port: 8080}},
   startupProbe: {httpGet: {path: /started, port: 8080}},
   lifecycle: {postStart: {httpGet: {path: /begin, port: 8080}}, preStop: {httpGet: {path: /end, port: 8080}}}}";
    let sidecar = "\n  initContainers:\n  - {name: side, restartPolicy: Always, readinessProbe: {httpGet: {path: /side, port: 8080}},\n     \
                   lifecycle: {preStop: {httpGet: {path: /end-of-side, port: 8080}}}}";
    let objects = pod_with("", containers).replace("\nstatus:", &format!("{sidecar}\nstatus:"));
    let paths = [
        "begin",
        "end",
        "end-of-side",
        "live",
        "ready",
        "side",
        "started",
    ];
    let matches = paths.map(|path| format!("GET /{path}")).join(", ");
    check_port(&objects, 8080, &format!("{DENY}{}", probe_route(&matches)));
}

#[test]
fn grpc_probe_is_admitted_on_its_port() {
    let objects = pod("livenessProbe: {grpc: {port: 9090, service: cart}}");
    let route = probe_route("POST /grpc.health.v1.Health/Check");
    let route = format!("{DENY}{route}");
    // Its path is known, so that the node's address needs no admission.
    check_both(&objects, 9090, &route, &route);
    check_both(&objects, 8080, DENY, DENY);
    let server = |protocol: &str| {
        let spec = format!(
            "{{podSelector: {{matchLabels: {{app: web}}}}, port: 9090, proxyProtocol: {protocol}}}"
        );
        objects.clone() + &object("v1beta3", "Server", "name: db", &spec)
    };
    let grpc = "policy/server /db protocol=gRPC
        routes default/default
        rule matches=[*/*]
        routes default/probe
        rule authorizations=[default/probe authentication=none networks=[cidr=0.0.0.0/0]] matches=[grpc.health.v1.Health/Check]";
    check_both(&server("gRPC"), 9090, grpc, grpc);
    let opaque = "policy/server /db protocol=opaque\n";
    check_both(
        &server("opaque"),
        9090,
        opaque,
        &format!("{opaque}{NODE_AUTHZ}"),
    );
}

#[test]
fn https_probe_is_admitted_from_the_node_only_and_on_its_port_only() {
    let objects = pod("readinessProbe: {httpGet: {path: /ready, port: 9090, scheme: HTTPS}}");
    check_both(&objects, 9090, DENY, &format!("{DENY}{NODE_AUTHZ}"));
    check_both(&objects, 8080, DENY, DENY);
    let tls = "policy/server /db protocol=TLS\n";
    let spec = "{podSelector: {matchLabels: {app: web}}, port: 9090, proxyProtocol: TLS}";
    let server = objects.clone() + &object("v1beta3", "Server", "name: db", spec);
    check_both(&server, 9090, tls, &format!("{tls}{NODE_AUTHZ}"));
    // The kubelet repeats a hook over HTTP if the server does not speak TLS.
    let hook = pod("lifecycle: {preStop: {httpGet: {path: /end, port: 9090, scheme: HTTPS}}}");
    let route = format!("{DENY}{}", probe_route("GET /end"));
    check_both(&hook, 9090, &route, &format!("{route}{NODE_AUTHZ}"));
}

#[test]
fn probe_of_opaque_port_is_admitted_from_the_node_only() {
    for probe in ["httpGet: {path: /, port: http}", "grpc: {port: 8080}"] {
        let container = format!("- {{name: app, {PORTS}, readinessProbe: {{{probe}}}}}");
        let objects = pod_with(", config.linkerd.io/opaque-ports: '8080'", &container);
        let opaque = "default/deny protocol=opaque\n";
        check_both(&objects, 8080, opaque, &format!("{opaque}{NODE_AUTHZ}"));
    }
}

#[test]
fn attached_route_replaces_admission_of_the_node_too() {
    let objects = pod("readinessProbe: {httpGet: {path: /ready, port: http}}");
    let spec = "{podSelector: {matchLabels: {app: web}}, port: http}";
    let server = objects + &object("v1beta3", "Server", "name: db", spec);
    let route = "{parentRefs: [{group: policy.linkerd.io, kind: Server, name: db}], rules: [{matches: [{path: {value: /a}}]}]}";
    let attached = server + &object("v1beta3", "HTTPRoute", "name: get", route);
    let expect = "policy/server /db detectTimeout=10s protocol=detect
        routes policy/HTTPRoute shop/get
        rule matches=[/a/*]";
    check_both(&attached, 8080, expect, expect);
}

#[test]
fn first_addresses_of_pod_networks_of_the_own_node_are_admitted_if_selected() {
    let objects =
        pod("readinessProbe: {httpGet: {path: /ready, port: 9090, scheme: HTTPS}}") + NODE;
    let cidrs = "cidr=10.1.0.1/32, cidr=fd00:1::1/128";
    let authz = |networks: &str| {
        format!("{DENY}authorizations default/probe authentication=none networks=[{networks}]")
    };
    check_sources(&objects, 9090, &[NodeProbeSource::PodCidrs], &authz(cidrs));
    check_sources(
        &objects,
        9090,
        &[NodeProbeSource::HostIps, NodeProbeSource::PodCidrs],
        &authz(&format!("cidr=192.168.0.1/32, cidr=fd00::1/128, {cidrs}")),
    );
    // Without a record of the node no address is admitted.
    let unknown = objects.replace("nodeName: node-a", "nodeName: node-c");
    check_sources(&unknown, 9090, &[NodeProbeSource::PodCidrs], DENY);
}

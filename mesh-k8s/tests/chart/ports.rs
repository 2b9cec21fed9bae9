//! Every port that a chart opens has a Server, and each Server a documented authorization.

use std::fs;

use mesh_k8s::kinds::{Pod, Service};
use mesh_k8s::pod::ports;
use mesh_k8s::select;
use serde_json::{Value, json};

use crate::generated::root;
use crate::helm;

/// The containers of the injected proxies, whose ports the templates of meshed pods do not have.
const PROXY: &str = "linkerd-proxy";

/// The listener of redirected connections. The policy of their original port applies to them.
const REDIRECTED: &str = "linkerd-proxy";

/// The port of the proxy's metrics and probes.
const PROXY_ADMIN: &str = "linkerd-admin";

#[test]
fn every_port_of_the_control_plane_has_a_server_with_authorized_clients() {
    require_helm!("every_port_of_the_control_plane_has_a_server_with_authorized_clients");
    for values in [
        "{}",
        "{proxy: {nativeSidecar: true}, disableIPv6: true, heartbeatUrl: 'https://a.example'}",
        "{meshAgent: {enabled: false}, proxy: {nativeSidecar: false}}",
        "{identity: {bundleEndpoint: {enabled: true}}}",
    ] {
        let objects = helm::control_plane(values).unwrap();
        let servers = check_ports(&objects, &[]);
        assert!(servers >= 12, "{servers} Servers");
        check_documented(&objects, "docs/operations/helm.md");
    }
}

#[test]
fn every_port_of_viz_has_a_server_with_authorized_clients() {
    require_helm!("every_port_of_viz_has_a_server_with_authorized_clients");
    let open = "dashboard: {access: {identities: ['*'], networks: ['::/0']}}";
    let external = "{prometheus: {enabled: false}, prometheusUrl: 'http://a'}";
    // By default no client may open the dashboard over the network.
    for (values, closed) in [
        ("{}", &["web"][..]),
        ("prometheus: {enabled: false}", &["web"]),
        (external, &["web"]),
        (open, &[]),
    ] {
        let objects = helm::viz(values).unwrap();
        let servers = check_ports(&objects, closed);
        assert!(servers >= 8, "{servers} Servers");
        check_documented(&objects, "docs/operations/viz.md");
    }
}

#[test]
fn every_port_of_multicluster_has_a_server_with_authorized_clients() {
    require_helm!("every_port_of_multicluster_has_a_server_with_authorized_clients");
    let linked = "controllers: [{link: {ref: {name: target}}}]";
    let mut objects = helm::multicluster(linked).unwrap();
    objects.extend(helm::multicluster_link("{}").unwrap());
    let servers = check_ports(&objects, &[]);
    assert_eq!(servers, 5);
    check_documented(&objects, "docs/operations/multicluster.md");
}

#[test]
fn a_port_without_a_server_is_found() {
    require_helm!("a_port_without_a_server_is_found");
    let mut objects = helm::viz("{}").unwrap();
    objects.retain(|object| object["kind"] != "Server" || object["metadata"]["name"] != "web");
    let without = ports(&objects)
        .into_iter()
        .filter(|port| servers_of(&objects, port).is_empty());
    let names: Vec<String> = without.map(|port| port.to_string()).collect();
    assert_eq!(names, ["web http 8084"]);
}

/// A specification and a tap are behind the same value, and so is the right to read the former.
#[test]
fn dashboard_without_privileges_reads_no_workloads() {
    require_helm!("dashboard_without_privileges_reads_no_workloads");
    let rendered = |values: &str| {
        let objects = helm::viz(values).unwrap();
        let role = helm::find(&objects, "ClusterRole", "linkerd-linkerd-viz-web");
        let web = helm::find(&objects, "Deployment", "web");
        let args = &helm::pod_spec(web)["containers"][0]["args"];
        let tap = objects.iter().any(|object| {
            object["kind"] == "ClusterRoleBinding"
                && object["metadata"]["name"] == "linkerd-linkerd-viz-web-tap"
        });
        let hides = args
            .as_array()
            .unwrap()
            .contains(&"--hide-definitions".into());
        (
            role["rules"].to_string().contains("deployments"),
            tap,
            hides,
        )
    };
    assert_eq!(rendered("{}"), (true, true, false));
    let restricted = "dashboard: {restrictPrivileges: true}";
    assert_eq!(rendered(restricted), (false, false, true));
}

/// Otherwise a connection is opaque for the client's proxy and not for the pod's. `meshctl check`
/// warns of that.
#[test]
fn services_and_pods_of_the_charts_have_the_same_opaque_ports() {
    require_helm!("services_and_pods_of_the_charts_have_the_same_opaque_ports");
    let mut opaque = Vec::new();
    let bundle = "identity: {bundleEndpoint: {enabled: true}}";
    for objects in [
        helm::control_plane(bundle).unwrap(),
        helm::viz("{}").unwrap(),
    ] {
        let templates = objects.iter().map(|object| &object["spec"]["template"]);
        let pods: Vec<Pod> = templates
            .filter(|template| !template.is_null())
            .map(|template| serde_json::from_value(template.clone()).unwrap())
            .collect();
        for service in of_kind(&objects, "Service") {
            let service: Service = serde_json::from_value(service.clone()).unwrap();
            let name = service.metadata.name.as_deref().unwrap_or_default();
            let annotations = service.metadata.annotations.iter().flatten();
            let list = annotations
                .filter(|(key, _)| *key == "config.linkerd.io/opaque-ports")
                .map(|(_, list)| ports::resolve_list(None, list))
                .next()
                .unwrap_or_default();
            let spec = service.spec.as_ref().unwrap();
            let selected = pods.iter().filter(|pod| {
                let labels = pod.metadata.labels.as_ref();
                select::service_matches(spec.selector.as_ref(), labels)
            });
            for pod in selected {
                let of_pod = ports::opaque(pod).unwrap_or_default();
                for port in spec.ports.iter().flatten() {
                    let number = ports::port_number(port.port).unwrap();
                    for target in ports::targets(port, pod, number) {
                        let (here, there) = (list.contains(number), of_pod.contains(target));
                        assert_eq!(here, there, "{name}: port {number} and {target} of the pod");
                        opaque.extend(here.then(|| format!("{name} {number}")));
                    }
                }
            }
        }
    }
    opaque.sort();
    assert_eq!(
        opaque,
        [
            "linkerd-identity-bundle 8443",
            "linkerd-policy-validator 443",
            "linkerd-proxy-injector 443",
            "linkerd-sp-validator 443",
            "tap 443",
            "tap-injector 443",
        ]
    );
}

/// A TCP port of the pods of a workload.
struct Port<'a> {
    workload: &'a str,
    namespace: &'a Value,
    labels: &'a Value,
    name: String,
    number: u64,
}

impl std::fmt::Display for Port<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {} {}", self.workload, self.name, self.number)
    }
}

/// Checks that one Server selects each port and that it authorizes clients, except those in
/// `closed`, and returns the number of Servers.
fn check_ports(objects: &[Value], closed: &[&str]) -> usize {
    for port in ports(objects) {
        let servers = servers_of(objects, &port);
        assert_eq!(servers.len(), 1, "{port}: {servers:?}");
    }
    let servers: Vec<&Value> = of_kind(objects, "Server").collect();
    for server in &servers {
        let name = server["metadata"]["name"].as_str().unwrap();
        assert!(server["spec"]["accessPolicy"].is_null(), "{name}");
        assert_ne!(server["spec"]["proxyProtocol"], "unknown", "{name}");
        let authorizations = authorizations(objects, name);
        assert_eq!(authorizations == 0, closed.contains(&name), "{name}");
        // Clients of other clusters connect to this port of a gateway's proxy.
        let used = server["spec"]["port"] == REDIRECTED
            || ports(objects)
                .iter()
                .any(|port| selects(server, port.namespace, port.labels, port));
        assert!(used, "the Server {name} selects no port of the chart");
    }
    servers.len()
}

/// Returns how many objects authorize clients of a Server. What they refer to must exist.
fn authorizations(objects: &[Value], server: &str) -> usize {
    let policies = of_kind(objects, "AuthorizationPolicy").filter(|policy| {
        let target = &policy["spec"]["targetRef"];
        target["kind"] == "Server" && target["name"] == server
    });
    let policies = policies.inspect(|policy| {
        let references = policy["spec"]["requiredAuthenticationRefs"].as_array();
        let references = references.unwrap();
        assert!(!references.is_empty(), "{policy}");
        for reference in references {
            let (kind, name) = (&reference["kind"], &reference["name"]);
            if *kind == "ServiceAccount" {
                // The viz extension need not be installed.
                assert_eq!(reference["namespace"], "linkerd-viz", "{policy}");
                continue;
            }
            helm::find(objects, kind.as_str().unwrap(), name.as_str().unwrap());
        }
    });
    let older = of_kind(objects, "ServerAuthorization")
        .filter(|authorization| authorization["spec"]["server"]["name"] == server);
    policies.count() + older.count()
}

/// The document says for each Server who may connect.
fn check_documented(objects: &[Value], page: &str) {
    let text = fs::read_to_string(root().join(page)).unwrap();
    for server in of_kind(objects, "Server") {
        let name = server["metadata"]["name"].as_str().unwrap();
        let row = text
            .lines()
            .find(|line| line.starts_with('|') && line.contains(&format!("`{name}`")));
        assert!(row.is_some(), "{page} has no row of the Server {name}");
    }
}

/// Returns the ports of all workloads. Those in the node's network have no proxy: the agent, whose
/// admin server listens on a loopback address unless values change it.
fn ports(objects: &[Value]) -> Vec<Port<'_>> {
    let mut ports = Vec::new();
    for object in objects {
        let spec = helm::pod_spec(object);
        if spec["containers"].is_null() || spec["hostNetwork"] == true {
            continue;
        }
        // The pod of `helm test` runs for seconds.
        if object["metadata"]["annotations"]["helm.sh/hook"] == "test" {
            continue;
        }
        let metadata = match object["kind"].as_str() {
            Some("Pod") => &object["metadata"],
            Some("CronJob") => &object["spec"]["jobTemplate"]["spec"]["template"]["metadata"],
            _ => &object["spec"]["template"]["metadata"],
        };
        let mut declared: Vec<(String, u64)> = Vec::new();
        let mut is_meshed = metadata["annotations"]["linkerd.io/inject"] == "enabled";
        if is_meshed {
            declared.push((PROXY_ADMIN.to_owned(), 4191));
        }
        for list in ["initContainers", "containers"] {
            for container in spec[list].as_array().into_iter().flatten() {
                is_meshed |= container["name"] == PROXY;
                for port in container["ports"].as_array().into_iter().flatten() {
                    let name = port["name"].as_str().unwrap_or_default().to_owned();
                    declared.push((name, port["containerPort"].as_u64().unwrap()));
                }
            }
        }
        declared.retain(|(name, _)| name != REDIRECTED);
        let workload = object["metadata"]["name"].as_str().unwrap();
        // No policy applies without a proxy.
        assert!(is_meshed || declared.is_empty(), "{workload}");
        ports.extend(declared.into_iter().map(|(name, number)| Port {
            workload,
            namespace: &object["metadata"]["namespace"],
            labels: &metadata["labels"],
            name,
            number,
        }));
    }
    ports
}

fn servers_of<'a>(objects: &'a [Value], port: &Port<'_>) -> Vec<&'a Value> {
    of_kind(objects, "Server")
        .filter(|server| selects(server, port.namespace, port.labels, port))
        .collect()
}

fn selects(server: &Value, namespace: &Value, labels: &Value, port: &Port<'_>) -> bool {
    let selector = &server["spec"]["podSelector"];
    let labels_match = selector["matchLabels"]
        .as_object()
        .into_iter()
        .flatten()
        .all(|(name, value)| labels[name] == *value);
    let expressions = selector["matchExpressions"]
        .as_array()
        .into_iter()
        .flatten();
    let expressions_match = expressions.into_iter().all(|expression| {
        assert_eq!(expression["operator"], "In");
        let value = &labels[expression["key"].as_str().unwrap()];
        expression["values"].as_array().unwrap().contains(value)
    });
    let wanted = &server["spec"]["port"];
    let is_port = *wanted == json!(port.name) || *wanted == json!(port.number);
    server["metadata"]["namespace"] == *namespace && labels_match && expressions_match && is_port
}

fn of_kind<'a>(objects: &'a [Value], kind: &str) -> impl Iterator<Item = &'a Value> {
    objects.iter().filter(move |object| object["kind"] == kind)
}

//! Servers: which ports each selects, its protocol and its access policy.

use mesh_objects::model::{Kind, Name, WorkloadRef};

use super::{DB, check, check_port, check_workload, object, server, web};
use crate::index::tests::fixture::{apply, policy_settings};
use crate::index::{InboundKey, PolicyIndex};

/// The message about a port that no Server selects.
const NONE: &str = "
    default/all-unauthenticated detectTimeout=10s protocol=detect
    routes default/default
    rule matches=[/*]
    authorizations default/all-unauthenticated authentication=none networks=[cidr=0.0.0.0/0, cidr=::/0]
";

fn select(spec: &str) -> String {
    web("") + &object("v1beta3", "Server", "name: db", spec)
}

#[test]
fn server_selects_pods_of_its_namespace_by_labels() {
    for selector in [
        "{matchLabels: {app: web}}",
        "{}",
        "{matchExpressions: [{key: app, operator: In, values: [web, api]}]}",
        "{matchExpressions: [{key: none, operator: DoesNotExist}]}",
    ] {
        check(
            &select(&format!("{{podSelector: {selector}, port: 3306}}")),
            DB,
        );
    }
    for selector in [
        "{matchLabels: {app: api}}",
        "{matchLabels: {app: web, none: a}}",
        "{matchExpressions: [{key: app, operator: Like, values: [web]}]}",
    ] {
        check(
            &select(&format!("{{podSelector: {selector}, port: 3306}}")),
            NONE,
        );
    }
    let other = server("").replace("namespace: shop", "namespace: other");
    check(&(web("") + &other), NONE);
    check_port(&(web("") + &server("")), 3307, NONE);
}

/// Containers and init containers may use one name for several ports.
#[test]
fn server_selects_named_tcp_ports_of_all_containers() {
    let more = "
  - name: second
    ports: [{name: db, containerPort: 3307}, {name: db, containerPort: 3308, protocol: UDP}]
  initContainers:
  - name: sidecar
    restartPolicy: Always
    ports: [{name: db, containerPort: 3309}]
status:";
    let objects = select("{podSelector: {}, port: db}").replacen("\nstatus:", more, 1);
    for port in [3306, 3307, 3309] {
        check_port(&objects, port, DB);
    }
    check_port(&objects, 3308, NONE);
    check(&select("{podSelector: {}, port: other}"), NONE);
}

#[test]
fn server_selects_ports_of_external_workloads() {
    for (version, tls) in [("v1beta1", "meshTLS"), ("v1alpha1", "meshTls")] {
        let vm = format!(
            "---\napiVersion: workload.linkerd.io/{version}\nkind: ExternalWorkload\n\
             metadata: {{name: vm, namespace: shop, labels: {{app: web}}}}\n\
             spec: {{{tls}: {{identity: vm.example, serverName: vm.example}}, ports: [{{name: db, port: 3306}}]}}\n"
        );
        let check = |selector: &str, port: &str, expect: &str| {
            let spec = format!("{{{selector}: {{matchLabels: {{app: web}}}}, port: {port}}}");
            let workload = WorkloadRef::External(Name::new("shop", "vm"));
            check_workload(&(select(&spec) + &vm), workload, 3306, expect);
        };
        check("externalWorkloadSelector", "3306", DB);
        check("externalWorkloadSelector", "db", DB);
        check("externalWorkloadSelector", "3307", NONE);
        check("externalWorkloadSelector", "http", NONE);
        check("podSelector", "3306", NONE);
    }
    check(&select("{externalWorkloadSelector: {}, port: 3306}"), NONE);
}

#[test]
fn oldest_server_applies_then_first_by_name() {
    let at = |name: &str, created: &str| {
        let created = match created {
            "" => String::new(),
            at => format!(", creationTimestamp: '2026-01-{at}T00:00:00Z'"),
        };
        server("").replace("name: db", &format!("name: {name}{created}"))
    };
    let check = |servers: &[(&str, &str)], expect: &str| {
        let servers: String = servers
            .iter()
            .map(|(name, created)| at(name, created))
            .collect();
        check(
            &(web("") + &servers),
            &DB.replace("/db", &format!("/{expect}")),
        );
    };
    check(&[("a", "02"), ("b", "01")], "b");
    check(&[("b", "01"), ("a", "01")], "a");
    check(&[("a", ""), ("b", "01")], "b");
    check(&[("b", ""), ("a", "")], "a");
}

#[test]
fn overlapping_servers_are_reported_once_until_they_change() {
    let mut index = PolicyIndex::new(policy_settings());
    let second = server("").replace("name: db", "name: second");
    index.apply(apply(&(web("") + &server("") + &second)));
    let workload = WorkloadRef::Pod(Name::new("shop", "web-1"));
    let key = InboundKey {
        workload,
        port: 3306,
    };
    let _watched = index.inbound(key).unwrap();
    let reported = |index: &PolicyIndex| {
        let overlaps = index.overlaps.iter();
        let shown = overlaps.map(|it| format!("{} {} {}", it.port, it.server, it.ignored));
        shown.collect::<Vec<_>>()
    };
    assert_eq!(reported(&index), ["3306 shop/db shop/second"]);
    index.apply(apply(&second.replace("port: 3306", "port: 3307")));
    assert!(reported(&index).is_empty());
    index.apply(apply(&second));
    assert_eq!(reported(&index), ["3306 shop/db shop/second"]);
    index.apply(crate::index::tests::fixture::delete(
        Kind::Server,
        "shop",
        "db",
    ));
    assert!(reported(&index).is_empty());
}

#[test]
fn each_protocol_has_its_routes() {
    let route = "routes default/default\nrule matches=[/*]";
    for (protocol, expect) in [
        (
            "unknown",
            format!("detectTimeout=10s protocol=detect\n{route}"),
        ),
        ("HTTP/1", format!("protocol=HTTP/1\n{route}")),
        ("HTTP/2", format!("protocol=HTTP/2\n{route}")),
        (
            "gRPC",
            "protocol=gRPC\nroutes default/default\nrule matches=[*/*]".to_owned(),
        ),
        ("opaque", "protocol=opaque".to_owned()),
        ("TLS", "protocol=TLS".to_owned()),
    ] {
        let objects = web("") + &server(&format!("proxyProtocol: {protocol}"));
        check(&objects, &format!("policy/server /db {expect}"));
    }
}

/// The annotations about default policies do not apply to a port with a Server.
#[test]
fn access_policy_adds_its_authorization() {
    let annotations = "config.linkerd.io/default-inbound-policy: all-unauthenticated, config.linkerd.io/opaque-ports: '3306', \
                       config.linkerd.io/proxy-require-identity-inbound-ports: '3306'";
    for (policy, authorization) in [
        (
            "all-unauthenticated",
            "authentication=none networks=[cidr=0.0.0.0/0, cidr=::/0]",
        ),
        (
            "all-authenticated",
            "authentication=mutual TLS identities=[*] networks=[cidr=0.0.0.0/0, cidr=::/0]",
        ),
        (
            "cluster-unauthenticated",
            "authentication=none networks=[cidr=10.0.0.0/8]",
        ),
        (
            "cluster-authenticated",
            "authentication=mutual TLS identities=[*] networks=[cidr=10.0.0.0/8]",
        ),
        (
            "audit",
            "authentication=none networks=[cidr=0.0.0.0/0, cidr=::/0]",
        ),
        ("deny", ""),
    ] {
        let mut expect = DB.to_owned();
        if !authorization.is_empty() {
            expect += &format!("authorizations default/{policy} {authorization}");
        }
        let objects = web(annotations) + &server(&format!("accessPolicy: {policy}"));
        check(&objects, &expect);
    }
}

#[test]
fn older_versions_deny_clients_without_authorization() {
    for version in ["v1alpha1", "v1beta1", "v1beta2"] {
        let server = server("").replace("v1beta3", version);
        check(&(web("") + &server), DB);
    }
}

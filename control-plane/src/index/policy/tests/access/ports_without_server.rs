//! Ports that no Server selects: protocol, default policy and probes.

use mesh_objects::model::{Name, WorkloadRef};

use super::{check, check_port, check_workload, lines, message, web};
use crate::index::PolicyIndex;
use crate::index::tests::fixture::{apply, policy_settings};

const ALL: &str = "
    default/all-unauthenticated detectTimeout=10s protocol=detect
    routes default/default
    rule matches=[/*]
    authorizations default/all-unauthenticated authentication=none networks=[cidr=0.0.0.0/0, cidr=::/0]
";

const ALL_AUTHENTICATED: &str = "
    default/all-authenticated detectTimeout=10s protocol=detect
    routes default/default
    rule matches=[/*]
    authorizations default/all-authenticated authentication=mutual TLS identities=[*] networks=[cidr=0.0.0.0/0, cidr=::/0]
";

const DENY: &str = "
    default/deny detectTimeout=10s protocol=detect
    routes default/default
    rule matches=[/*]
";

/// The port 3306 is in the cluster's list, which only the injector reads.
#[test]
fn protocol_is_detected_unless_annotation_of_pod_lists_port() {
    check(&web(""), ALL);
    check(&web("config.linkerd.io/opaque-ports: '25'"), ALL);
    check(&web("config.linkerd.io/opaque-ports: ''"), ALL);
    let opaque = "
        default/all-unauthenticated protocol=opaque
        authorizations default/all-unauthenticated authentication=none networks=[cidr=0.0.0.0/0, cidr=::/0]
    ";
    for list in ["3306", "25,3000-4000", "db", "nonsense, 3306"] {
        check(
            &web(&format!("config.linkerd.io/opaque-ports: '{list}'")),
            opaque,
        );
    }
}

#[test]
fn each_default_policy_has_its_authorization() {
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
        let mut expect = DENY.replace("deny", policy);
        if !authorization.is_empty() {
            expect += &format!("authorizations default/{policy} {authorization}");
        }
        let annotation = format!("config.linkerd.io/default-inbound-policy: {policy}");
        check(&web(&annotation), &expect);
    }
}

#[test]
fn invalid_default_policy_denies() {
    for policy in ["all-authenticate", "Deny", "''"] {
        let annotation = format!("config.linkerd.io/default-inbound-policy: {policy}");
        check(&web(&annotation), DENY);
    }
}

#[test]
fn policy_of_port_that_requires_identity_is_authenticated_variant() {
    let cluster_authenticated = "
        default/cluster-authenticated detectTimeout=10s protocol=detect
        routes default/default
        rule matches=[/*]
        authorizations default/cluster-authenticated authentication=mutual TLS identities=[*] networks=[cidr=10.0.0.0/8]
    ";
    for (policy, expect) in [
        ("all-unauthenticated", ALL_AUTHENTICATED),
        ("all-authenticated", ALL_AUTHENTICATED),
        ("cluster-unauthenticated", cluster_authenticated),
        ("cluster-authenticated", cluster_authenticated),
        ("audit", ALL_AUTHENTICATED),
        ("deny", DENY),
    ] {
        for list in ["3306", "3000-4000", "db", "3306, 70000"] {
            let annotations = format!(
                "config.linkerd.io/default-inbound-policy: {policy}, config.linkerd.io/proxy-require-identity-inbound-ports: '{list}'"
            );
            check(&web(&annotations), expect);
        }
    }
    let other = "config.linkerd.io/proxy-require-identity-inbound-ports: '8080'";
    check(&web(other), ALL);
}

#[test]
fn probes_have_route_after_default_route_with_sorted_paths() {
    let expect = "
        default/all-unauthenticated detectTimeout=10s protocol=detect
        routes default/default
        rule matches=[/*]
        routes default/probe
        rule authorizations=[default/probe authentication=none networks=[cidr=0.0.0.0/0]] matches=[GET /live, GET /ready]
        authorizations default/all-unauthenticated authentication=none networks=[cidr=0.0.0.0/0, cidr=::/0]
    ";
    check_port(&web(""), 8080, expect);

    let mut settings = policy_settings();
    settings.probe_networks.clear();
    let mut index = PolicyIndex::new(settings);
    index.apply(apply(&web("")));
    let pod = WorkloadRef::Pod(Name::new("shop", "web-1"));
    assert_eq!(
        message(&mut index, pod, 8080),
        lines(ALL),
        "without probe networks"
    );
}

#[test]
fn external_workload_has_default_policy_without_probes() {
    let vm = |annotations: &str| {
        format!(
            "---\napiVersion: workload.linkerd.io/v1beta1\nkind: ExternalWorkload\n\
             metadata: {{name: vm, namespace: shop, annotations: {{{annotations}}}}}\n\
             spec: {{meshTLS: {{identity: vm.example, serverName: vm.example}}, ports: [{{name: db, port: 3306}}]}}\n"
        )
    };
    let check = |annotations: &str, expect: &str| {
        let workload = WorkloadRef::External(Name::new("shop", "vm"));
        check_workload(&vm(annotations), workload, 3306, expect);
    };
    check("", ALL);
    check("config.linkerd.io/default-inbound-policy: deny", DENY);
    check("config.linkerd.io/default-inbound-policy: nonsense", DENY);
    check(
        "config.linkerd.io/proxy-require-identity-inbound-ports: db",
        ALL_AUTHENTICATED,
    );
    let opaque = "
        default/all-unauthenticated protocol=opaque
        authorizations default/all-unauthenticated authentication=none networks=[cidr=0.0.0.0/0, cidr=::/0]
    ";
    check("config.linkerd.io/opaque-ports: db", opaque);
}

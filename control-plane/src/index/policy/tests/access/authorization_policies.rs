//! AuthorizationPolicies and the authentications that they refer to.

use super::{DB, TO_SERVER, check, object, policy, server, web};

fn mesh_tls(name: &str, spec: &str) -> String {
    let name = format!("name: {name}");
    object("v1alpha1", "MeshTLSAuthentication", &name, spec)
}

fn network(name: &str, networks: &str) -> String {
    let spec = format!("{{networks: [{networks}]}}");
    let name = format!("name: {name}");
    object("v1alpha1", "NetworkAuthentication", &name, &spec)
}

/// Checks the message about `db` with more objects.
#[track_caller]
fn check_db(objects: &str, authorization: &str) {
    let mut expect = DB.to_owned();
    if !authorization.is_empty() {
        expect += "authorizations policy/authorizationpolicy shop/allow ";
        expect += authorization;
    }
    check(&(web("") + &server("") + objects), &expect);
}

const MESH_TLS: &str = "group: policy.linkerd.io, kind: MeshTLSAuthentication";
const NETWORK: &str = "group: policy.linkerd.io, kind: NetworkAuthentication";
const EVERYWHERE: &str = "networks=[cidr=0.0.0.0/0, cidr=::/0]";
const ALL: &str = "authentication=none networks=[cidr=0.0.0.0/0, cidr=::/0]";

#[test]
fn policy_applies_to_server_or_all_servers_of_its_namespace() {
    check_db(&policy(TO_SERVER, ""), ALL);
    check_db(&policy("kind: Namespace, name: shop", ""), ALL);
    check_db(&policy("group: core, kind: Namespace, name: shop", ""), ALL);
    check_db(&policy(&TO_SERVER.replace("db", "other"), ""), "");
    let elsewhere = policy(TO_SERVER, "").replace("namespace: shop", "namespace: other");
    check_db(&elsewhere, "");
    let elsewhere =
        policy("kind: Namespace, name: other", "").replace("namespace: shop", "namespace: other");
    check_db(&elsewhere, "");
}

#[test]
fn policy_for_route_does_not_apply_to_server() {
    for target in [
        "group: policy.linkerd.io, kind: HTTPRoute, name: db",
        "group: gateway.networking.k8s.io, kind: HTTPRoute, name: db",
        "group: gateway.networking.k8s.io, kind: GRPCRoute, name: db",
    ] {
        check_db(&policy(target, ""), "");
    }
}

/// A policy for a namespace does not replace the default policy.
#[test]
fn policy_for_namespace_does_not_apply_to_ports_without_server() {
    let objects = web("") + &policy("kind: Namespace, name: shop", "");
    check(
        &objects,
        "default/all-unauthenticated detectTimeout=10s protocol=detect
         routes default/default
         rule matches=[/*]
         authorizations default/all-unauthenticated authentication=none networks=[cidr=0.0.0.0/0, cidr=::/0]",
    );
}

#[test]
fn policy_without_identities_or_networks_authorizes_all_of_them() {
    let ids = mesh_tls("ids", "{identities: [a.example]}");
    let near = network("near", "{cidr: 10.1.0.0/16, except: [10.1.2.0/24]}");
    let ids_ref = format!("{{{MESH_TLS}, name: ids}}");
    let near_ref = format!("{{{NETWORK}, name: near}}");
    check_db(&policy(TO_SERVER, ""), ALL);
    check_db(
        &(policy(TO_SERVER, &ids_ref) + &ids),
        &format!("authentication=mutual TLS identities=[a.example] {EVERYWHERE}"),
    );
    check_db(
        &(policy(TO_SERVER, &near_ref) + &near),
        "authentication=none networks=[cidr=10.1.0.0/16 except=[10.1.2.0/24]]",
    );
    check_db(
        &(policy(TO_SERVER, &format!("{ids_ref}, {near_ref}")) + &ids + &near),
        "authentication=mutual TLS identities=[a.example] networks=[cidr=10.1.0.0/16 except=[10.1.2.0/24]]",
    );
}

#[test]
fn identities_are_exact_suffixes_accounts_and_namespaces() {
    let reference = format!("{{{MESH_TLS}, name: ids}}");
    let check = |spec: &str, expect: &str| {
        let objects = policy(TO_SERVER, &reference) + &mesh_tls("ids", spec);
        check_db(
            &objects,
            &format!("authentication=mutual TLS identities=[{expect}] {EVERYWHERE}"),
        );
    };
    check("{identities: ['*']}", "*");
    check(
        "{identities: [a.b, '*.a.b', 'spiffe://example.org/a']}",
        "a.b, spiffe://example.org/a, *.a.b",
    );
    check(
        "{identityRefs: [{kind: ServiceAccount, name: web}, {kind: ServiceAccount, name: web, namespace: other}]}",
        "web.shop.serviceaccount.identity.linkerd.cluster.local, web.other.serviceaccount.identity.linkerd.cluster.local",
    );
    check(
        "{identityRefs: [{kind: Namespace, name: other}]}",
        "*.other.serviceaccount.identity.linkerd.cluster.local",
    );
}

#[test]
fn service_account_is_of_own_namespace_unless_reference_names_another() {
    check_db(
        &policy(TO_SERVER, "{kind: ServiceAccount, name: web}"),
        &format!(
            "authentication=mutual TLS identities=[web.shop.serviceaccount.identity.linkerd.cluster.local] {EVERYWHERE}"
        ),
    );
    check_db(
        &policy(
            TO_SERVER,
            "{group: '', kind: ServiceAccount, name: web, namespace: other}",
        ),
        &format!(
            "authentication=mutual TLS identities=[web.other.serviceaccount.identity.linkerd.cluster.local] {EVERYWHERE}"
        ),
    );
}

#[test]
fn references_lead_to_other_namespaces() {
    let elsewhere = |object: String| object.replace("namespace: shop", "namespace: other");
    let objects = policy(
        TO_SERVER,
        &format!(
            "{{{MESH_TLS}, name: ids, namespace: other}}, {{{NETWORK}, name: near, namespace: other}}"
        ),
    ) + &elsewhere(mesh_tls(
        "ids",
        "{identityRefs: [{kind: ServiceAccount, name: web}]}",
    )) + &elsewhere(network("near", "{cidr: 'fd00::/8'}"));
    check_db(
        &objects,
        "authentication=mutual TLS identities=[web.other.serviceaccount.identity.linkerd.cluster.local] networks=[cidr=fd00::/8]",
    );
}

#[test]
fn missing_reference_authorizes_no_client() {
    let ids = mesh_tls("ids", "{identities: [a.example]}");
    let near = network("near", "{cidr: 10.1.0.0/16}");
    for (required, present) in [
        (format!("{{{MESH_TLS}, name: ids}}"), ""),
        (format!("{{{NETWORK}, name: near}}"), ""),
        (
            format!("{{{MESH_TLS}, name: ids}}, {{{NETWORK}, name: near}}"),
            &*ids,
        ),
        (
            format!("{{{MESH_TLS}, name: ids}}, {{{NETWORK}, name: near}}"),
            &*near,
        ),
        (
            format!("{{{MESH_TLS}, name: ids, namespace: other}}"),
            &*ids,
        ),
    ] {
        check_db(&(policy(TO_SERVER, &required) + present), "");
    }
}

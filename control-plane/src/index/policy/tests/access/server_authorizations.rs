//! ServerAuthorizations: their Servers and their clients.

use mesh_cluster::source::manifest::{self, Document};
use mesh_objects::model::Kind;

use super::{DB, check, object, server, web};
use crate::index::tests::fixture;

/// Checks the message about `db` with a ServerAuthorization.
#[track_caller]
fn check_clients(selected: &str, client: &str, authorization: &str) {
    for version in ["v1beta1", "v1alpha1"] {
        let spec = format!("{{server: {selected}, client: {client}}}");
        let saz = object(version, "ServerAuthorization", "name: old", &spec);
        let mut expect = DB.to_owned();
        if !authorization.is_empty() {
            expect += "authorizations policy/serverauthorization shop/old ";
            expect += authorization;
        }
        check(&(web("") + &server("") + &saz), &expect);
    }
}

#[test]
fn server_authorization_selects_servers_by_name_or_labels() {
    let client = "{unauthenticated: true}";
    for selected in [
        "{name: db}",
        "{selector: {}}",
        "{selector: {matchLabels: {tier: data}}}",
        "{selector: {matchExpressions: [{key: tier, operator: Exists}]}}",
    ] {
        check_clients(
            selected,
            client,
            "authentication=none networks=[cidr=10.0.0.0/8]",
        );
    }
    for selected in [
        "{name: other}",
        "{selector: {matchLabels: {tier: web}}}",
        "{selector: {matchExpressions: [{key: tier, operator: DoesNotExist}]}}",
    ] {
        check_clients(selected, client, "");
    }
    let spec = "{server: {name: db}, client: {unauthenticated: true}}";
    let elsewhere = object("v1beta1", "ServerAuthorization", "name: old", spec)
        .replace("namespace: shop", "namespace: other");
    check(&(web("") + &server("") + &elsewhere), DB);
}

#[test]
fn clients_without_networks_are_those_of_the_cluster() {
    for networks in ["", "networks: [], "] {
        let client = format!("{{{networks}unauthenticated: true}}");
        check_clients(
            "{name: db}",
            &client,
            "authentication=none networks=[cidr=10.0.0.0/8]",
        );
    }
    check_clients(
        "{name: db}",
        "{unauthenticated: true, networks: [{cidr: 192.168.0.0/16, except: [192.168.1.0/24, 192.168.2.1]}, {cidr: 'fd00::1'}]}",
        "authentication=none networks=[cidr=192.168.0.0/16 except=[192.168.1.0/24, 192.168.2.1/32], cidr=fd00::1/128]",
    );
}

#[test]
fn mesh_tls_clients_have_tls_or_one_of_the_identities() {
    let check = |tls: &str, expect: &str| {
        let client = format!("{{meshTLS: {tls}}}");
        let expect = format!("authentication={expect} networks=[cidr=10.0.0.0/8]");
        check_clients("{name: db}", &client, &expect);
    };
    check("{unauthenticatedTLS: true}", "TLS");
    check("{unauthenticatedTLS: true, identities: []}", "TLS");
    let check = |tls: &str, identities: &str| {
        check(tls, &format!("mutual TLS identities=[{identities}]"));
    };
    check("{identities: ['*']}", "*");
    check(
        "{identities: [web.example, '*.b.example', 'spiffe://example.org/a']}",
        "web.example, spiffe://example.org/a, *.b.example",
    );
    check(
        "{serviceAccounts: [{name: web}, {name: api, namespace: other}]}",
        "web.shop.serviceaccount.identity.linkerd.cluster.local, api.other.serviceaccount.identity.linkerd.cluster.local",
    );
    check(
        "{identities: ['*.a'], serviceAccounts: [{name: web}]}",
        "web.shop.serviceaccount.identity.linkerd.cluster.local, *.a",
    );
}

#[test]
fn server_authorization_applies_beside_policies_and_access_policy() {
    let spec = "{server: {name: db}, client: {meshTLS: {identities: ['*']}}}";
    let objects = web("")
        + &server("accessPolicy: cluster-authenticated")
        + &object("v1beta1", "ServerAuthorization", "name: old", spec)
        + &super::policy(super::TO_SERVER, "");
    let expect = DB.to_owned()
        + "authorizations policy/authorizationpolicy shop/allow authentication=none networks=[cidr=0.0.0.0/0, cidr=::/0]
           authorizations policy/serverauthorization shop/old authentication=mutual TLS identities=[*] networks=[cidr=10.0.0.0/8]
           authorizations default/cluster-authenticated authentication=mutual TLS identities=[*] networks=[cidr=10.0.0.0/8]";
    check(&objects, &expect);
}

/// The documents of a manifest are separate, so that the others apply.
#[test]
fn invalid_server_authorization_authorizes_no_client() {
    for client in [
        "{}",
        "{unauthenticated: false}",
        "{meshTLS: {}}",
        "{meshTLS: {identities: ['*.*']}}",
        "{unauthenticated: true, meshTLS: {identities: ['*']}}",
        "{meshTLS: {unauthenticatedTLS: true, identities: ['*']}}",
        "{unauthenticated: true, networks: [{cidr: ten}]}",
        "{unauthenticated: true, networks: [{cidr: 10.0.0.0/8, except: [10.0.0.0/8]}]}",
    ] {
        let spec = format!("{{server: {{name: db}}, client: {client}}}");
        let saz = object("v1beta1", "ServerAuthorization", "name: old", &spec);
        let read = manifest::read(&(web("") + &server("") + &saz), &Kind::ALL);
        let invalid = read.iter().filter_map(|document| match document {
            Document::Invalid(invalid) => Some(invalid.to_string()),
            _ => None,
        });
        let invalid: Vec<String> = invalid.collect();
        let prefix = "ServerAuthorization shop/old: spec.client.";
        assert!(
            invalid.len() == 1 && invalid[0].starts_with(prefix),
            "{invalid:?}"
        );
        let valid = read.into_iter().filter_map(|document| match document {
            Document::Object { object, .. } => Some(object),
            _ => None,
        });
        let batch = valid.map(mesh_cluster::source::Change::Apply).collect();
        let mut index = super::PolicyIndex::new(fixture::policy_settings());
        index.apply(batch);
        let pod = super::WorkloadRef::Pod(super::Name::new("shop", "web-1"));
        assert_eq!(super::message(&mut index, pod, 3306), super::lines(DB));
    }
}

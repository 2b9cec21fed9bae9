//! AuthorizationPolicy and the authentications that it requires.

use super::{Node, identity, networks, target};
use crate::crd::{MeshTLSAuthentication, NetworkAuthentication, PolicyHttpRoute, Server};
use crate::kinds::{GrpcRoute, HttpRoute, Namespace, ServiceAccount};

pub(super) fn authorization_policy(object: &Node<'_>) {
    let Some(spec) = object.require("spec", "describe the authorization") else {
        return;
    };
    let fix =
        "name the Server, the route or the namespace that the policy authorizes connections to";
    if let Some(node) = spec.require("targetRef", fix) {
        authorization_target(&node);
    }
    let fix =
        "list the authentications that a client must satisfy, or [] to authorize every client";
    if let Some(list) = spec.require("requiredAuthenticationRefs", fix) {
        required_authentications(&list);
    }
}

fn authorization_target(node: &Node<'_>) {
    let Some(reference) = target::local(node) else {
        return;
    };
    if reference.targets::<Namespace>() {
        let own = node.namespace();
        if reference.name != own
            && let Some(name) = node.get("name")
        {
            name.invalid(
                "is another namespace than that of the policy",
                &format!("write {own:?}, or create the policy in the other namespace"),
            );
        }
        return;
    }
    let known = reference.targets::<Server>()
        || reference.targets::<PolicyHttpRoute>()
        || reference.targets::<HttpRoute>()
        || reference.targets::<GrpcRoute>();
    if !known {
        target::wrong_kind(
            node,
            reference.group.as_deref(),
            &reference.kind,
            "name a Server or HTTPRoute of policy.linkerd.io, an HTTPRoute or GRPCRoute of gateway.networking.k8s.io, or the policy's own Namespace",
        );
    }
}

/// A client has one identity and one address, so that several authentications of a kind could only
/// be satisfied together by accident.
fn required_authentications(list: &Node<'_>) {
    let (mut identities, mut networks) = (0, 0);
    for item in list.items() {
        let Some(reference) = target::namespaced(&item) else {
            continue;
        };
        if reference.targets::<NetworkAuthentication>() {
            networks += 1;
        } else if reference.targets::<MeshTLSAuthentication>()
            || reference.targets::<ServiceAccount>()
        {
            identities += 1;
        } else {
            target::wrong_kind(
                &item,
                reference.group.as_deref(),
                &reference.kind,
                "name a MeshTLSAuthentication or NetworkAuthentication of policy.linkerd.io, or a ServiceAccount",
            );
        }
    }
    if identities > 1 {
        list.conflict(
            "has more than one MeshTLSAuthentication or ServiceAccount, and no client has two identities",
            "put all identities into one MeshTLSAuthentication, or write several policies",
        );
    }
    if networks > 1 {
        list.conflict(
            "has more than one NetworkAuthentication, and no client has two addresses",
            "put all networks into one NetworkAuthentication, or write several policies",
        );
    }
}

pub(super) fn mesh_tls_authentication(object: &Node<'_>) {
    let Some(spec) = object.require("spec", "describe the identities of clients") else {
        return;
    };
    if spec.object().is_none() {
        return;
    }
    let (identities, references) = (spec.get("identities"), spec.get("identityRefs"));
    match (&identities, &references) {
        (Some(_), Some(_)) => spec.conflict(
            "has both identities and identityRefs",
            "remove one of them, or write two authentications",
        ),
        (None, None) => spec.conflict(
            "has neither identities nor identityRefs, and so matches no client",
            "set one of them",
        ),
        _ => {}
    }
    for list in identities.iter().chain(&references) {
        if list.value().as_array().is_some_and(Vec::is_empty) {
            list.invalid(
                "is empty, and so matches no client",
                "list at least one identity",
            );
        }
    }
    if let Some(list) = &identities {
        identity::identities(list);
    }
    for item in references.iter().flat_map(Node::items) {
        identity_reference(&item);
    }
}

fn identity_reference(node: &Node<'_>) {
    let Some(reference) = target::namespaced(node) else {
        return;
    };
    if reference.targets::<Namespace>() {
        if let Some(namespace) = node.get("namespace") {
            namespace.invalid(
                "is the namespace of a Namespace, which is in none",
                "remove the field, and write the name of the namespace into name",
            );
        }
    } else if !reference.targets::<ServiceAccount>() {
        let fix = "name a ServiceAccount, or a Namespace for all its ServiceAccounts";
        target::wrong_kind(node, reference.group.as_deref(), &reference.kind, fix);
    }
}

pub(super) fn network_authentication(object: &Node<'_>) {
    let spec = object.require("spec", "describe the networks of clients");
    let fix = "list at least one network";
    if let Some(list) = spec.and_then(|spec| spec.require("networks", fix)) {
        networks::some_networks(&list, fix);
    }
}

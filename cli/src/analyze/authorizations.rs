//! Policies whose target or requirements do not exist, and what no policy uses.

use super::finding::Finding;
use super::objects::{GATEWAY, Object, Objects, POLICY, list, text};

/// The protocols of Servers to which rate limits apply.
const LIMITED: [&str; 3] = ["unknown", "HTTP/1", "HTTP/2"];

pub(super) fn analyze(objects: &Objects, findings: &mut Vec<Finding>) {
    for policy in objects.of(POLICY, "AuthorizationPolicy") {
        target(objects, policy, findings);
        requirements(objects, policy, findings);
    }
    for policy in objects.of(POLICY, "ServerAuthorization") {
        servers(objects, policy, findings);
    }
    for limit in objects.of(POLICY, "HTTPLocalRateLimitPolicy") {
        rate_limit(objects, limit, findings);
    }
    for authentication in objects.of(POLICY, "MeshTLSAuthentication") {
        accounts(objects, authentication, findings);
    }
    for policy in objects.of(POLICY, "ServerAuthorization") {
        accounts_of_client(objects, policy, findings);
    }
    for kind in ["MeshTLSAuthentication", "NetworkAuthentication"] {
        for authentication in objects.of(POLICY, kind) {
            unused(objects, authentication, findings);
        }
    }
}

/// The reference of a policy to an object that does not exist.
struct Missing<'a> {
    field: &'a str,
    group: &'a str,
    kind: &'a str,
    /// Namespace and name.
    name: &'a str,
    /// What the policy does instead.
    effect: &'a str,
}

impl Missing<'_> {
    fn finding(&self, objects: &Objects, policy: &Object) -> Finding {
        let Self {
            field,
            group,
            kind,
            name,
            effect,
        } = self;
        Finding::new(
            policy,
            format!("{field}.name"),
            "missing-reference",
            format!("there is no {kind} {name}, so the policy {effect}"),
            objects.fix_of_missing(group, kind),
        )
    }
}

fn target(objects: &Objects, policy: &Object, findings: &mut Vec<Finding>) {
    let target = &policy.spec()["targetRef"];
    let (group, kind, name) = (
        text(&target["group"]),
        text(&target["kind"]),
        text(&target["name"]),
    );
    let namespace = &policy.namespace;
    match kind {
        "Namespace" if name != namespace => findings.push(Finding::new(
            policy,
            "spec.targetRef.name",
            "missing-reference",
            format!("is Namespace {name}, but a policy only applies to its own namespace"),
            format!("use {namespace}, or create the policy in {name}"),
        )),
        "Server" | "HTTPRoute" | "GRPCRoute" => {
            let group = if group == GATEWAY { GATEWAY } else { POLICY };
            let Some(route) = objects.find(group, kind, namespace, name) else {
                let full = format!("{namespace}/{name}");
                let missing = Missing {
                    field: "spec.targetRef",
                    group,
                    kind,
                    name: &full,
                    effect: "has no effect",
                };
                findings.push(missing.finding(objects, policy));
                return;
            };
            let has_server = route
                .list("parentRefs")
                .iter()
                .any(|parent| text(&parent["kind"]).eq_ignore_ascii_case("Server"));
            if kind != "Server" && !has_server {
                findings.push(Finding::new(
                    policy,
                    "spec.targetRef",
                    "no-effect",
                    format!("{kind} {name} has no Server as parent, so it does not apply to inbound requests"),
                    "authorize a route of the Server, or the Server",
                ));
            }
        }
        _ => {}
    }
}

fn requirements(objects: &Objects, policy: &Object, findings: &mut Vec<Finding>) {
    for (at, reference) in policy.list("requiredAuthenticationRefs").iter().enumerate() {
        let kind = text(&reference["kind"]);
        let namespace = reference["namespace"].as_str().unwrap_or(&policy.namespace);
        let name = text(&reference["name"]);
        let (group, exists) = match kind {
            "MeshTLSAuthentication" | "NetworkAuthentication" => (
                POLICY,
                objects.find(POLICY, kind, namespace, name).is_some(),
            ),
            "ServiceAccount" => ("", has_account(objects, namespace, name)),
            _ => continue,
        };
        if !exists {
            let field = format!("spec.requiredAuthenticationRefs[{at}]");
            let missing = Missing {
                field: &field,
                group,
                kind,
                name: &format!("{namespace}/{name}"),
                effect: "authorizes no client",
            };
            findings.push(missing.finding(objects, policy));
        }
    }
}

fn servers(objects: &Objects, policy: &Object, findings: &mut Vec<Finding>) {
    let server = &policy.spec()["server"];
    if let Some(name) = server["name"].as_str() {
        if objects
            .find(POLICY, "Server", &policy.namespace, name)
            .is_none()
        {
            let full = format!("{}/{name}", policy.namespace);
            let missing = Missing {
                field: "spec.server",
                group: POLICY,
                kind: "Server",
                name: &full,
                effect: "has no effect",
            };
            findings.push(missing.finding(objects, policy));
        }
        return;
    }
    let selector = &server["selector"];
    let mut servers = objects
        .of(POLICY, "Server")
        .filter(|server| server.namespace == policy.namespace);
    if !selector.is_null() && !servers.any(|server| server.has_labels(selector)) {
        findings.push(Finding::new(
            policy,
            "spec.server.selector",
            "selects-nothing",
            format!("selects no Server of namespace {}", policy.namespace),
            "correct the labels, which are those of Servers and not of pods",
        ));
    }
}

fn rate_limit(objects: &Objects, limit: &Object, findings: &mut Vec<Finding>) {
    let name = text(&limit.spec()["targetRef"]["name"]);
    let Some(server) = objects.find(POLICY, "Server", &limit.namespace, name) else {
        let full = format!("{}/{name}", limit.namespace);
        let missing = Missing {
            field: "spec.targetRef",
            group: POLICY,
            kind: "Server",
            name: &full,
            effect: "has no effect",
        };
        findings.push(missing.finding(objects, limit));
        return;
    };
    let protocol = server.spec()["proxyProtocol"].as_str().unwrap_or("unknown");
    if !LIMITED.contains(&protocol) {
        findings.push(Finding::new(
            limit,
            "spec.targetRef",
            "no-effect",
            format!(
                "Server {name} has proxyProtocol {protocol}, to which rate limits do not apply"
            ),
            "use a Server with proxyProtocol unknown, HTTP/1 or HTTP/2",
        ));
    }
    let older = objects
        .of(POLICY, "HTTPLocalRateLimitPolicy")
        .filter(|other| other.namespace == limit.namespace && other.age() < limit.age())
        .find(|other| text(&other.spec()["targetRef"]["name"]) == name);
    if let Some(older) = older {
        findings.push(Finding::new(
            limit,
            "spec.targetRef",
            "conflict",
            format!(
                "{} is older and limits the same Server, so this one has no effect",
                older.name
            ),
            "merge the two",
        ));
    }
}

/// Returns whether there may be a ServiceAccount. Each namespace of a cluster has at least one, so
/// that nothing is known of one without any.
fn has_account(objects: &Objects, namespace: &str, name: &str) -> bool {
    !objects.knows("", "ServiceAccount", namespace)
        || objects
            .find("", "ServiceAccount", namespace, name)
            .is_some()
}

/// Reports identities of ServiceAccounts that do not exist, in both forms.
fn accounts(objects: &Objects, authentication: &Object, findings: &mut Vec<Finding>) {
    for (at, reference) in authentication.list("identityRefs").iter().enumerate() {
        let namespace = reference["namespace"].as_str();
        let namespace = namespace.unwrap_or(&authentication.namespace);
        let name = text(&reference["name"]);
        if text(&reference["kind"]) == "ServiceAccount" {
            let field = format!("spec.identityRefs[{at}].name");
            account(objects, authentication, field, (namespace, name), findings);
        }
    }
    for (at, identity) in authentication.list("identities").iter().enumerate() {
        let mut labels = text(identity).splitn(4, '.');
        if let (Some(name), Some(namespace), Some("serviceaccount")) =
            (labels.next(), labels.next(), labels.next())
            && name != "*"
        {
            let field = format!("spec.identities[{at}]");
            account(objects, authentication, field, (namespace, name), findings);
        }
    }
}

/// Reports ServiceAccounts of a ServerAuthorization that do not exist.
fn accounts_of_client(objects: &Objects, policy: &Object, findings: &mut Vec<Finding>) {
    let accounts = list(&policy.spec()["client"]["meshTLS"]["serviceAccounts"]);
    for (at, reference) in accounts.iter().enumerate() {
        let namespace = reference["namespace"].as_str().unwrap_or(&policy.namespace);
        let field = format!("spec.client.meshTLS.serviceAccounts[{at}].name");
        let name = (namespace, text(&reference["name"]));
        account(objects, policy, field, name, findings);
    }
}

fn account(
    objects: &Objects,
    object: &Object,
    field: String,
    (namespace, name): (&str, &str),
    findings: &mut Vec<Finding>,
) {
    if !has_account(objects, namespace, name) {
        findings.push(Finding::new(
            object,
            field,
            "missing-account",
            format!(
                "there is no ServiceAccount {namespace}/{name}, so no client has this identity"
            ),
            "correct name and namespace, or create it with its pods",
        ));
    }
}

fn unused(objects: &Objects, authentication: &Object, findings: &mut Vec<Finding>) {
    let is_required = |policy: &Object| {
        list(&policy.spec()["requiredAuthenticationRefs"])
            .iter()
            .any(|reference| {
                text(&reference["kind"]) == authentication.kind
                    && text(&reference["name"]) == authentication.name
                    && reference["namespace"].as_str().unwrap_or(&policy.namespace)
                        == authentication.namespace
            })
    };
    if !objects.of(POLICY, "AuthorizationPolicy").any(is_required) {
        findings.push(Finding::new(
            authentication,
            "",
            "no-effect",
            "no AuthorizationPolicy requires it",
            "refer to it in requiredAuthenticationRefs, or delete it",
        ));
    }
}

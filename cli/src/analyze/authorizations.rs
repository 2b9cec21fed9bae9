//! Policies whose target or requirements do not exist, and what no policy uses.

use mesh_core::identity::Identity;
use mesh_core::route::filter::RequestKind;
use mesh_core::trust_domain;
use mesh_k8s::pod::PROXY_CONTAINER;
use mesh_objects::model::ParentKind;
use mesh_objects::policy::attachment::requests_of_server;
use mesh_objects::policy::rate_limit::rate_limit_of_server;
use serde_json::Value;

use super::finding::Finding;
use super::objects::{GATEWAY, Object, Objects, POLICY, list, text};
use super::routes::Attachments;

pub(super) fn analyze(
    objects: &Objects,
    attachments: &Attachments<'_>,
    findings: &mut Vec<Finding>,
) {
    for policy in objects.of(POLICY, "AuthorizationPolicy") {
        target(objects, policy, findings);
        requirements(objects, policy, findings);
    }
    for policy in objects.of(POLICY, "ServerAuthorization") {
        servers(objects, policy, findings);
        let mesh_tls = &policy.spec()["client"]["meshTLS"];
        let field = "spec.client.meshTLS";
        clients(
            objects,
            policy,
            field,
            mesh_tls,
            "serviceAccounts",
            findings,
        );
    }
    for limit in objects.of(POLICY, "HTTPLocalRateLimitPolicy") {
        rate_limit(objects, attachments, limit, findings);
    }
    for authentication in objects.of(POLICY, "MeshTLSAuthentication") {
        let spec = authentication.spec();
        clients(
            objects,
            authentication,
            "spec",
            spec,
            "identityRefs",
            findings,
        );
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
    namespace: &'a str,
    name: &'a str,
    /// What the policy does instead.
    effect: &'a str,
}

impl<'a> Missing<'a> {
    /// Refers to what the policy applies to, a Server or route of its own namespace.
    fn target(
        policy: &'a Object,
        field: &'a str,
        (group, kind, name): (&'a str, &'a str, &'a str),
    ) -> Self {
        Self {
            field,
            group,
            kind,
            namespace: &policy.namespace,
            name,
            effect: "has no effect",
        }
    }

    fn finding(&self, objects: &Objects, policy: &Object) -> Finding {
        let Self {
            field,
            group,
            kind,
            namespace,
            name,
            effect,
        } = self;
        let fix = match self.elsewhere(objects) {
            Some(other) => format!(
                "{kind} {name} is in namespace {other}: create the policy there, or correct the name"
            ),
            None => objects.fix_of_missing(group, kind),
        };
        Finding::new(
            policy,
            format!("{field}.name"),
            "missing-reference",
            format!("there is no {kind} {namespace}/{name}, so the policy {effect}"),
            fix,
        )
    }

    /// Returns the only other namespace with an object of this kind and name.
    fn elsewhere<'o>(&self, objects: &'o Objects) -> Option<&'o str> {
        let group = self.group;
        let mut same = objects
            .iter()
            .filter(|object| object.group == group && object.kind == self.kind)
            .filter(|object| object.name == self.name);
        let first = same.next()?;
        same.next().is_none().then_some(&*first.namespace)
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
                let missing = Missing::target(policy, "spec.targetRef", (group, kind, name));
                findings.push(missing.finding(objects, policy));
                return;
            };
            let mut parents = route.list("parentRefs").iter();
            let has_server = parents.any(|parent| {
                let kind = ParentKind::new(parent["group"].as_str(), parent["kind"].as_str());
                kind == ParentKind::Server
            });
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
                namespace,
                name,
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
            let missing = Missing::target(policy, "spec.server", (POLICY, "Server", name));
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

fn rate_limit(
    objects: &Objects,
    attachments: &Attachments<'_>,
    limit: &Object,
    findings: &mut Vec<Finding>,
) {
    let name = text(&limit.spec()["targetRef"]["name"]);
    let Some(server) = objects.find(POLICY, "Server", &limit.namespace, name) else {
        let missing = Missing::target(limit, "spec.targetRef", (POLICY, "Server", name));
        findings.push(missing.finding(objects, limit));
        return;
    };
    // An invalid Server is reported itself.
    let Some(server) = server.server() else {
        return;
    };
    if requests_of_server(server, attachments.of_server(server)) != Some(RequestKind::Http) {
        findings.push(Finding::new(
            limit,
            "spec.targetRef",
            "no-effect",
            format!(
                "Server {name} has proxyProtocol {}, to which rate limits do not apply",
                server.protocol
            ),
            "use a Server with proxyProtocol unknown, HTTP/1 or HTTP/2",
        ));
    }
    let all = objects
        .store()
        .rate_limit_policies_in(&server.name.namespace);
    if limit.record().is_some()
        && let Some(applies) = rate_limit_of_server(server, all)
        && *applies.name.name != *limit.name
    {
        findings.push(Finding::new(
            limit,
            "spec.targetRef",
            "conflict",
            format!(
                "{} is older and limits the same Server, so this one has no effect",
                applies.name.name
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

/// Reports clients that do not exist: the identities of a field, and its references to
/// ServiceAccounts.
fn clients(
    objects: &Objects,
    object: &Object,
    field: &str,
    listed: &Value,
    references: &str,
    findings: &mut Vec<Finding>,
) {
    for (at, identity) in list(&listed["identities"]).iter().enumerate() {
        let field = format!("{field}.identities[{at}]");
        // Proxies compare them without regard to case.
        let identity = text(identity).to_ascii_lowercase();
        if may_be_trusted(objects, &identity) {
            continue;
        }
        if let Some(end) = foreign_to(objects, &identity) {
            findings.push(Finding::new(
                object,
                field,
                "foreign-identity",
                format!(
                    "is {identity:?}, which no client of this mesh has: its identities end in {end}"
                ),
                format!("write it as ACCOUNT.NAMESPACE{end}"),
            ));
        } else if let Some(named) = account_of_identity(&identity) {
            account(objects, object, field, named, findings);
        }
    }
    // References to namespaces are in the same list.
    for (at, reference) in list(&listed[references]).iter().enumerate() {
        let kind = reference["kind"].as_str().unwrap_or("ServiceAccount");
        if kind == "ServiceAccount" {
            let namespace = reference["namespace"].as_str();
            let namespace = namespace.unwrap_or(&object.namespace);
            let field = format!("{field}.{references}[{at}].name");
            let named = (namespace, text(&reference["name"]));
            account(objects, object, field, named, findings);
        }
    }
}

/// Returns whether an identity, or one with the suffix after `*`, can be of another cluster whose
/// trust domain is trusted. Its ServiceAccounts are unknown here.
fn may_be_trusted(objects: &Objects, identity: &str) -> bool {
    let Some(domains) = objects.foreign_domains() else {
        return !own_end(objects).is_some_and(|end| identity.ends_with(&end));
    };
    let suffix = identity.strip_prefix('*');
    let name = Identity::Dns(suffix.unwrap_or(identity).into());
    domains.iter().any(|domain| {
        let is_wider = suffix.is_some_and(|suffix| format!(".{domain}").ends_with(suffix));
        is_wider || trust_domain::is_member(&name, domain)
    })
}

/// Returns the end of the identities of this mesh, if its values are known.
fn own_end(objects: &Objects) -> Option<String> {
    let values = objects.values()?;
    let (namespace, domain) = (&values.namespace, values.trust_domain());
    Some(format!(".serviceaccount.identity.{namespace}.{domain}"))
}

/// Returns the end of the mesh's identities if an identity, or every one with the suffix after `*`,
/// has another. Machines may have any, and SPIFFE identities are not compared.
fn foreign_to(objects: &Objects, identity: &str) -> Option<String> {
    let end = own_end(objects)?;
    let suffix = identity.strip_prefix('*');
    let is_matched = |own: &str| {
        let own = own.to_ascii_lowercase();
        own == identity || suffix.is_some_and(|suffix| own.ends_with(suffix))
    };
    let may_exist = identity.starts_with("spiffe://")
        || identity.ends_with(&end)
        || suffix.is_some_and(|suffix| end.ends_with(suffix))
        || objects.external_identities().any(is_matched);
    (!may_exist).then_some(end)
}

/// Returns namespace and name of the ServiceAccount with an identity; `None` for one with a
/// wildcard.
fn account_of_identity(identity: &str) -> Option<(&str, &str)> {
    let mut labels = identity.splitn(4, '.');
    let (name, namespace, kind) = (labels.next()?, labels.next()?, labels.next()?);
    (kind == "serviceaccount" && name != "*").then_some((namespace, name))
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
    } else if let Some(pod) = unmeshed_pod(objects, namespace, name) {
        findings.push(Finding::new(
            object,
            field,
            "unmeshed-account",
            format!(
                "no pod of ServiceAccount {namespace}/{name} has a proxy, so no client has this identity"
            ),
            format!(
                "annotate the template of its workload with linkerd.io/inject: enabled (kubectl -n {namespace} describe pod {pod} names it), or authorize its networks"
            ),
        ));
    }
}

/// Returns a pod of a ServiceAccount that has pods, none of them with a proxy. Only pods of a
/// cluster are taken into account; a manifest has no proxy yet.
fn unmeshed_pod<'a>(objects: &'a Objects, namespace: &str, name: &str) -> Option<&'a str> {
    let mut first = None;
    let pods = objects.of("", "Pod").filter(|pod| {
        let account = pod.spec()["serviceAccountName"].as_str();
        pod.namespace == namespace
            && account.unwrap_or("default") == name
            && pod.json["status"]["phase"] == "Running"
    });
    for pod in pods {
        let containers = ["initContainers", "containers"].map(|field| pod.list(field));
        let mut containers = containers.into_iter().flatten();
        if containers.any(|container| container["name"] == PROXY_CONTAINER) {
            return None;
        }
        first = first.or(Some(&*pod.name));
    }
    first
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

//! Names of the objects that policies come from.

use mesh_core::meta::Meta;

/// Shows the object that a part of a policy comes from: `Server shop/web`.
pub(super) fn object(meta: &Meta) -> String {
    object_in(meta, "")
}

/// The same, for an object whose namespace the controller may have left out because it is that of
/// the pod.
pub(super) fn object_in(meta: &Meta, namespace: &str) -> String {
    let resource = match meta {
        Meta::Default(name) => return format!("default {name}"),
        Meta::Resource(resource) => resource,
    };
    let namespace = match &*resource.namespace {
        "" => namespace,
        own => own,
    };
    let separator = if namespace.is_empty() { "" } else { "/" };
    let mut text = format!(
        "{} {namespace}{separator}{}",
        kind(&resource.kind),
        resource.name
    );
    if !resource.section.is_empty() {
        text += &format!(" section {}", resource.section);
    }
    text
}

/// Returns a kind as manifests spell it. The metadata of inbound policies has it in lower case, as
/// Linkerd's.
pub(super) fn kind(text: &str) -> &str {
    const KINDS: [&str; 7] = [
        "Server",
        "AuthorizationPolicy",
        "ServerAuthorization",
        "HTTPRoute",
        "GRPCRoute",
        "HTTPLocalRateLimitPolicy",
        "Service",
    ];
    let same = |kind: &&&str| kind.eq_ignore_ascii_case(text);
    KINDS.iter().find(same).copied().unwrap_or(text)
}

#[cfg(test)]
mod tests {
    use mesh_core::meta::Resource;

    use super::*;

    #[test]
    fn kind_and_namespace_are_completed() {
        let meta = |kind: &str, namespace: &str| {
            Meta::Resource(Resource::new("policy.linkerd.io", kind, namespace, "web"))
        };
        assert_eq!(object_in(&meta("server", ""), "shop"), "Server shop/web");
        assert_eq!(object(&meta("httproute", "shop")), "HTTPRoute shop/web");
        assert_eq!(object(&meta("Future", "")), "Future web");
        assert_eq!(object(&Meta::new_default("http")), "default http");
    }
}

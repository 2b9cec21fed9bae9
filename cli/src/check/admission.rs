//! Why the API server rejected a pod, by its message, and what to do about it.

/// The webhooks of the mesh end in this domain.
const OWN: &str = ".linkerd.io";

/// The obstacle that a message of the API server names.
#[derive(Debug, PartialEq, Eq)]
enum Obstacle<'a> {
    /// A ResourceQuota that is used up.
    Quota(&'a str),
    /// A LimitRange of the namespace excludes the resources of a container.
    LimitRange,
    /// The level of Pod Security that the namespace enforces.
    PodSecurity,
    /// A webhook that could not be called.
    Unreachable(&'a str),
    /// A webhook that denied the pod.
    Denied(&'a str),
    /// A ServiceAccount that does not exist.
    Account,
}

/// Returns how to remove the obstacle for pods of a namespace.
pub(super) fn fix(message: &str, namespace: &str) -> Option<String> {
    Some(match obstacle(message)? {
        Obstacle::Quota(name) => format!(
            "kubectl -n {namespace} delete resourcequota {name}, or raise it: kubectl -n {namespace} edit resourcequota {name}"
        ),
        Obstacle::LimitRange => format!(
            "kubectl -n {namespace} describe limitrange; change it, or set the proxy's resources within it: config.linkerd.io/proxy-cpu-request, proxy-cpu-limit, proxy-memory-request and proxy-memory-limit"
        ),
        Obstacle::PodSecurity => format!(
            "kubectl get namespace {namespace} -o yaml shows the enforced level (pod-security.kubernetes.io/enforce); lower it, or correct the securityContext that the message names"
        ),
        Obstacle::Denied(name) if name.ends_with(OWN) => {
            "correct what the message names in the template of the workload".to_owned()
        }
        Obstacle::Denied(name) => format!(
            "webhook {name} is another product's: meet its rule, or exempt namespace {namespace} there; {}",
            find(name)
        ),
        Obstacle::Unreachable(name) if name.ends_with(OWN) => return None,
        Obstacle::Unreachable(name) => format!(
            "webhook {name} is another product's and fails closed: repair its server, or set its failurePolicy to Ignore; {}",
            find(name)
        ),
        Obstacle::Account => format!(
            "kubectl -n {namespace} create serviceaccount NAME, with the name in the message"
        ),
    })
}

/// Returns the command that finds the configuration of a webhook, whose name the message lacks.
fn find(webhook: &str) -> String {
    format!(
        "kubectl get mutatingwebhookconfigurations,validatingwebhookconfigurations -o custom-columns=KIND:.kind,NAME:.metadata.name,WEBHOOKS:.webhooks[*].name | grep {webhook}"
    )
}

fn obstacle(message: &str) -> Option<Obstacle<'_>> {
    let after = |text: &str| message.split_once(text).map(|(_, rest)| rest);
    let quoted = |text: &str| after(text).and_then(|rest| rest.split('"').next());
    if let Some(name) = after("exceeded quota: ").and_then(|rest| rest.split(',').next()) {
        return Some(Obstacle::Quota(name));
    }
    if let Some(name) = quoted("failed calling webhook \"") {
        return Some(Obstacle::Unreachable(name));
    }
    if let Some(name) = quoted("admission webhook \"") {
        return Some(Obstacle::Denied(name));
    }
    if message.contains("violates PodSecurity") {
        return Some(Obstacle::PodSecurity);
    }
    if message.contains("error looking up service account") {
        return Some(Obstacle::Account);
    }
    // LimitRanger: "maximum cpu usage per Container is 1, but limit is 2".
    let per_object = ["per Container", "per Pod"];
    let limits = ["maximum ", "minimum ", "max limit to request ratio "];
    let is_limit = limits.iter().any(|limit| message.contains(limit))
        && per_object.iter().any(|object| message.contains(object));
    is_limit.then_some(Obstacle::LimitRange)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_name_the_obstacle() {
        for (message, expect) in [
            (
                "pods \"a\" is forbidden: exceeded quota: small, requested: cpu=1, used: cpu=2, limited: cpu=2",
                Some(Obstacle::Quota("small")),
            ),
            (
                "pods \"a\" is forbidden: maximum cpu usage per Container is 100m, but limit is 1",
                Some(Obstacle::LimitRange),
            ),
            (
                "pods \"a\" is forbidden: cpu max limit to request ratio per Container is 2, but provided ratio is 10.0",
                Some(Obstacle::LimitRange),
            ),
            (
                "pods \"a\" is forbidden: violates PodSecurity \"restricted:latest\": …",
                Some(Obstacle::PodSecurity),
            ),
            (
                "Internal error occurred: failed calling webhook \"check.example.com\": failed to call webhook: connection refused",
                Some(Obstacle::Unreachable("check.example.com")),
            ),
            (
                "admission webhook \"linkerd-proxy-injector.linkerd.io\" denied the request: config.linkerd.io/proxy-cpu-limit: \"x\" is not a quantity",
                Some(Obstacle::Denied("linkerd-proxy-injector.linkerd.io")),
            ),
            (
                "pods \"a\" is forbidden: error looking up service account shop/web: serviceaccount \"web\" not found",
                Some(Obstacle::Account),
            ),
            ("the server was unable to return a response", None),
        ] {
            assert_eq!(obstacle(message), expect, "{message}");
        }
    }

    /// The check of the injector has its own advice.
    #[test]
    fn only_webhooks_of_other_products_are_blamed() {
        let fails = |name: &str| format!("failed calling webhook \"{name}\": timeout");
        assert_eq!(
            fix(&fails("linkerd-proxy-injector.linkerd.io"), "shop"),
            None
        );
        let other = fix(&fails("check.example.com"), "shop").unwrap();
        assert!(other.contains("grep check.example.com"), "{other}");
    }
}

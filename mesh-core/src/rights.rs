//! The rights of a process at the API server of Kubernetes, in the words of RBAC.
//!
//! Each component lists its rights beside its calls. A call that the list lacks is refused before
//! it is sent, and tests compare the lists with the roles of the charts in both directions, so that
//! a chart grants what the code uses and nothing else.

use std::borrow::Cow;
use std::fmt;

pub mod service_mirror;

/// A verb on a resource.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Right {
    /// The API group; empty for the core group.
    pub group: &'static str,
    /// The resource in plural, with its subresource such as `nodes/status`; `*` for all of the
    /// group.
    pub resource: Cow<'static, str>,
    /// The verb, such as `list`.
    pub verb: &'static str,
    /// The name of the only object, for an installation with the default namespaces; `None` for all
    /// of them.
    pub name: Option<Cow<'static, str>>,
}

/// What a request does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Action {
    group: String,
    resource: String,
    verb: &'static str,
}

/// A call without a right.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NoRightError {
    program: String,
    action: Action,
}

/// Returns the rights to all objects of a resource.
pub fn all(
    group: &'static str,
    resource: impl Into<Cow<'static, str>>,
    verbs: &[&'static str],
) -> impl Iterator<Item = Right> {
    rights(group, resource.into(), verbs, None)
}

/// Returns the rights to one object of a resource.
pub fn named(
    group: &'static str,
    resource: impl Into<Cow<'static, str>>,
    verbs: &[&'static str],
    name: impl Into<Cow<'static, str>>,
) -> impl Iterator<Item = Right> {
    rights(group, resource.into(), verbs, Some(name.into()))
}

/// Returns the rights to hold a Lease. A patch creates it; the API server authorizes this as create
/// and as patch.
pub fn lease(name: impl Into<Cow<'static, str>>) -> impl Iterator<Item = Right> {
    let group = "coordination.k8s.io";
    all(group, "leases", &["create"]).chain(named(group, "leases", &["get", "patch"], name))
}

fn rights(
    group: &'static str,
    resource: Cow<'static, str>,
    verbs: &[&'static str],
    name: Option<Cow<'static, str>>,
) -> impl Iterator<Item = Right> {
    verbs.iter().map(move |&verb| Right {
        group,
        resource: resource.clone(),
        verb,
        name: name.clone(),
    })
}

/// Checks that `rights` include what a request of a program does.
///
/// # Errors
///
/// None of them does.
pub fn check(
    program: &str,
    rights: &[Right],
    (method, path, query): (&str, &str, &str),
) -> Result<(), NoRightError> {
    match Action::of_request(method, path, query) {
        Some(action) if !rights.iter().any(|right| right.includes(&action)) => Err(NoRightError {
            program: program.to_owned(),
            action,
        }),
        _ => Ok(()),
    }
}

impl Right {
    /// Whether the right includes an action. Names are not compared, because they depend on the
    /// namespaces of an installation; the API server does.
    pub fn includes(&self, action: &Action) -> bool {
        self.verb == action.verb
            && self.group == action.group
            && (self.resource == "*" || self.resource == action.resource)
    }
}

impl fmt::Display for Right {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_resource(f, self.verb, self.group, &self.resource)?;
        match &self.name {
            Some(name) => write!(f, " {name}"),
            None => Ok(()),
        }
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_resource(f, self.verb, &self.group, &self.resource)
    }
}

impl fmt::Display for NoRightError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { program, action } = self;
        write!(
            f,
            "the rights of {program} do not include to {action}: add it to the list beside its code, and to its role in helm"
        )
    }
}

impl std::error::Error for NoRightError {}

fn write_resource(
    f: &mut fmt::Formatter<'_>,
    verb: &str,
    group: &str,
    resource: &str,
) -> fmt::Result {
    let point = if group.is_empty() { "" } else { "." };
    write!(f, "{verb} {resource}{point}{group}")
}

impl Action {
    /// Returns what the API server authorizes for a request; `None` for requests that are not about
    /// resources, such as `/version` and discovery.
    /// (<https://kubernetes.io/docs/reference/access-authn-authz/authorization/>)
    pub fn of_request(method: &str, path: &str, query: &str) -> Option<Self> {
        let mut parts = path.split('/').filter(|part| !part.is_empty());
        let group = match parts.next()? {
            "api" => "",
            "apis" => parts.next()?,
            _ => return None,
        };
        let _version = parts.next()?;
        let mut parts: Vec<&str> = parts.collect();
        // The form of watches before Kubernetes 1.0, which the tap API has.
        let is_old_watch = parts.first() == Some(&"watch");
        if is_old_watch {
            parts.remove(0);
        }
        let is_namespaced = parts.first() == Some(&"namespaces") && parts.len() > 2;
        if is_namespaced && !["status", "finalize"].contains(&parts[2]) {
            parts.drain(..2);
        }
        let (resource, name) = (*parts.first()?, parts.get(1));
        let resource = match parts.get(2) {
            Some(subresource) => format!("{resource}/{subresource}"),
            None => resource.to_owned(),
        };
        let is_watch = query
            .split('&')
            .any(|parameter| ["watch=true", "watch=1"].contains(&parameter));
        let verb = match (method, name) {
            _ if is_old_watch => "watch",
            ("GET" | "HEAD", Some(_)) => "get",
            ("GET" | "HEAD", None) if is_watch => "watch",
            ("GET" | "HEAD", None) => "list",
            ("POST", _) => "create",
            ("PUT", _) => "update",
            ("PATCH", _) => "patch",
            ("DELETE", Some(_)) => "delete",
            ("DELETE", None) => "deletecollection",
            // No right is for another method.
            _ => "",
        };
        Some(Self {
            group: group.to_owned(),
            resource,
            verb,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_have_the_verb_and_the_resource_of_the_api_server() {
        for (method, target, expected) in [
            ("GET", "/api/v1/pods", "list pods"),
            ("GET", "/api/v1/pods?watch=true&x=y", "watch pods"),
            (
                "GET",
                "/api/v1/pods?fieldSelector=watch%3Dtrue",
                "list pods",
            ),
            ("GET", "/api/v1/namespaces", "list namespaces"),
            ("PATCH", "/api/v1/namespaces/a", "patch namespaces"),
            (
                "PUT",
                "/api/v1/namespaces/a/status",
                "update namespaces/status",
            ),
            ("GET", "/api/v1/namespaces/a/pods", "list pods"),
            ("GET", "/api/v1/namespaces/a/pods/b", "get pods"),
            ("GET", "/api/v1/namespaces/a/pods/b/log", "get pods/log"),
            ("POST", "/api/v1/namespaces/a/secrets", "create secrets"),
            ("DELETE", "/api/v1/namespaces/a/secrets/b", "delete secrets"),
            (
                "DELETE",
                "/api/v1/namespaces/a/secrets",
                "deletecollection secrets",
            ),
            (
                "PATCH",
                "/apis/policy.linkerd.io/v1alpha1/namespaces/a/egressnetworks/b/status",
                "patch egressnetworks/status.policy.linkerd.io",
            ),
            (
                "POST",
                "/apis/tap.linkerd.io/v1alpha1/watch/namespaces/a/deployments/b/tap",
                "watch deployments/tap.tap.linkerd.io",
            ),
            ("TRACE", "/api/v1/nodes/a", " nodes"),
        ] {
            let (path, query) = target.split_once('?').unwrap_or((target, ""));
            let action = Action::of_request(method, path, query).unwrap();
            assert_eq!(action.to_string(), expected, "{method} {target}");
        }
        for path in ["/version", "/apis", "/apis/apps/v1", "/api/v1", "/healthz"] {
            assert_eq!(Action::of_request("GET", path, ""), None, "{path}");
        }
    }

    #[test]
    fn rights_include_their_verbs_and_resources_only() {
        let action = |path| Action::of_request("GET", path, "").unwrap();
        let get: Vec<Right> = named("apps", "deployments", &["get"], "web").collect();
        assert!(get[0].includes(&action("/apis/apps/v1/namespaces/a/deployments/b")));
        for other in [
            "/apis/apps/v1/namespaces/a/deployments",
            "/apis/apps/v1/namespaces/a/deployments/b/scale",
            "/apis/apps/v1/namespaces/a/daemonsets/b",
            "/apis/extensions/v1/namespaces/a/deployments/b",
        ] {
            assert!(!get[0].includes(&action(other)), "{other}");
        }
        let error = check("web", &get, ("GET", "/api/v1/secrets", "")).unwrap_err();
        let error = error.to_string();
        assert!(
            error.contains("rights of web do not include to list secrets"),
            "{error}"
        );
        assert!(check("web", &get, ("GET", "/version", "")).is_ok());
        let any: Vec<Right> = all("apps", "*", &["get"]).collect();
        assert!(any[0].includes(&action("/apis/apps/v1/namespaces/a/deployments/b/scale")));
    }

    #[test]
    fn right_is_its_verb_resource_group_and_name() {
        let rights =
            named("", "secrets", &["get", "update"], "a").chain(all("batch", "jobs", &["list"]));
        let texts: Vec<String> = rights.map(|right| right.to_string()).collect();
        assert_eq!(
            texts,
            ["get secrets a", "update secrets a", "list jobs.batch"]
        );
    }
}

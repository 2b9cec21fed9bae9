//! Resources in the notation of kubectl: `deploy`, `deploy/web`, `po web-0`. Scopes, pods and the
//! reports of node agents are below. None of it has a connection.

mod agent;
pub(crate) mod pod;
mod scope;
mod tap_state;

use crate::exit::Failure;

pub(crate) use self::{agent::AgentReport, pod::MeshPod, scope::Scope, tap_state::TapState};

/// A kind that commands accept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum ResourceKind {
    All,
    Authority,
    AuthorizationPolicy,
    CronJob,
    DaemonSet,
    Deployment,
    HttpRoute,
    Job,
    Namespace,
    Pod,
    ReplicaSet,
    ReplicationController,
    Server,
    ServerAuthorization,
    Service,
    StatefulSet,
}

/// A kind, and the name of one object unless all are meant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Resource {
    pub(crate) kind: ResourceKind,
    pub(crate) name: Option<String>,
}

/// The short name, the name in the APIs and the plural of each kind, as in Linkerd.
#[rustfmt::skip] // a table, one row a line
const NAMES: [(ResourceKind, &str, &str, &str); 16] = [
    (ResourceKind::All, "all", "all", "all"),
    (ResourceKind::Authority, "au", "authority", "authorities"),
    (ResourceKind::AuthorizationPolicy, "authzpolicy", "authorizationpolicy", "authorizationpolicies"),
    (ResourceKind::CronJob, "cj", "cronjob", "cronjobs"),
    (ResourceKind::DaemonSet, "ds", "daemonset", "daemonsets"),
    (ResourceKind::Deployment, "deploy", "deployment", "deployments"),
    (ResourceKind::HttpRoute, "httproute", "httproute", "httproutes"),
    (ResourceKind::Job, "job", "job", "jobs"),
    (ResourceKind::Namespace, "ns", "namespace", "namespaces"),
    (ResourceKind::Pod, "po", "pod", "pods"),
    (ResourceKind::ReplicaSet, "rs", "replicaset", "replicasets"),
    (ResourceKind::ReplicationController, "rc", "replicationcontroller", "replicationcontrollers"),
    (ResourceKind::Server, "srv", "server", "servers"),
    (ResourceKind::ServerAuthorization, "saz", "serverauthorization", "serverauthorizations"),
    (ResourceKind::Service, "svc", "service", "services"),
    (ResourceKind::StatefulSet, "sts", "statefulset", "statefulsets"),
];

/// The kinds of objects that own pods.
pub(crate) const WORKLOADS: [ResourceKind; 7] = [
    ResourceKind::CronJob,
    ResourceKind::DaemonSet,
    ResourceKind::Deployment,
    ResourceKind::Job,
    ResourceKind::ReplicaSet,
    ResourceKind::ReplicationController,
    ResourceKind::StatefulSet,
];

impl ResourceKind {
    /// Parses any of a kind's names. The case does not matter.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let text = text.to_ascii_lowercase();
        let is = |(_, short, full, plural): &(Self, &str, &str, &str)| {
            [*short, *full, *plural].contains(&text.as_str())
        };
        NAMES.iter().find(|names| is(names)).map(|names| names.0)
    }

    /// Returns the short name of an API's name, which may be of a kind that no command accepts.
    pub(crate) fn short_of(name: &str) -> &str {
        match Self::parse(name) {
            Some(kind) => kind.short(),
            None => name,
        }
    }

    /// Returns the name in the APIs.
    pub(crate) fn as_str(self) -> &'static str {
        self.names().2
    }

    /// Returns the name in the paths of the API server.
    pub(crate) fn plural(self) -> &'static str {
        self.names().3
    }

    pub(crate) fn short(self) -> &'static str {
        self.names().1
    }

    pub(crate) fn is_policy(self) -> bool {
        matches!(
            self,
            Self::AuthorizationPolicy | Self::HttpRoute | Self::Server | Self::ServerAuthorization
        )
    }

    /// Returns whether pods belong to objects of this kind.
    pub(crate) fn has_pods(self) -> bool {
        WORKLOADS.contains(&self) || matches!(self, Self::Namespace | Self::Pod)
    }

    fn names(self) -> (Self, &'static str, &'static str, &'static str) {
        // Each kind has a row, in the order of the kinds.
        NAMES[self as usize]
    }
}

impl Resource {
    /// Parses `KIND`, `KIND/` or `KIND/NAME`.
    pub(crate) fn parse(text: &str) -> Result<Self, Failure> {
        let (kind, name) = text.split_once('/').unwrap_or((text, ""));
        let kind = ResourceKind::parse(kind).ok_or_else(|| invalid(text))?;
        if name.contains('/') || (kind == ResourceKind::All && !name.is_empty()) {
            return Err(invalid(text));
        }
        Ok(Self {
            kind,
            name: (!name.is_empty()).then(|| name.to_owned()),
        })
    }

    /// Parses the arguments of a command: `KIND [NAME…]`, or several of `KIND` and `KIND/NAME`.
    pub(crate) fn parse_all(texts: &[String]) -> Result<Vec<Self>, Failure> {
        let resources = match texts {
            [kind, names @ ..] if !names.is_empty() && ResourceKind::parse(kind).is_some() => {
                let are_names = names
                    .iter()
                    .all(|name| !name.contains('/') && ResourceKind::parse(name).is_none());
                if are_names {
                    let named = names.iter().map(|name| format!("{kind}/{name}"));
                    named
                        .map(|text| Self::parse(&text))
                        .collect::<Result<Vec<_>, _>>()?
                } else {
                    parse_each(texts)?
                }
            }
            _ => parse_each(texts)?,
        };
        for (index, resource) in resources.iter().enumerate() {
            if resource.kind == ResourceKind::All && resources.len() > 1 {
                let problem = "all cannot be combined with other resources";
                return Err(Failure::Input(problem.to_owned()));
            }
            if resources[..index].contains(resource) {
                return Err(Failure::Input(format!("{resource} is given twice")));
            }
        }
        Ok(resources)
    }

    /// Parses the arguments of a command about one resource: `KIND`, `KIND/NAME` or `KIND NAME`.
    pub(crate) fn parse_one(texts: &[String]) -> Result<Self, Failure> {
        let mut resources = Self::parse_all(texts)?;
        match resources.pop() {
            Some(resource) if resources.is_empty() => Ok(resource),
            _ => Err(Failure::Input(format!(
                "expected one resource, got {:?}",
                texts.join(" ")
            ))),
        }
    }
}

impl std::fmt::Display for Resource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.name {
            Some(name) => write!(f, "{}/{name}", self.kind.short()),
            None => f.write_str(self.kind.as_str()),
        }
    }
}

fn parse_each(texts: &[String]) -> Result<Vec<Resource>, Failure> {
    texts.iter().map(|text| Resource::parse(text)).collect()
}

fn invalid(text: &str) -> Failure {
    let kinds: Vec<&str> = NAMES.iter().map(|names| names.1).collect();
    Failure::Input(format!(
        "invalid resource {text:?}: expected KIND or KIND/NAME, where KIND is one of {}",
        kinds.join(", ")
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<String> {
        text.split(' ').map(str::to_owned).collect()
    }

    #[test]
    fn each_kind_has_its_row() {
        for (row, (kind, ..)) in NAMES.iter().enumerate() {
            assert_eq!(*kind as usize, row, "{kind:?}");
        }
        assert_eq!(ResourceKind::Deployment.plural(), "deployments");
        assert_eq!(
            ResourceKind::parse("StatefulSets"),
            Some(ResourceKind::StatefulSet)
        );
        assert_eq!(ResourceKind::short_of("deployment"), "deploy");
        assert_eq!(ResourceKind::short_of("gadget"), "gadget");
    }

    #[test]
    fn arguments_are_parsed() {
        for (text, expect) in [
            ("deploy", "deployment"),
            ("deploy/", "deployment"),
            ("deploy/web", "deploy/web"),
            ("deploy web", "deploy/web"),
            ("po web-0 web-1", "po/web-0 po/web-1"),
            ("po/web-0 rc/db", "po/web-0 rc/db"),
            ("deploy po", "deployment pod"),
            ("all", "all"),
        ] {
            let found = Resource::parse_all(&words(text)).unwrap();
            let found: Vec<String> = found.iter().map(ToString::to_string).collect();
            assert_eq!(found.join(" "), expect, "{text}");
        }
    }

    #[test]
    fn invalid_arguments_are_refused() {
        for (text, problem) in [
            ("gadget/web", "invalid resource \"gadget/web\""),
            ("web", "one of all, au"),
            ("deploy/a/b", "invalid resource"),
            ("all/web", "invalid resource"),
            ("all po", "cannot be combined"),
            ("deploy web web", "deploy/web is given twice"),
            ("deploy web po/a", "invalid resource \"web\""),
        ] {
            let error = Resource::parse_all(&words(text)).unwrap_err().to_string();
            assert!(error.contains(problem), "{text}: {error}");
        }
        let error = Resource::parse_one(&words("po a b")).unwrap_err();
        assert!(error.to_string().contains("expected one resource"));
    }
}

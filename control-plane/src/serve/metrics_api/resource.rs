//! Resources of requests, and the labels with which Prometheus' series name them.
//!
//! Labels without prefix name the pod whose proxy exports a series, those with `dst_` the peer of
//! an outbound series.

use mesh_api::linkerd2::viz;
use mesh_k8s::kinds::{LabelSelector, LabelSelectorRequirement};

use crate::metrics_api::{Grouping, Matchers};
use crate::model::{ListedKind, Selector, workload_label};

/// What a request is about. An empty namespace or name means all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Target {
    pub(super) kind: TargetKind,
    pub(super) namespace: String,
    pub(super) name: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TargetKind {
    Object(ListedKind),
    /// The host of requests.
    Authority,
}

/// The type for the nine kinds of [`ALL_KINDS`].
pub(super) const ALL: &str = "all";

/// The kinds of `all`, in the order of their tables.
pub(super) const ALL_KINDS: [ListedKind; 9] = [
    ListedKind::DaemonSet,
    ListedKind::StatefulSet,
    ListedKind::Job,
    ListedKind::Deployment,
    ListedKind::ReplicationController,
    ListedKind::Pod,
    ListedKind::Service,
    ListedKind::CronJob,
    ListedKind::ReplicaSet,
];

/// Names in Kubernetes have at most 253 characters, and so have authorities apart from their port.
const MAX_NAME: usize = 300;

/// The command line has no limit of its own.
const MAX_SELECTOR: usize = 4096;

impl TargetKind {
    pub(super) fn parse(name: &str) -> Result<Self, String> {
        if name == "authority" {
            return Ok(Self::Authority);
        }
        match ListedKind::of_resource_type(name) {
            None | Some(ListedKind::ServiceProfile) => {
                let shown: String = name.chars().take(MAX_NAME).collect();
                Err(format!("unimplemented resource type: {shown}"))
            }
            Some(kind) => Ok(Self::Object(kind)),
        }
    }

    pub(super) fn resource_type(self) -> &'static str {
        match self {
            Self::Object(kind) => kind.resource_type(),
            Self::Authority => "authority",
        }
    }

    /// Returns the label with the name of the object.
    pub(super) fn label(self) -> &'static str {
        workload_label(self.resource_type())
    }

    /// Returns the label with the name of an object that receives requests.
    pub(super) fn dst_label(self) -> String {
        match self {
            Self::Authority => "authority".to_owned(),
            kind => format!("dst_{}", kind.label()),
        }
    }

    pub(super) fn is_policy(self) -> bool {
        matches!(
            self,
            Self::Object(
                ListedKind::Server
                    | ListedKind::ServerAuthorization
                    | ListedKind::AuthorizationPolicy
                    | ListedKind::HttpRoute
            )
        )
    }

    fn is_namespace(self) -> bool {
        self == Self::Object(ListedKind::Namespace)
    }

    /// Returns the labels with the namespace and name of an object.
    pub(super) fn grouping(self) -> Grouping {
        if self.is_namespace() {
            Grouping::of(&["namespace"])
        } else {
            Grouping::of(&["namespace", self.label()])
        }
    }

    /// Returns the labels with the namespace and name of an object that receives requests.
    pub(super) fn dst_grouping(self) -> Grouping {
        if self.is_namespace() {
            Grouping::of(&["dst_namespace"])
        } else {
            Grouping::of(&["dst_namespace", &self.dst_label()])
        }
    }
}

impl Target {
    pub(super) fn parse(resource: &viz::Resource) -> Result<Self, String> {
        let target = Self {
            kind: TargetKind::parse(&resource.r#type)?,
            namespace: resource.namespace.clone(),
            name: resource.name.clone(),
        };
        target.check_length()?;
        Ok(target)
    }

    pub(super) fn check_length(&self) -> Result<(), String> {
        if self.namespace.len() > MAX_NAME || self.name.len() > MAX_NAME {
            return Err(format!("names have at most {MAX_NAME} characters"));
        }
        Ok(())
    }

    /// Returns the matchers of series that proxies of the target export.
    pub(super) fn matchers(&self) -> Matchers {
        let mut matchers = Matchers::new();
        if !self.name.is_empty() {
            let policy = |kind: &str, value: &str| {
                Matchers::new()
                    .equal(format!("{kind}_kind"), value)
                    .equal(format!("{kind}_name"), &*self.name)
            };
            matchers = match self.kind {
                TargetKind::Object(ListedKind::Server) => policy("srv", "server"),
                TargetKind::Object(ListedKind::ServerAuthorization) => {
                    policy("authz", "serverauthorization")
                }
                TargetKind::Object(ListedKind::AuthorizationPolicy) => {
                    policy("authz", "authorizationpolicy")
                }
                TargetKind::Object(ListedKind::HttpRoute) => {
                    matchers.equal("route_name", &*self.name)
                }
                // Services export nothing.
                TargetKind::Object(ListedKind::Service) => matchers,
                kind => matchers.equal(kind.label(), &*self.name),
            };
        }
        self.with_namespace(matchers, "namespace")
    }

    /// Returns the matchers of series about requests to the target. As in Linkerd, a target without
    /// name matches all.
    pub(super) fn dst_matchers(&self) -> Matchers {
        let matchers = Matchers::new();
        if self.name.is_empty() {
            return matchers;
        }
        let matchers = matchers.equal(self.kind.dst_label(), &*self.name);
        match self.kind {
            // An authority contains its namespace.
            TargetKind::Authority => matchers,
            TargetKind::Object(_) => self.with_namespace(matchers, "dst_namespace"),
        }
    }

    fn with_namespace(&self, matchers: Matchers, label: &str) -> Matchers {
        if self.namespace.is_empty() || self.kind.is_namespace() {
            return matchers;
        }
        matchers.equal(label, &*self.namespace)
    }

    pub(super) fn resource(&self, namespace: &str, name: &str) -> viz::Resource {
        viz::Resource {
            namespace: namespace.to_owned(),
            r#type: self.kind.resource_type().to_owned(),
            name: name.to_owned(),
        }
    }
}

/// Parses a label selector in the notation of `kubectl`.
pub(crate) fn parse_selector(text: &str) -> Result<Selector, String> {
    let invalid = |problem: &str| {
        let shown: String = text.chars().take(100).collect();
        format!("invalid label selector {shown:?}: {problem}")
    };
    if text.len() > MAX_SELECTOR {
        return Err(invalid("it is too long"));
    }
    let mut requirements = Vec::new();
    for part in split_outside_parentheses(text) {
        let part = part.trim();
        if part.is_empty() && text.trim().is_empty() {
            continue;
        }
        requirements.push(parse_requirement(part).map_err(invalid)?);
    }
    Ok(Selector::from(LabelSelector {
        match_labels: None,
        match_expressions: Some(requirements),
    }))
}

fn split_outside_parentheses(text: &str) -> Vec<&str> {
    let mut depth = 0_usize;
    text.split(move |c| {
        match c {
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            _ => {}
        }
        c == ',' && depth == 0
    })
    .collect()
}

fn parse_requirement(text: &str) -> Result<LabelSelectorRequirement, &'static str> {
    let requirement = |key: &str, operator: &str, values: Option<Vec<String>>| {
        let valid = |text: &str, also: &str| {
            text.chars()
                .all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c) || also.contains(c))
        };
        if key.is_empty() || !valid(key, "/") {
            return Err("expected the key of a label");
        }
        if !values.iter().flatten().all(|value| valid(value, "")) {
            return Err("expected the value of a label");
        }
        Ok(LabelSelectorRequirement {
            key: key.to_owned(),
            operator: operator.to_owned(),
            values,
        })
    };
    let one = |value: &str| Some(vec![value.trim().to_owned()]);
    if let Some((key, value)) = text.split_once("!=") {
        return requirement(key.trim(), "NotIn", one(value));
    }
    if let Some((key, value)) = text.split_once('=') {
        let value = value.strip_prefix('=').unwrap_or(value);
        return requirement(key.trim(), "In", one(value));
    }
    if let Some((before, values)) = text.split_once('(') {
        let values = values.strip_suffix(')').ok_or("expected a )")?;
        let values = values.split(',').map(|value| value.trim().to_owned());
        let (key, operator) = match before.trim().rsplit_once(char::is_whitespace) {
            Some((key, "in")) => (key, "In"),
            Some((key, "notin")) => (key, "NotIn"),
            _ => return Err("expected in or notin"),
        };
        return requirement(key.trim(), operator, Some(values.collect()));
    }
    match text.strip_prefix('!') {
        Some(key) => requirement(key.trim(), "DoesNotExist", None),
        None => requirement(text, "Exists", None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(kind: &str, namespace: &str, name: &str) -> Target {
        Target::parse(&viz::Resource {
            namespace: namespace.to_owned(),
            r#type: kind.to_owned(),
            name: name.to_owned(),
        })
        .unwrap()
    }

    #[test]
    fn targets_have_labels_of_linkerd() {
        for (kind, namespace, name, matchers, dst) in [
            (
                "deployment",
                "shop",
                "web",
                r#"{deployment="web", namespace="shop"}"#,
                r#"{dst_deployment="web", dst_namespace="shop"}"#,
            ),
            ("deployment", "shop", "", r#"{namespace="shop"}"#, "{}"),
            ("pod", "", "", "{}", "{}"),
            (
                "job",
                "shop",
                "once",
                r#"{k8s_job="once", namespace="shop"}"#,
                r#"{dst_k8s_job="once", dst_namespace="shop"}"#,
            ),
            (
                "namespace",
                "",
                "shop",
                r#"{namespace="shop"}"#,
                r#"{dst_namespace="shop"}"#,
            ),
            (
                "service",
                "shop",
                "web",
                r#"{namespace="shop"}"#,
                r#"{dst_namespace="shop", dst_service="web"}"#,
            ),
            (
                "authority",
                "shop",
                "web:80",
                r#"{authority="web:80", namespace="shop"}"#,
                r#"{authority="web:80"}"#,
            ),
            (
                "server",
                "shop",
                "web",
                r#"{namespace="shop", srv_kind="server", srv_name="web"}"#,
                r#"{dst_namespace="shop", dst_server="web"}"#,
            ),
            (
                "authorizationpolicy",
                "shop",
                "allow",
                r#"{authz_kind="authorizationpolicy", authz_name="allow", namespace="shop"}"#,
                r#"{dst_authorizationpolicy="allow", dst_namespace="shop"}"#,
            ),
            (
                "httproute",
                "",
                "get",
                r#"{route_name="get"}"#,
                r#"{dst_httproute="get"}"#,
            ),
        ] {
            let target = target(kind, namespace, name);
            assert_eq!(target.matchers().to_string(), matchers);
            assert_eq!(target.dst_matchers().to_string(), dst);
        }
    }

    #[test]
    fn types_and_lengths_are_checked() {
        let parse = |kind: &str, name: &str| {
            Target::parse(&viz::Resource {
                r#type: kind.to_owned(),
                name: name.to_owned(),
                ..viz::Resource::default()
            })
        };
        assert_eq!(
            parse("gadget", "").unwrap_err(),
            "unimplemented resource type: gadget"
        );
        assert!(parse("serviceprofile", "").is_err());
        let long = "x".repeat(MAX_NAME + 1);
        assert!(parse("pod", &long).unwrap_err().contains("at most"));
        assert!(parse(&long.repeat(9), "").unwrap_err().len() < 400);
    }

    #[test]
    fn selectors_have_the_notation_of_kubectl() {
        let labels = [("app", "web"), ("tier", "front")]
            .map(|(key, value)| (key.to_owned(), value.to_owned()));
        let labels = labels.into();
        for (text, expect) in [
            ("", true),
            ("app=web", true),
            ("app==web,tier!=back", true),
            ("app = api", false),
            ("app in (api, web), tier", true),
            ("app notin (web)", false),
            ("!app", false),
            ("!linkerd.io/none,tier in (front)", true),
        ] {
            let selector = parse_selector(text).unwrap();
            assert_eq!(selector.matches(&labels), expect, "{text}");
        }
        for bad in [
            "app,",
            "app in web",
            "app in (web",
            "a b",
            "=x",
            "app>1",
            "a=b=c",
        ] {
            let error = parse_selector(bad).unwrap_err();
            assert!(error.starts_with("invalid label selector"), "{error}");
        }
        assert!(parse_selector(&"a,".repeat(MAX_SELECTOR)).is_err());
    }
}

//! Resources of requests, and the labels that name them in Prometheus' series.
//!
//! Labels without prefix name the pod whose proxy exports a series. Labels with `dst_` name the
//! peer of an outbound series.

use mesh_api::linkerd2::viz;
use mesh_core::labels::workload_label;
use mesh_k8s::select;
use mesh_objects::model::{ListedKind, Selector};

use crate::metrics::{Grouping, Matchers};

/// The subject of a request. An empty namespace or name means all.
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
    select::parse(text).map(Selector::from)
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
}

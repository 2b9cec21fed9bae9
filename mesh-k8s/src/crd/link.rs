//! `Link`: a cluster whose Services this one mirrors.

use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, Time};
use kube::CustomResource;
use mesh_core::identity::is_dns_label;
use mesh_core::units::parse_go_duration;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::invalid::{Invalid, shown};
use crate::select;

/// The spec of a `Link`. It is serialized as `v1alpha3`; `v1alpha1` and `v1alpha2` are read as
/// well.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[kube(
    group = "multicluster.linkerd.io",
    version = "v1alpha3",
    kind = "Link",
    namespaced,
    status = "LinkStatus",
    derive = "PartialEq"
)]
#[serde(rename_all = "camelCase", default)]
pub struct LinkSpec {
    /// The name of the target cluster, a suffix of its mirrors.
    pub target_cluster_name: String,
    /// The DNS domain of the target cluster.
    pub target_cluster_domain: String,
    /// The namespace of the target cluster's control plane.
    pub target_cluster_linkerd_namespace: String,
    /// The Secret with a kubeconfig for the target cluster, in the namespace of the Link.
    pub cluster_credentials_secret: String,
    /// The addresses of the gateway, separated by commas; IP addresses or DNS names. Empty without
    /// a gateway.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub gateway_address: String,
    /// The port of the gateway, from 1 to 65535.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub gateway_port: String,
    /// The identity of the gateway.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub gateway_identity: String,
    /// How the gateway is probed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub probe_spec: Option<ProbeSpec>,
    /// The Services that are mirrored behind the gateway.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub selector: Option<LabelSelector>,
    /// The Services whose endpoints are discovered in the target cluster.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remote_discovery_selector: Option<LabelSelector>,
    /// The Services that are members of federated Services.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub federated_service_selector: Option<LabelSelector>,
    /// Annotations that mirrors do not get; an item may end with `/*`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub excluded_annotations: Vec<String>,
    /// Labels that mirrors do not get; an item may end with `/*`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub excluded_labels: Vec<String>,
}

/// How a gateway is probed. All values are strings, as in Linkerd; the durations are in Go's
/// notation, such as `30s`, `1m30s` or `0.5s`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ProbeSpec {
    /// The path of the request.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub path: String,
    /// The port, from 1 to 65535.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub port: String,
    /// The time between two requests.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub period: String,
    /// The time for a response, 30 s if absent.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub timeout: String,
    /// The number of failures in a row after which the gateway counts as dead, 3 if absent.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub failure_threshold: String,
}

/// The outcome for each Service that a Link selects.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct LinkStatus {
    /// The Services with mirrors of their own.
    pub mirror_services: Vec<MirroredService>,
    /// The members of federated Services.
    pub federated_services: Vec<MirroredService>,
}

/// The outcome for one Service of the target cluster.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct MirroredService {
    /// One condition of type `Mirrored`.
    #[serde(default)]
    pub conditions: Vec<MirrorCondition>,
    /// The controller that has written the status, [`MIRROR_CONTROLLER`].
    pub controller_name: String,
    /// The Service in the target cluster.
    pub remote_ref: ServiceRef,
}

/// Whether a Service is mirrored.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct MirrorCondition {
    /// When `status` changed.
    pub last_transition_time: Time,
    /// The mirror in this cluster, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub local_ref: Option<ServiceRef>,
    /// The outcome as a sentence.
    pub message: String,
    /// The outcome as a word.
    pub reason: String,
    /// `True` or `False`.
    pub status: String,
    /// `Mirrored`.
    #[serde(rename = "type")]
    pub type_: String,
}

/// A reference to a Service.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
pub struct ServiceRef {
    /// [`SERVICE_GROUP`].
    #[serde(default)]
    pub group: String,
    /// `Service`.
    pub kind: String,
    /// The name of the Service.
    pub name: String,
    /// The namespace of the Service.
    pub namespace: String,
}

/// The controller that writes the status of Links.
pub const MIRROR_CONTROLLER: &str = "linkerd.io/service-mirror";

/// The group of the references in a status. Linkerd's controller leaves it out, and the definition
/// of Links sets this one.
pub const SERVICE_GROUP: &str = "core";

/// The reason in the condition of a Service whose mirror has no namespace here, as in Linkerd.
pub const MISSING_NAMESPACE: &str = "MissingNamespace";

/// The type of the Secrets with a kubeconfig for another cluster.
pub const CREDENTIALS_TYPE: &str = "mirror.linkerd.io/remote-kubeconfig";

/// The key of such a Secret with the kubeconfig.
pub const CREDENTIALS_KEY: &str = "kubeconfig";

/// The gateway of a target cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gateway {
    /// IP addresses or DNS names, without duplicates, at least one.
    pub addresses: Vec<String>,
    /// The port of the mesh's connections.
    pub port: u16,
    /// The identity of the gateway; empty if the Link has none.
    pub identity: String,
    /// How the gateway is probed; `None` if the Link does not say it.
    pub probe: Option<Probe>,
}

/// How a gateway is probed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Probe {
    /// The path of the request.
    pub path: String,
    /// The port of the request.
    pub port: u16,
    /// The time between two requests.
    pub period: Duration,
    /// The time for a response.
    pub timeout: Duration,
    /// The number of failures in a row after which the gateway counts as dead.
    pub failure_threshold: u32,
}

/// The number of addresses that a gateway can have.
pub const MAX_GATEWAY_ADDRESSES: usize = 64;

/// The number of items of a list of excluded labels or annotations.
pub const MAX_EXCLUDED: usize = 256;

const DEFAULT_TIMEOUT: Duration = Duration::from_secs(30);
const DEFAULT_FAILURE_THRESHOLD: u32 = 3;
const MAX_FAILURE_THRESHOLD: u32 = 1000;
const PERIODS: std::ops::RangeInclusive<Duration> =
    Duration::from_millis(100)..=Duration::from_secs(3600);

impl LinkSpec {
    /// Returns the gateway of the target cluster; `None` if the Link has no gateway.
    ///
    /// # Errors
    ///
    /// All problems of the fields of the gateway.
    pub fn gateway(&self) -> Result<Option<Gateway>, Vec<Invalid>> {
        let mut problems = Vec::new();
        let mut addresses: Vec<String> = Vec::new();
        for address in self.gateway_address.split(',').map(str::trim) {
            if !address.is_empty() && !addresses.iter().any(|it| it == address) {
                addresses.push(address.to_owned());
            }
        }
        if addresses.is_empty() {
            return Ok(None);
        }
        if addresses.len() > MAX_GATEWAY_ADDRESSES {
            let problem = format!("has more than {MAX_GATEWAY_ADDRESSES} addresses");
            problems.push(Invalid::new("spec.gatewayAddress", problem));
        }
        let port = port("spec.gatewayPort", &self.gateway_port, &mut problems);
        let probe = self.probe_spec.as_ref();
        let probe = probe.map(|probe| probe.parse(&mut problems));
        if !problems.is_empty() {
            return Err(problems);
        }
        Ok(Some(Gateway {
            addresses,
            port,
            identity: self.gateway_identity.clone(),
            probe,
        }))
    }

    /// Returns whether the destination controller discovers endpoints of Services in the target
    /// cluster.
    pub fn discovers_endpoints(&self) -> bool {
        let selectors = [
            &self.remote_discovery_selector,
            &self.federated_service_selector,
        ];
        let mut selectors = selectors.into_iter().flatten();
        selectors.any(|selector| *selector != LabelSelector::default())
    }

    /// Returns the problems of the Link, none if it is valid.
    pub fn problems(&self) -> Vec<Invalid> {
        let mut problems = self.gateway().err().unwrap_or_default();
        for (field, value) in [
            ("spec.targetClusterName", &self.target_cluster_name),
            ("spec.targetClusterDomain", &self.target_cluster_domain),
            (
                "spec.clusterCredentialsSecret",
                &self.cluster_credentials_secret,
            ),
        ] {
            if value.is_empty() {
                problems.push(Invalid::new(field, "is missing"));
            }
        }
        let cluster = &self.target_cluster_name;
        if !cluster.is_empty() && !is_dns_label(cluster) {
            let problem = format!(
                "{} is not a DNS label in lower case, which names of mirrors end with",
                shown(cluster)
            );
            problems.push(Invalid::new("spec.targetClusterName", problem));
        }
        for (field, list) in [
            ("spec.excludedAnnotations", &self.excluded_annotations),
            ("spec.excludedLabels", &self.excluded_labels),
        ] {
            if list.len() > MAX_EXCLUDED {
                let problem = format!("has more than {MAX_EXCLUDED} items");
                problems.push(Invalid::new(field, problem));
            }
        }
        problems
    }
}

impl ProbeSpec {
    /// Returns the probe. It has no meaning if problems were added.
    fn parse(&self, problems: &mut Vec<Invalid>) -> Probe {
        let port = port("spec.probeSpec.port", &self.port, problems);
        let mut duration = |field, text: &str, default: Option<Duration>| match default {
            Some(default) if text.is_empty() => default,
            _ => period(field, text, problems),
        };
        let period = duration("spec.probeSpec.period", &self.period, None);
        let timeout = duration(
            "spec.probeSpec.timeout",
            &self.timeout,
            Some(DEFAULT_TIMEOUT),
        );
        let threshold = match self.failure_threshold.as_str() {
            "" => Some(DEFAULT_FAILURE_THRESHOLD),
            text => text.parse().ok(),
        };
        let threshold = threshold.filter(|it| (1..=MAX_FAILURE_THRESHOLD).contains(it));
        if threshold.is_none() {
            let value = shown(&self.failure_threshold);
            let problem =
                format!("{value} is not a whole number from 1 to {MAX_FAILURE_THRESHOLD}");
            problems.push(Invalid::new("spec.probeSpec.failureThreshold", problem));
        }
        if !self.path.starts_with('/') {
            let problem = format!("{} does not start with \"/\"", shown(&self.path));
            problems.push(Invalid::new("spec.probeSpec.path", problem));
        }
        Probe {
            path: self.path.clone(),
            port,
            period,
            timeout,
            failure_threshold: threshold.unwrap_or(DEFAULT_FAILURE_THRESHOLD),
        }
    }
}

fn port(field: &str, text: &str, problems: &mut Vec<Invalid>) -> u16 {
    let port = text.parse().ok().filter(|port| *port != 0);
    port.unwrap_or_else(|| {
        let problem = format!("{} is not a port, 1 to 65535", shown(text));
        problems.push(Invalid::new(field, problem));
        0
    })
}

fn period(field: &str, text: &str, problems: &mut Vec<Invalid>) -> Duration {
    let period = parse_go_duration(text).filter(|period| PERIODS.contains(period));
    period.unwrap_or_else(|| {
        let problem = format!(
            "{} is not a duration from 100ms to 1h, such as \"30s\"",
            shown(text)
        );
        problems.push(Invalid::new(field, problem));
        Duration::ZERO
    })
}

/// Returns whether a selector of a Link selects an object with these labels. Other than elsewhere
/// in Kubernetes, an absent or empty selector selects nothing.
pub fn link_selects(selector: Option<&LabelSelector>, labels: Option<&select::Labels>) -> bool {
    let is_empty = |selector: &LabelSelector| {
        let labels = selector.match_labels.as_ref();
        let expressions = selector.match_expressions.as_ref();
        labels.is_none_or(|labels| labels.is_empty())
            && expressions.is_none_or(|expressions| expressions.is_empty())
    };
    selector.is_some_and(|selector| !is_empty(selector) && select::matches(selector, labels))
}

/// Returns whether a list of excluded labels or annotations has a key. An item that ends with `/*`
/// has all keys with its prefix.
pub fn link_excludes(list: &[String], key: &str) -> bool {
    list.iter().any(|item| match item.strip_suffix('*') {
        Some(prefix) if prefix.ends_with('/') => key.starts_with(prefix),
        _ => item == key,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn link(gateway: &str) -> LinkSpec {
        let text = format!(
            "targetClusterName: east
targetClusterDomain: cluster.local
targetClusterLinkerdNamespace: linkerd
clusterCredentialsSecret: cluster-credentials-east
{gateway}
"
        );
        serde_norway::from_str(&text).unwrap()
    }

    #[test]
    fn gateway_has_each_address_once_and_the_defaults_of_its_probe() {
        let spec = link(
            "gatewayAddress: '192.0.2.1, gw.example.com,192.0.2.1'
gatewayPort: '4143'
gatewayIdentity: linkerd-gateway.example
probeSpec: {path: /ready, port: '4191', period: 1m30s}",
        );
        assert_eq!(spec.problems(), []);
        let gateway = spec.gateway().unwrap().unwrap();
        assert_eq!(gateway.addresses, ["192.0.2.1", "gw.example.com"]);
        assert_eq!(gateway.port, 4143);
        assert_eq!(gateway.identity, "linkerd-gateway.example");
        let probe = gateway.probe.unwrap();
        assert_eq!((probe.path.as_str(), probe.port), ("/ready", 4191));
        assert_eq!(probe.period, Duration::from_secs(90));
        assert_eq!(probe.timeout, Duration::from_secs(30));
        assert_eq!(probe.failure_threshold, 3);
        assert_eq!(link("").gateway(), Ok(None));
    }

    /// Linkerd's `link-gen` copies the annotation of the gateway, and Go allows fractions there.
    #[test]
    fn durations_of_a_probe_are_gos() {
        for (text, millis) in [("0.5s", 500), ("1m0s", 60_000), ("1.5s", 1_500)] {
            let spec = link(&format!(
                "gatewayAddress: 192.0.2.1
gatewayPort: '4143'
probeSpec: {{path: /ready, port: '4191', period: {text}, timeout: {text}}}"
            ));
            let probe = spec.gateway().unwrap().unwrap().probe.unwrap();
            let expect = Duration::from_millis(millis);
            assert_eq!((probe.period, probe.timeout), (expect, expect), "{text}");
        }
    }

    /// Linkerd's `link-gen --gateway=false` prints the empty object, to which the definition adds
    /// its defaults.
    #[test]
    fn probe_without_a_gateway_is_none() {
        let spec = link("probeSpec: {timeout: 30s, failureThreshold: '3'}");
        assert_eq!(spec.problems(), []);
        assert_eq!(spec.gateway(), Ok(None));
    }

    #[test]
    fn invalid_fields_are_named() {
        let mut spec = link(
            "gatewayAddress: 192.0.2.1
gatewayPort: '0'
probeSpec: {path: ready, port: '65536', period: '3', timeout: 2h, failureThreshold: '0'}",
        );
        spec.target_cluster_name.clear();
        let problems = spec.problems();
        let fields: Vec<_> = problems.iter().map(|it| it.field.as_str()).collect();
        assert_eq!(
            fields,
            [
                "spec.gatewayPort",
                "spec.probeSpec.port",
                "spec.probeSpec.period",
                "spec.probeSpec.timeout",
                "spec.probeSpec.failureThreshold",
                "spec.probeSpec.path",
                "spec.targetClusterName",
            ]
        );
        let many = (0..=MAX_GATEWAY_ADDRESSES).map(|at| format!("192.0.2.{at}"));
        let many = many.collect::<Vec<_>>().join(",");
        let spec = link(&format!("gatewayAddress: '{many}'\ngatewayPort: '4143'"));
        assert_eq!(spec.problems()[0].field, "spec.gatewayAddress");
    }

    #[test]
    fn name_of_a_cluster_is_a_part_of_names_of_services() {
        for (name, problem) in [
            ("east-1", None),
            ("east.example", Some("spec.targetClusterName")),
            ("east,west", Some("spec.targetClusterName")),
            ("a@b", Some("spec.targetClusterName")),
        ] {
            let mut spec = link("");
            spec.target_cluster_name = name.to_owned();
            let problems = spec.problems();
            let field = problems.first().map(|it| it.field.as_str());
            assert_eq!(field, problem, "{name}");
        }
    }

    #[test]
    fn excluded_keys_are_equal_or_have_the_prefix() {
        let list = ["a.example/b".to_owned(), "c.example/*".to_owned()];
        let excludes = |key: &str| link_excludes(&list, key);
        assert!(excludes("a.example/b") && excludes("c.example/d"));
        assert!(!excludes("a.example/bc") && !excludes("c.example") && !excludes("d"));
        assert!(!link_excludes(&["*".to_owned()], "a"));
    }

    #[test]
    fn empty_selectors_select_nothing() {
        let labels = select::Labels::from([("a".to_owned(), "b".to_owned())]);
        let selects = |text: &str| {
            let selector: LabelSelector = serde_norway::from_str(text).unwrap();
            link_selects(Some(&selector), Some(&labels))
        };
        assert!(selects("matchLabels: {a: b}"));
        assert!(!selects("matchLabels: {a: c}"));
        assert!(!selects("{}"));
        assert!(!selects("{matchLabels: {}, matchExpressions: []}"));
        assert!(!link_selects(None, Some(&labels)));
    }
}

//! The redirection of a pod, independent of the mechanism: a pod's settings, and the pod itself.
//! The CNI plugin and the daemon build it from the pod's annotations; every tier consumes it.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::str::FromStr;

use ipnet::IpNet;
use mesh_core::annotation;
use serde::{Deserialize, Serialize};

pub use mesh_core::{
    node::{PodRef, Tier},
    ports::PortSet,
};

/// A pod's redirection settings, from its annotations.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RedirectSpec {
    /// The proxy's uid as the pod sees it (inside its user namespace).
    pub proxy_uid: u32,
    /// Used by the packet-filter tiers only; the eBPF tiers identify the proxy by its cgroup.
    pub proxy_gid: Option<u32>,
    pub inbound_port: u16,
    pub outbound_port: u16,
    pub admin_port: u16,
    pub control_port: u16,
    /// Local ports whose inbound connections bypass the proxy, including admin and control.
    pub skip_inbound: PortSet,
    /// Destination ports whose outbound connections bypass the proxy.
    pub skip_outbound: PortSet,
    /// Sources whose inbound connections bypass the proxy.
    pub skip_subnets: Vec<IpNet>,
    /// Redirects IPv6 in both directions; it is refused while the proxy does not listen on it.
    /// Records of earlier agents have no such field.
    #[serde(default = "redirected_by_default")]
    pub ipv6: bool,
    /// Without a proxy listener, allows inbound connections to reach the application in clear text.
    pub inbound_fail_open: bool,
}

/// One pod to redirect: its identity, its network namespace and its settings.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PodRedirect {
    pub pod: PodRef,
    pub sandbox_id: String,
    pub netns: PathBuf,
    /// SO_NETNS_COOKIE of `netns`: unique until reboot, never reused.
    pub cookie: u64,
    pub addresses: Vec<IpAddr>,
    pub spec: RedirectSpec,
    pub tier: Tier,
}

/// One systemd unit to redirect. Units share the network namespace of their host, so that each has
/// ports of its own.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct UnitRedirect {
    /// Its name, such as `nginx.service`.
    pub unit: String,
    /// Unique as long as the host runs.
    pub cookie: u64,
    /// The cgroups of the unit and of its socket units, as paths below the root of the hierarchy.
    pub cgroups: Vec<String>,
    /// The cgroup of its proxy.
    pub proxy_cgroup: String,
    pub spec: RedirectSpec,
    /// Outbound connections are redirected to these ports.
    pub redirect_ports: RangeInclusive<u16>,
}

mesh_core::names! {
    /// What the guard does with connection requests that leave a pod around its proxy.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub enum GuardMode, ALL {
        /// The guard is not attached.
        #[default]
        Off = "off",
        Count = "count",
        Drop = "drop",
    }
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("choose off, count or drop")]
pub struct GuardModeError;

impl FromStr for GuardMode {
    type Err = GuardModeError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::ALL
            .into_iter()
            .find(|mode| mode.as_str() == text)
            .ok_or(GuardModeError)
    }
}

/// Characters of an annotation that an error quotes.
const MAX_QUOTED_CHARS: usize = 100;

/// The annotations that an enrolment of a unit may have.
const OF_UNITS: [&str; 8] = [
    annotation::INBOUND_PORT,
    annotation::OUTBOUND_PORT,
    annotation::ADMIN_PORT,
    annotation::CONTROL_PORT,
    annotation::SKIP_INBOUND_PORTS,
    annotation::SKIP_OUTBOUND_PORTS,
    annotation::SKIP_SUBNETS,
    annotation::REDIRECTED_IP_FAMILIES,
];

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AnnotationError {
    #[error("invalid annotation {key}: {value:?} of {subject}: {problem}")]
    Value {
        /// A pod or a unit, with its kind.
        subject: String,
        key: &'static str,
        value: String,
        problem: String,
    },
    #[error(
        "annotation {key} of {subject} has no effect on a unit; those that have one are {}",
        OF_UNITS.join(", ")
    )]
    NotOfUnits { subject: String, key: String },
    #[error(
        "the annotations of {subject} assign port {port} both to the proxy's {first} and to its {second} listener; choose different ports"
    )]
    DuplicatePort {
        subject: String,
        port: u16,
        first: &'static str,
        second: &'static str,
    },
}

/// Returns whether the injector added a proxy to the pod.
///
/// Only an injected pod is enrolled: without a proxy its connections would be refused. The plugin
/// sees annotations and no containers, so it relies on what the injector writes. It cannot
/// recognise a pod that an injector with `cniEnabled: false` gave an init container with iptables
/// rules.
pub fn is_injected(annotations: &BTreeMap<String, String>) -> bool {
    annotations.contains_key(annotation::PROXY_VERSION)
}

/// Retains the annotations that the mesh reads; the others can be large.
pub fn mesh_annotations(mut annotations: BTreeMap<String, String>) -> BTreeMap<String, String> {
    annotations.retain(|key, _| {
        let prefix = key.split('/').next().unwrap_or_default();
        prefix == "linkerd.io" || prefix.ends_with(".linkerd.io")
    });
    annotations
}

impl RedirectSpec {
    /// Parses the annotations of an injected pod. Missing ones have Linkerd's defaults.
    pub fn from_annotations(
        pod: &PodRef,
        annotations: &BTreeMap<String, String>,
    ) -> Result<Self, AnnotationError> {
        Self::parse(&format!("pod {pod}"), annotations)
    }

    /// Parses the annotations of an enrolment of a systemd unit. Unlike for pods, the user of the
    /// proxy is not among them, since a unit's proxy is recognised by its cgroup only.
    pub fn of_unit(
        unit: &str,
        annotations: &BTreeMap<String, String>,
    ) -> Result<Self, AnnotationError> {
        let subject = format!("unit {unit}");
        let mut keys = annotations.keys();
        if let Some(key) = keys.find(|key| !OF_UNITS.contains(&key.as_str())) {
            return Err(AnnotationError::NotOfUnits {
                subject,
                key: truncate(key),
            });
        }
        Self::parse(&subject, annotations)
    }

    fn parse(
        subject: &str,
        annotations: &BTreeMap<String, String>,
    ) -> Result<Self, AnnotationError> {
        let reader = AnnotationReader {
            subject,
            annotations,
        };
        let mut spec = Self {
            proxy_uid: reader
                .value(annotation::PROXY_UID, parse_id)?
                .unwrap_or(annotation::DEFAULT_PROXY_UID),
            proxy_gid: reader.value(annotation::PROXY_GID, parse_id)?,
            inbound_port: reader
                .port(annotation::INBOUND_PORT, annotation::DEFAULT_INBOUND_PORT)?,
            outbound_port: reader
                .port(annotation::OUTBOUND_PORT, annotation::DEFAULT_OUTBOUND_PORT)?,
            admin_port: reader.port(annotation::ADMIN_PORT, annotation::DEFAULT_ADMIN_PORT)?,
            control_port: reader
                .port(annotation::CONTROL_PORT, annotation::DEFAULT_CONTROL_PORT)?,
            skip_inbound: reader.ports(annotation::SKIP_INBOUND_PORTS)?,
            skip_outbound: reader.ports(annotation::SKIP_OUTBOUND_PORTS)?,
            skip_subnets: reader
                .value(annotation::SKIP_SUBNETS, parse_subnets)?
                .unwrap_or_default(),
            ipv6: reader
                .value(annotation::REDIRECTED_IP_FAMILIES, parse_families)?
                .unwrap_or_else(redirected_by_default),
            inbound_fail_open: false,
        };
        spec.check_ports(subject)?;
        // The proxy's own endpoints are always reached directly: the annotation cannot remove them.
        spec.skip_inbound.insert(spec.admin_port..=spec.admin_port);
        spec.skip_inbound
            .insert(spec.control_port..=spec.control_port);
        Ok(spec)
    }

    fn check_ports(&self, subject: &str) -> Result<(), AnnotationError> {
        let listeners = [
            ("inbound", self.inbound_port),
            ("outbound", self.outbound_port),
            ("admin", self.admin_port),
            ("control", self.control_port),
        ];
        for (i, (second, port)) in listeners.iter().enumerate() {
            if let Some((first, _)) = listeners[..i].iter().find(|(_, other)| other == port) {
                return Err(AnnotationError::DuplicatePort {
                    subject: subject.to_owned(),
                    port: *port,
                    first,
                    second,
                });
            }
        }
        Ok(())
    }
}

struct AnnotationReader<'a> {
    subject: &'a str,
    annotations: &'a BTreeMap<String, String>,
}

impl AnnotationReader<'_> {
    fn value<T>(
        &self,
        key: &'static str,
        parse: impl FnOnce(&str) -> Result<T, String>,
    ) -> Result<Option<T>, AnnotationError> {
        let Some(value) = self.annotations.get(key) else {
            return Ok(None);
        };
        parse(value.trim())
            .map(Some)
            .map_err(|problem| self.error(key, value, problem))
    }

    fn port(&self, key: &'static str, default: u16) -> Result<u16, AnnotationError> {
        let port = self.value(key, |text| match text.parse() {
            Ok(port) if port > 0 => Ok(port),
            _ => Err("expected a port, 1 to 65535".to_owned()),
        })?;
        Ok(port.unwrap_or(default))
    }

    fn ports(&self, key: &'static str) -> Result<PortSet, AnnotationError> {
        let default = annotation::DEFAULT_SKIP_PORTS;
        let text = self.annotations.get(key).map_or(default, String::as_str);
        PortSet::from_str(text)
            .and_then(|ports| ports.check_limit().map(|()| ports))
            .map_err(|error| self.error(key, text, error.to_string()))
    }

    fn error(&self, key: &'static str, value: &str, problem: String) -> AnnotationError {
        AnnotationError::Value {
            subject: self.subject.to_owned(),
            key,
            value: truncate(value),
            problem,
        }
    }
}

/// Parses a user or group id that can own a process; 0 would exempt every root process of the pod.
fn parse_id(text: &str) -> Result<u32, String> {
    match text.parse::<u32>() {
        Ok(0) => Err(
            "0 would exempt every process that runs as root; give the proxy an id of its own"
                .to_owned(),
        ),
        Ok(u32::MAX) | Err(_) => Err("write a numeric id, 1 to 4294967294".to_owned()),
        Ok(id) => Ok(id),
    }
}

/// A pod that was injected without the annotation has been redirected in both families.
fn redirected_by_default() -> bool {
    true
}

/// Returns whether IPv6 is redirected. IPv4 always is: every proxy listens on it.
fn parse_families(text: &str) -> Result<bool, String> {
    match text {
        annotation::IPV4_ONLY => Ok(false),
        annotation::IPV4_AND_IPV6 => Ok(true),
        _ => Err(format!(
            "write {} or {}",
            annotation::IPV4_ONLY,
            annotation::IPV4_AND_IPV6
        )),
    }
}

/// Parses a comma-separated list of subnets; an address without prefix length is a subnet of one.
fn parse_subnets(text: &str) -> Result<Vec<IpNet>, String> {
    let items = text.split(',').map(str::trim);
    let subnets: Vec<IpNet> = items
        .filter(|item| !item.is_empty())
        .map(|item| {
            item.parse()
                .or_else(|_| item.parse::<IpAddr>().map(IpNet::from))
                .map_err(|_neither| {
                    format!(
                        "{:?} is not a valid subnet; write it like 10.0.0.0/8",
                        truncate(item)
                    )
                })
        })
        .collect::<Result<_, _>>()?;
    // Equal and adjoining subnets are merged, and use one entry of the kernel's map.
    let subnets = IpNet::aggregate(&subnets);
    match subnets.len() {
        count if count > annotation::MAX_SKIP_SUBNETS => Err(format!(
            "too many separate subnets: {count}, at most {} are allowed; join them into larger ones",
            annotation::MAX_SKIP_SUBNETS
        )),
        _ => Ok(subnets),
    }
}

/// Returns the start of an external text, for an error: an annotation can have 256 KiB.
fn truncate(text: &str) -> String {
    match text.char_indices().nth(MAX_QUOTED_CHARS) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(pairs: &[(&str, &str)]) -> Result<RedirectSpec, AnnotationError> {
        let annotations = pairs
            .iter()
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
            .collect();
        let pod = PodRef {
            namespace: "shop".to_owned(),
            name: "web-0".to_owned(),
            uid: String::new(),
        };
        RedirectSpec::from_annotations(&pod, &annotations)
    }

    #[test]
    fn missing_annotations_have_linkerd_defaults() {
        let spec = parse(&[]).unwrap();
        assert_eq!((spec.proxy_uid, spec.proxy_gid), (2102, None));
        assert_eq!((spec.inbound_port, spec.outbound_port), (4143, 4140));
        assert_eq!(spec.skip_inbound.to_string(), "4190-4191,4567-4568");
        assert_eq!(spec.skip_outbound.to_string(), "4567-4568");
        assert!(spec.skip_subnets.is_empty());
        assert!(spec.ipv6);
        assert!(!spec.inbound_fail_open);
    }

    #[test]
    fn families_are_parsed_and_absent_in_older_records() {
        let key = "linkerd.io/redirected-ip-families";
        assert!(!parse(&[(key, "ipv4")]).unwrap().ipv6);
        assert!(parse(&[(key, "ipv4,ipv6")]).unwrap().ipv6);
        let error = parse(&[(key, "ipv6")]).unwrap_err().to_string();
        assert!(error.ends_with("write ipv4 or ipv4,ipv6"), "{error}");
        let mut record = serde_json::to_value(parse(&[]).unwrap()).unwrap();
        record.as_object_mut().unwrap().remove("ipv6").unwrap();
        assert!(serde_json::from_value::<RedirectSpec>(record).unwrap().ipv6);
    }

    #[test]
    fn port_lists_ranges_and_subnets_are_parsed() {
        let subnets = "10.0.0.0/8, fd00::/8,192.0.2.1";
        let spec = parse(&[
            ("config.linkerd.io/skip-inbound-ports", "80, 9000-9010"),
            ("config.linkerd.io/skip-outbound-ports", "25,587"),
            ("config.linkerd.io/skip-subnets", subnets),
            ("config.linkerd.io/admin-port", "9999"),
            ("config.linkerd.io/proxy-uid", "1337"),
            ("config.linkerd.io/proxy-gid", "1338"),
        ])
        .unwrap();
        assert_eq!(spec.skip_inbound.to_string(), "80,4190,9000-9010,9999");
        assert_eq!(spec.skip_outbound.to_string(), "25,587");
        let subnets: Vec<String> = spec.skip_subnets.iter().map(ToString::to_string).collect();
        assert_eq!(subnets, ["10.0.0.0/8", "192.0.2.1/32", "fd00::/8"]);
        assert_eq!((spec.proxy_uid, spec.proxy_gid), (1337, Some(1338)));
    }

    #[test]
    fn invalid_value_error_names_annotation_pod_and_remedy() {
        let check = |key: &str, value: &str, expect: &str| {
            let error = parse(&[(key, value)]).unwrap_err().to_string();
            let start = format!("invalid annotation {key}: {value:?} of pod shop/web-0: ");
            assert_eq!(error, start + expect);
        };
        check(
            "config.linkerd.io/skip-inbound-ports",
            "80,http",
            "invalid port or range of ports \"http\": expected 1-65535, as in \"25,587,3306-3310\"",
        );
        let uid = "config.linkerd.io/proxy-uid";
        let port = "config.linkerd.io/inbound-port";
        check(port, "0", "expected a port, 1 to 65535");
        check(uid, "root", "write a numeric id, 1 to 4294967294");
        check(
            uid,
            "0",
            "0 would exempt every process that runs as root; give the proxy an id of its own",
        );
        check(
            "config.linkerd.io/skip-subnets",
            "10.0.0.0/33",
            "\"10.0.0.0/33\" is not a valid subnet; write it like 10.0.0.0/8",
        );
    }

    #[test]
    fn oversized_list_error_names_annotation_pod_and_limit() {
        let list = |count: u32, item: fn(u32) -> String| -> String {
            (1..=count).map(item).collect::<Vec<_>>().join(",")
        };
        let ports = |count| list(count, |number| (2 * number).to_string());
        let subnets = |count| list(count, |number| format!("10.{number}.0.0/24"));
        let table: [(_, &dyn Fn(u32) -> String); 3] = [
            ("config.linkerd.io/skip-inbound-ports", &ports),
            ("config.linkerd.io/skip-outbound-ports", &ports),
            ("config.linkerd.io/skip-subnets", &subnets),
        ];
        for (key, list) in table {
            parse(&[(key, &list(128))]).unwrap();
            let error = parse(&[(key, &list(129))]).unwrap_err().to_string();
            for part in [key, "shop/web-0", "129", "at most 128"] {
                assert!(error.contains(part), "{error}");
            }
            assert!(error.len() < 500, "the value is not truncated: {error}");
        }
        // Equal and adjoining subnets are merged before the limit applies.
        let same = list(1000, |number| format!("10.0.0.{}", number % 4));
        let spec = parse(&[("config.linkerd.io/skip-subnets", same.as_str())]).unwrap();
        assert_eq!(spec.skip_subnets, ["10.0.0.0/30".parse().unwrap()]);
    }

    #[test]
    fn listeners_must_have_different_ports() {
        let error = parse(&[("config.linkerd.io/admin-port", "4143")]).unwrap_err();
        assert_eq!(
            error.to_string(),
            "the annotations of pod shop/web-0 assign port 4143 both to the proxy's inbound and to its admin listener; choose different ports"
        );
    }

    #[test]
    fn only_injected_pods_are_enrolled() {
        let annotations = |key: &str| BTreeMap::from([(key.to_owned(), "x".to_owned())]);
        assert!(is_injected(&annotations("linkerd.io/proxy-version")));
        assert!(!is_injected(&annotations("linkerd.io/inject")));
        assert!(!is_injected(&BTreeMap::new()));
    }
}

//! NetworkPolicies that keep clients from the ports of the control plane, or proxies from it.

use std::collections::BTreeMap;

use mesh_core::annotation;
use mesh_k8s::kinds::networking::{NetworkPolicyPort, NetworkPolicySpec};
use mesh_k8s::kinds::{IntOrString, NetworkPolicy, Pod, ResourceExt};
use mesh_k8s::values::Values;
use mesh_k8s::{pod, select};

use super::framework::{Check, CheckResult, Finding, Outcome};
use crate::facts::{Fact, Facts, full_name};

/// Warns, because only the network plugin knows whether NetworkPolicies are enforced.
pub(super) const ADMIT: Check = Check::new(
    "network-policies",
    "NetworkPolicies admit the connections of the mesh",
    "kubectl get networkpolicies -A",
    blocked,
);

/// The ports of each component, and who connects to them.
const CONTROL_PLANE: [(&str, u16, &str); 4] = [
    ("identity", 8080, "proxies get no certificates"),
    ("destination", 8086, "proxies do not find endpoints"),
    ("destination", 8090, "proxies get no policies"),
    (
        "proxy-injector",
        8443,
        "the API server cannot have pods injected",
    ),
];

/// The port of DNS, and the port that OpenShift's DNS Service maps it to.
const DNS: [u16; 2] = [53, 5353];

/// What every proxy connects to.
const OUTBOUND: [(u16, &str); 3] = [
    (8080, "the identity service"),
    (8086, "the destination service"),
    (8090, "the policy service"),
];

#[derive(Clone, Copy, PartialEq, Eq)]
enum Direction {
    Ingress,
    Egress,
}

/// The NetworkPolicies of one direction that apply to a pod. They admit traffic that one of them
/// admits.
struct Applied<'a> {
    pod: &'a Pod,
    direction: Direction,
    policies: Vec<&'a NetworkPolicy>,
}

/// Finds ports that no rule admits for any peer. Rules that select peers are not evaluated.
fn blocked(facts: &Facts) -> CheckResult {
    let all = match &facts.objects.network_policies {
        Ok(all) if all.is_empty() => return Ok(Outcome::ok("")),
        Ok(all) => all,
        Err(reason) => return Ok(Outcome::ok(format!("not inspected: {reason}"))),
    };
    // Many pods have the same policies.
    let mut wrong: BTreeMap<String, Finding> = BTreeMap::new();
    for pod in facts.control_pods()? {
        let applied = Applied::new(pod, Direction::Ingress, all);
        let component = pod::label(pod, annotation::CONTROL_PLANE_COMPONENT);
        for (name, port, effect) in CONTROL_PLANE {
            if component == Some(name) && !applied.admit("TCP", port) {
                let text = format!(
                    "{} no connection to port {port} of {name}: {effect}",
                    applied.title("admits")
                );
                let finding = applied.finding(&text, &format!("TCP port {port}"));
                wrong.entry(text).or_insert(finding);
            }
        }
    }
    add_applications(facts, all, &mut wrong)?;
    Ok(Outcome::warn_if(wrong.into_values(), ""))
}

/// Finds policies that keep the proxies of meshed pods from the control plane, or meshed clients
/// from the port where they reach the application.
fn add_applications(
    facts: &Facts,
    all: &[NetworkPolicy],
    wrong: &mut BTreeMap<String, Finding>,
) -> Fact<()> {
    let values = facts.values().ok();
    for pod in facts.meshed_pods()? {
        let outbound = Applied::new(pod, Direction::Egress, all);
        for (port, what) in OUTBOUND {
            if !outbound.admit("TCP", port) {
                let text = format!(
                    "{} no connection to TCP port {port}: proxies there do not reach {what}",
                    outbound.title("admits")
                );
                let finding = outbound.finding(&text, &format!("TCP port {port}"));
                wrong.entry(text).or_insert(finding);
            }
        }
        // DNS uses TCP for large answers only.
        if !DNS.iter().any(|port| outbound.admit("UDP", *port)) {
            let text = format!(
                "{} no connection to UDP port 53: proxies there do not reach cluster DNS",
                outbound.title("admits")
            );
            let finding = outbound.finding(&text, "UDP port 53");
            wrong.entry(text).or_insert(finding);
        }
        let inbound = Applied::new(pod, Direction::Ingress, all);
        let unreachable = values.and_then(|it| unreachable(it, &inbound));
        if let Some((port, reached_at)) = unreachable {
            let title = inbound.title("admits");
            let key = format!("{title} port {port} but not {reached_at}");
            let text = format!(
                "{key} of {}: meshed clients connect to port {reached_at}",
                full_name(pod)
            );
            let finding = inbound.finding(&text, &format!("TCP port {reached_at}"));
            wrong.entry(key).or_insert(finding);
        }
    }
    Ok(())
}

/// Returns a port of the application that the policies mean to admit, and the port where meshed
/// clients reach it, which the policies do not admit. A policy that admits only the proxy's port
/// means the application.
fn unreachable(values: &Values, inbound: &Applied<'_>) -> Option<(u16, u16)> {
    let proxy = pod::ports::proxy_ports(inbound.pod)?.inbound;
    let skipped = pod::ports::skip_inbound(inbound.pod);
    let opaque = pod::ports::opaque(inbound.pod)
        .unwrap_or_else(|| pod::ports::resolve_list(None, &values.proxy.opaque_ports));
    let reached_at = |port: u16| {
        let is_tunnelled =
            values.proxy.outbound_transport_mode != TRANSPARENT || opaque.contains(port);
        if is_tunnelled && !skipped.contains(port) {
            proxy
        } else {
            port
        }
    };
    let admits = |port| inbound.admit("TCP", port);
    let ports = application_ports(inbound.pod);
    let by_application = ports
        .iter()
        .find(|port| admits(**port) && !admits(reached_at(**port)))
        .map(|port| (*port, reached_at(*port)));
    by_application.or_else(|| {
        let reached: Vec<u16> = ports.iter().map(|port| reached_at(*port)).collect();
        let first = *reached.first()?;
        (admits(proxy) && !reached.iter().any(|port| admits(*port))).then_some((proxy, first))
    })
}

/// With this value of `proxy.outboundTransportMode`, meshed clients connect to the ports of the
/// application, unless they are opaque.
const TRANSPARENT: &str = "transparent";

/// Returns the TCP ports that the application's containers declare.
fn application_ports(pod: &Pod) -> Vec<u16> {
    let declared = pod.spec.iter().flat_map(pod::ports::declared);
    declared
        .filter(|(container, port)| {
            container.name != pod::PROXY_CONTAINER && pod::ports::is_tcp(port)
        })
        .filter_map(|(_, port)| pod::ports::port_number(port.container_port))
        .collect()
}

impl<'a> Applied<'a> {
    fn new(pod: &'a Pod, direction: Direction, all: &'a [NetworkPolicy]) -> Self {
        let applies = |policy: &&NetworkPolicy| {
            let spec = policy.spec.as_ref();
            policy.namespace() == pod.namespace()
                && spec.is_some_and(|spec| {
                    direction.is_of(spec)
                        && spec.pod_selector.as_ref().is_none_or(|selector| {
                            select::matches(selector, pod.metadata.labels.as_ref())
                        })
                })
        };
        Self {
            pod,
            direction,
            policies: all.iter().filter(applies).collect(),
        }
    }

    /// Returns whether a connection to a port may be allowed; without policies it is.
    fn admit(&self, protocol: &str, port: u16) -> bool {
        let mut specs = self
            .policies
            .iter()
            .filter_map(|policy| policy.spec.as_ref());
        self.policies.is_empty()
            || specs.any(|spec| {
                self.direction.rules(spec).into_iter().any(|ports| {
                    ports.is_none_or(|ports| {
                        ports.is_empty()
                            || ports.iter().any(|one| self.includes(one, protocol, port))
                    })
                })
            })
    }

    fn includes(&self, one: &NetworkPolicyPort, protocol: &str, port: u16) -> bool {
        let has_protocol = one.protocol.as_deref().unwrap_or("TCP") == protocol;
        has_protocol
            && match (&one.port, one.end_port) {
                (None, _) => true,
                (Some(IntOrString::Int(first)), last) => {
                    (*first..=last.unwrap_or(*first)).contains(&i32::from(port))
                }
                // A name of a port of the pod, or of a peer that is unknown here.
                (Some(IntOrString::String(name)), _) => match self.direction {
                    Direction::Ingress => self
                        .pod
                        .spec
                        .as_ref()
                        .is_some_and(|spec| pod::ports::named(spec, name).contains(&port)),
                    Direction::Egress => true,
                },
            }
    }

    /// Returns the policies as the subject of a sentence.
    fn title(&self, verb: &str) -> String {
        let names: Vec<String> = self
            .policies
            .iter()
            .map(|policy| policy.name_any())
            .collect();
        format!(
            "NetworkPolicy {}/{} {verb}",
            self.pod.namespace().unwrap_or_default(),
            names.join(", ")
        )
    }

    fn finding(&self, text: &str, port: &str) -> Finding {
        let namespace = self.pod.namespace().unwrap_or_default();
        let name = self.policies.first().map(|policy| policy.name_any());
        let list = match self.direction {
            Direction::Ingress => "spec.ingress",
            Direction::Egress => "spec.egress",
        };
        Finding::new(text).with_fix(format!(
            "kubectl -n {namespace} edit networkpolicy {}: add {port} to {list}",
            name.unwrap_or_default()
        ))
    }
}

impl Direction {
    fn is_of(self, spec: &NetworkPolicySpec) -> bool {
        let types = spec.policy_types.as_deref().unwrap_or_default();
        match self {
            Self::Ingress => types.is_empty() || types.iter().any(|name| name == "Ingress"),
            Self::Egress => {
                types.is_empty() && spec.egress.is_some()
                    || types.iter().any(|name| name == "Egress")
            }
        }
    }

    /// Returns the ports of each rule; `None` stands for all.
    fn rules(self, spec: &NetworkPolicySpec) -> Vec<Option<&Vec<NetworkPolicyPort>>> {
        match self {
            Self::Ingress => {
                let rules = spec.ingress.iter().flatten();
                rules.map(|rule| rule.ports.as_ref()).collect()
            }
            Self::Egress => {
                let rules = spec.egress.iter().flatten();
                rules.map(|rule| rule.ports.as_ref()).collect()
            }
        }
    }
}

//! Finds policies that do not apply to IPv6, because it passes the proxy.

use std::net::IpAddr;

use mesh_core::annotation;
use mesh_k8s::kinds::{Pod, ResourceExt};
use mesh_k8s::pod;
use mesh_objects::convert;

use super::title;
use crate::check::framework::{CheckResult, Finding, Outcome};
use crate::check::selected::{Selected, selected, servers};
use crate::facts::{Facts, full_name};

/// Default policies that allow every client. They would also allow the connections that bypass
/// them.
const OPEN: [&str; 2] = ["all-unauthenticated", "audit"];
/// An argument of the init container.
const NO_IPV6: &str = "--ipv6=false";
const FIX: &str = "helm upgrade with disableIPv6=false, so that proxies listen on IPv6, or with refuseIPv6=true; then restart the workloads";

/// One finding for each Server, and one for each namespace with a stricter default policy.
pub(super) fn bypassed(facts: &Facts) -> CheckResult {
    let mut wrong = Vec::new();
    for server in servers(facts)? {
        let workloads = selected(facts, server)?;
        let bypassed = workloads.iter().find_map(|workload| match workload {
            Selected::Pod(pod, _) if passes_ipv6(pod) => Some(*pod),
            _ => None,
        });
        if let Some(pod) = bypassed {
            wrong.push(finding(&title(server), pod));
        }
    }
    let default = &facts.values()?.proxy.default_inbound_policy;
    let mut namespaces = Vec::new();
    for pod in facts.meshed_pods()?.filter(|pod| passes_ipv6(pod)) {
        let policy = default_inbound_policy(pod, default);
        let namespace = pod.namespace().unwrap_or_default();
        if !OPEN.contains(&policy.as_str()) && !namespaces.contains(&namespace) {
            wrong.push(finding(&format!("the default policy {policy}"), pod));
            namespaces.push(namespace);
        }
    }
    Ok(Outcome::fail_if(wrong, ""))
}

/// Returns the default policy of a pod: its own, or `default`.
pub(in crate::check) fn default_inbound_policy(pod: &Pod, default: &str) -> String {
    let own = convert::default_policy(&pod.metadata);
    own.map_or_else(|| default.to_owned(), |policy| policy.as_str().to_owned())
}

/// Returns whether the pod can be reached over IPv6 without its proxy.
fn passes_ipv6(pod: &Pod) -> bool {
    let status = pod.status.as_ref();
    let addresses = status.and_then(|status| status.pod_ips.as_ref());
    let has_ipv6 = addresses.into_iter().flatten().any(|address| {
        let address = address.ip.parse();
        address.is_ok_and(|address: IpAddr| address.is_ipv6())
    });
    has_ipv6 && !redirects_ipv6(pod)
}

/// The agent reads an annotation, the init container an argument.
fn redirects_ipv6(pod: &Pod) -> bool {
    let families = pod::annotation(pod, annotation::REDIRECTED_IP_FAMILIES);
    let spec = pod.spec.as_ref();
    let init = spec.and_then(|spec| spec.init_containers.as_ref());
    let mut arguments = init.into_iter().flatten().filter_map(|it| it.args.as_ref());
    families != Some(annotation::IPV4_ONLY)
        && !arguments.any(|arguments| arguments.iter().any(|it| it == NO_IPV6))
}

fn finding(policy: &str, pod: &Pod) -> Finding {
    Finding::new(format!(
        "{policy} does not apply to IPv6 connections to {}, which pass its proxy",
        full_name(pod)
    ))
    .with_fix(FIX)
}

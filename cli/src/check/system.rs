//! What the mesh needs of the cluster besides the API server: DNS, and the controllers that write
//! EndpointSlices and create pods.

use mesh_k8s::kinds::{EndpointSlice, Lease, ResourceExt, Service};

use super::framework::{Check, CheckResult, Finding, Outcome};
use crate::certificate::format_duration;
use crate::facts::names::SYSTEM_NAMESPACE;
use crate::facts::{Facts, fact_ref};
use crate::output::count;

const DNS_PORT: i32 = 53;

/// The controllers, and what stops without each. They renew their leases every two seconds; one
/// that is older than this has no holder.
const CONTROLLERS: [(&str, &str); 2] = [
    (
        "kube-controller-manager",
        "EndpointSlices do not follow pods, and no workload gets new ones",
    ),
    ("kube-scheduler", "new pods are not assigned to nodes"),
];
const MAX_LEASE_AGE_SECONDS: u64 = 60;

pub(super) const DNS: Check = Check::new(
    "cluster-dns",
    "cluster DNS has ready endpoints",
    "kubectl -n kube-system get pods -o wide",
    dns,
)
.explained_by(&[&["nodes-ready", "kube-controllers"]]);

pub(super) const DOMAIN: Check = Check::new(
    "cluster-domain",
    "clusterDomain is the domain of cluster DNS",
    "set the value clusterDomain to the domain of cluster DNS, {upgrade}, and restart the meshed workloads",
    domain,
);

pub(super) const CONTROLLERS_RUN: Check = Check::new(
    "kube-controllers",
    "the controllers of Kubernetes renew their leases",
    "kubectl -n kube-system get pods -l tier=control-plane -o wide; the log of the container has the reason",
    controllers,
)
.explained_by(&[&["nodes-ready"]]);

/// Finds Services of cluster DNS without a ready endpoint. Clusters name the Service differently;
/// all of them serve UDP port 53 in this namespace.
fn dns(facts: &Facts) -> CheckResult {
    let serves_dns = |service: &&Service| {
        let ports = service.spec.as_ref().and_then(|spec| spec.ports.as_ref());
        service.namespace().as_deref() == Some(SYSTEM_NAMESPACE)
            && ports
                .into_iter()
                .flatten()
                .any(|port| port.port == DNS_PORT && port.protocol.as_deref() == Some("UDP"))
    };
    let services: Vec<&Service> = fact_ref(&facts.objects.services)?
        .iter()
        .filter(serves_dns)
        .collect();
    let slices = fact_ref(&facts.objects.system_slices)?;
    let wrong = services.iter().filter_map(|service| {
        let name = service.name_any();
        if slices.iter().any(|slice| has_ready_endpoint(slice, &name)) {
            return None;
        }
        let finding = Finding::new(format!(
            "Service {SYSTEM_NAMESPACE}/{name} has no ready endpoint: proxies and controllers that start cannot find the control plane"
        ));
        let selector = service.spec.as_ref().and_then(|spec| spec.selector.as_ref());
        let labels: Vec<String> = selector
            .into_iter()
            .flatten()
            .map(|(key, value)| format!("{key}={value}"))
            .collect();
        Some(if labels.is_empty() {
            finding
        } else {
            finding.with_fix(format!(
                "kubectl -n {SYSTEM_NAMESPACE} get pods -l {} -o wide, and describe one that is not ready",
                labels.join(",")
            ))
        })
    });
    Ok(Outcome::fail_if(
        wrong,
        if services.is_empty() {
            format!("no Service in {SYSTEM_NAMESPACE} has UDP port {DNS_PORT}")
        } else {
            count(services.len(), "Service", "Services")
        },
    ))
}

/// Compares `clusterDomain` with the zones that CoreDNS answers for the cluster. Other DNS servers
/// configure them elsewhere.
fn domain(facts: &Facts) -> CheckResult {
    let own = &facts.values()?.cluster_domain;
    let config = match &facts.objects.cluster_dns {
        Ok(config) => config.as_ref(),
        Err(reason) => return Ok(Outcome::ok(format!("not compared: {reason}"))),
    };
    let file = config
        .and_then(|config| config.data.as_ref())
        .and_then(|data| data.get("Corefile"));
    let zones = file.map(|file| zones(file)).unwrap_or_default();
    if zones.is_empty() || zones.contains(&own.trim_end_matches('.')) {
        return Ok(Outcome::ok(own));
    }
    let dns = zones.join(", ");
    let first = zones[0];
    Ok(Outcome::fail(
        Finding::new(format!(
            "clusterDomain is {own}, but cluster DNS answers for {dns}: proxies find neither the control plane nor Services"
        ))
        .with_fix(format!(
            "set the value clusterDomain to {first}, {{upgrade}}, and restart the meshed workloads"
        ))
        .into_root_cause(),
    ))
}

/// Returns the zones of the plugin `kubernetes`, without the reverse zones.
fn zones(file: &str) -> Vec<&str> {
    let mut zones = Vec::new();
    for line in file.lines() {
        let mut words = line.split_whitespace();
        if words.next() == Some("kubernetes") {
            let named = words.take_while(|word| *word != "{");
            let named = named.map(|zone| zone.trim_end_matches('.'));
            zones.extend(named.filter(|zone| !zone.ends_with(".arpa")));
        }
    }
    zones
}

/// Returns whether a slice of a Service has an endpoint that is ready; without the condition it is.
pub(super) fn has_ready_endpoint(slice: &EndpointSlice, service: &str) -> bool {
    let of_service = slice.labels().get("kubernetes.io/service-name");
    of_service.is_some_and(|name| name == service)
        && slice.endpoints.iter().any(|endpoint| {
            let ready = endpoint.conditions.as_ref().and_then(|all| all.ready);
            ready != Some(false)
        })
}

/// Finds controllers that do not renew their lease. A cluster that hides its leases has none.
fn controllers(facts: &Facts) -> CheckResult {
    let leases = fact_ref(&facts.objects.leader_leases)?;
    let wrong = CONTROLLERS.into_iter().filter_map(|(name, consequence)| {
        let of_controller = |lease: &&Lease| {
            lease.namespace().as_deref() == Some(SYSTEM_NAMESPACE) && lease.name_any() == name
        };
        let age = lease_age(facts, leases.iter().find(of_controller)?)?;
        (age > MAX_LEASE_AGE_SECONDS).then(|| {
            let finding = Finding::new(format!(
                "{name} renewed its lease {} ago and does not run: {consequence}",
                format_duration(age)
            ));
            finding.with_fix(format!(
                "kubectl -n {SYSTEM_NAMESPACE} get pods -o wide | grep {name}; on its node: crictl logs of the container {name}"
            ))
        })
    });
    Ok(Outcome::fail_if(wrong, ""))
}

/// Returns the seconds since a lease was renewed, by the clock of the API server.
pub(super) fn lease_age(facts: &Facts, lease: &Lease) -> Option<u64> {
    let renewed = lease.spec.as_ref()?.renew_time.as_ref()?;
    let renewed = u64::try_from(renewed.0.as_second()).ok()?;
    Some(facts.clock().saturating_sub(renewed))
}

//! What the control plane and its extensions claim while they run: the leases of writers, and the
//! namespaces of extensions.

use std::collections::{BTreeMap, BTreeSet};

use mesh_core::annotation::EXTENSION;
use mesh_k8s::kinds::ResourceExt;

use super::super::framework::{CheckResult, Finding, Outcome};
use super::super::system;
use crate::certificate::format_duration;
use crate::facts::{Facts, fact_ref};

/// What a replica of a controller writes while it holds a lease.
struct Writer {
    /// As in Linkerd.
    lease: &'static str,
    container: &'static str,
    /// What happens if there is none.
    effect: &'static str,
}

const STATUS_WRITER: Writer = Writer {
    lease: "policy-controller-write",
    container: "policy",
    effect: "statuses of routes are out of date",
};

const ENDPOINT_WRITER: Writer = Writer {
    lease: "linkerd-destination-endpoint-write",
    container: "destination",
    effect: "EndpointSlices of ExternalWorkloads are out of date",
};

/// The holder renews it every ten seconds, and another replica claims it after thirty.
const MAX_WRITER_AGE_SECONDS: u64 = 120;

/// Finds a lease of the status writer that no replica renews, so that routes keep old statuses.
pub(super) fn status_writer(facts: &Facts) -> CheckResult {
    holder(facts, &STATUS_WRITER)
}

/// Finds a lease of the writer of EndpointSlices that no replica renews, so that clients connect to
/// machines that have gone.
pub(super) fn endpoint_writer(facts: &Facts) -> CheckResult {
    holder(facts, &ENDPOINT_WRITER)
}

fn holder(facts: &Facts, writer: &Writer) -> CheckResult {
    let leases = fact_ref(&facts.objects.leader_leases)?;
    let lease = leases.iter().find(|lease| {
        lease.namespace().as_deref() == Some(&facts.control_namespace)
            && lease.name_any() == writer.lease
    });
    let Some((lease, spec)) = lease.and_then(|lease| Some((lease, lease.spec.as_ref()?))) else {
        return Ok(Outcome::ok("no replica has claimed its Lease yet"));
    };
    let holder = spec.holder_identity.as_deref().unwrap_or_default();
    let Some(age) = system::lease_age(facts, lease) else {
        return Ok(Outcome::ok(holder));
    };
    if holder.is_empty() || age <= MAX_WRITER_AGE_SECONDS {
        return Ok(Outcome::ok(holder));
    }
    let exists = facts.control_pods()?.any(|pod| pod.name_any() == holder);
    let state = if exists {
        "does not renew it"
    } else {
        "does not exist"
    };
    let Writer {
        lease,
        container,
        effect,
    } = writer;
    let finding = Finding::new(format!(
        "Lease {lease} was renewed {} ago, and its holder {holder} {state}: {effect}",
        format_duration(age)
    ));
    Ok(Outcome::warn(finding.with_fix(format!(
        "kubectl -n {{ns}} delete lease {lease}: a replica claims it anew; if none does: kubectl -n {{ns}} logs deployment/linkerd-destination -c {container}"
    ))))
}

/// Finds namespaces that claim to be the same extension. Commands would use one at random.
pub(super) fn extensions(facts: &Facts) -> CheckResult {
    let mut by_name: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
    for namespace in fact_ref(&facts.objects.namespaces)? {
        if let Some(extension) = namespace.labels().get(EXTENSION) {
            by_name
                .entry(extension)
                .or_default()
                .insert(namespace.name_any());
        }
    }
    let wrong = by_name
        .iter()
        .filter(|(_, namespaces)| namespaces.len() > 1)
        .map(|(extension, namespaces)| {
            let finding = Finding::new(format!(
                "namespaces {} are all labelled as extension {extension}",
                Vec::from_iter(namespaces.iter().map(String::as_str)).join(", ")
            ));
            finding.with_fix(format!(
                "for each but the one with the extension's pods: kubectl label namespace NAME {EXTENSION}-"
            ))
        });
    Ok(Outcome::warn_if(wrong, ""))
}

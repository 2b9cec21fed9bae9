//! The list of denied identities, and the proxies that do not follow it.

use mesh_core::deny_list::DenyList;
use mesh_k8s::denied_identities::{CONFIG_MAP, read};
use mesh_k8s::kinds::{Pod, ResourceExt};

use super::super::framework::{CheckResult, Finding, Outcome};
use super::bundles::follows_identity;
use crate::facts::{Fact, Facts, Proxy, fact_ref, full_name};
use crate::output::count;

/// A metric of the proxies that follow the list: how many entries it has.
const SIZE: &str = "mesh_denied_identities";

/// Finds an object that the identity service does not use.
pub(super) fn list_valid(facts: &Facts) -> CheckResult {
    let Some(object) = fact_ref(&facts.objects.denied_identities)? else {
        return Ok(Outcome::ok("no identity is denied"));
    };
    let trust_domain = facts.values()?.trust_domain();
    Ok(match read(object, &facts.control_namespace, trust_domain) {
        Ok(list) => Outcome::ok(count(list.len(), "entry", "entries")),
        Err(problems) => Outcome::fail_if(
            problems
                .iter()
                .map(|problem| Finding::new(format!("ConfigMap {CONFIG_MAP}: {problem}"))),
            "",
        ),
    })
}

/// Finds the proxies that do not get the list: Linkerd's, proxies of an earlier version, and all of
/// them if the identity service sends nothing.
pub(super) fn followed(facts: &Facts) -> CheckResult {
    let Some(entries) = denied(facts)? else {
        return Ok(Outcome::ok("no identity is denied"));
    };
    if !facts.values()?.identity.publish_trust_roots {
        let title = format!(
            "identity.publishTrustRoots is off: denied identities get no certificate, but no proxy gets the list ({entries})"
        );
        return Ok(Outcome::warn_if([Finding::new(title)], ""));
    }
    let deaf = facts.meshed_pods()?;
    let deaf = deaf.filter(|pod| !follows_identity(facts, pod) || knows_no_list(facts, pod));
    let deaf = deaf.map(|pod| {
        Finding::new(format!(
            "{} does not get the list: its proxy is Linkerd's, or of an earlier version, and keeps connections with denied identities",
            full_name(pod)
        ))
    });
    Ok(Outcome::warn_if(deaf, entries))
}

/// Returns whether the metrics of the pod's proxy, if there are any, are of a version without
/// lists.
fn knows_no_list(facts: &Facts, pod: &Pod) -> bool {
    let (namespace, name) = (pod.namespace().unwrap_or_default(), pod.name_any());
    let of_pod = |proxy: &&Proxy| proxy.namespace == namespace && proxy.pod == name;
    let proxy = facts.proxies.iter().find(of_pod);
    let metrics = proxy.and_then(|proxy| proxy.metrics.as_ref().ok());
    metrics.is_some_and(|metrics| metrics.iter().all(|sample| sample.name != SIZE))
}

/// Returns how many entries there are; `None` without any. An invalid object may have some.
fn denied(facts: &Facts) -> Fact<Option<String>> {
    let Some(object) = fact_ref(&facts.objects.denied_identities)? else {
        return Ok(None);
    };
    let trust_domain = facts.values()?.trust_domain();
    let list = read(object, &facts.control_namespace, trust_domain);
    if list.as_ref().is_ok_and(DenyList::is_empty) {
        return Ok(None);
    }
    let entries = list.map_or_else(
        |_invalid| "entries of an invalid list".to_owned(),
        |list| count(list.len(), "entry", "entries"),
    );
    Ok(Some(entries))
}

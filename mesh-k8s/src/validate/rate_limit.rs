//! HTTPLocalRateLimitPolicy.

use super::{Node, target};
use crate::crd::Server;
use crate::kinds::ServiceAccount;

const FIX: &str = "write a rate of at least 1 request per second";

pub(super) fn rate_limit_policy(object: &Node<'_>) {
    let Some(spec) = object.require("spec", "describe the rates") else {
        return;
    };
    let fix = "name a Server of policy.linkerd.io";
    if let Some(node) = spec.require("targetRef", fix)
        && let Some(reference) = target::local(&node)
        && !reference.targets::<Server>()
    {
        target::wrong_kind(&node, reference.group.as_deref(), &reference.kind, fix);
    }
    let total = spec.get("total").and_then(|total| rate(&total, None));
    if let Some(identity) = spec.get("identity") {
        rate(&identity, total);
    }
    for item in spec.items_of("overrides") {
        rate(&item, total);
        if let Some(clients) = item.require("clientRefs", "list the ServiceAccounts of clients") {
            client_references(&clients);
        }
    }
}

/// Checks a rate, and returns it.
fn rate(node: &Node<'_>, total: Option<u32>) -> Option<u32> {
    node.object()?;
    let number = node.require("requestsPerSecond", FIX)?;
    let rate = number.integer::<u32>("a whole number from 1 to 4294967295")?;
    if rate == 0 {
        number.invalid("accepts no request", FIX);
    }
    if let Some(total) = total.filter(|total| rate > *total) {
        number.invalid(
            &format!("is more than the total rate, {total}"),
            "lower it, or raise total.requestsPerSecond",
        );
    }
    Some(rate)
}

fn client_references(list: &Node<'_>) {
    for item in list.items() {
        if let Some(reference) = target::namespaced(&item)
            && !reference.targets::<ServiceAccount>()
        {
            let fix = "name a ServiceAccount";
            target::wrong_kind(&item, reference.group.as_deref(), &reference.kind, fix);
        }
    }
}

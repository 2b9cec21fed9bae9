//! Whether the services of the control plane are reached at their addresses, and have their
//! identities there.

use x509_parser::extensions::GeneralName;

use super::super::framework::{CheckResult, Finding, Outcome};
use crate::certificate;
use crate::clients::tls::verify_chain;
use crate::facts::Facts;
use crate::facts::host::Reached;

pub(super) const ADVICE: &str = "routes, firewalls and DNS between this machine and the control plane (docs/operations/machines.md); another address is set with the flags --identity-addr, --destination-addr and --policy-addr of meshctl machine admit";

/// Checks one of the services, at all addresses that are in use.
pub(super) fn reached(facts: &Facts, service: &str) -> CheckResult {
    let all = || {
        facts
            .host
            .services
            .iter()
            .filter(|it| it.service.service == service)
    };
    let wrong = all().filter_map(|reached| problem(reached, facts.now));
    let mut addresses: Vec<&str> = all().map(|it| it.service.address.as_str()).collect();
    addresses.dedup();
    let ok = match addresses.as_slice() {
        [] => "no address of it is known".to_owned(),
        known => known.join(", "),
    };
    Ok(Outcome::fail_if(wrong, ok))
}

fn problem(reached: &Reached, now: u64) -> Option<Finding> {
    let Reached {
        service,
        user,
        chain,
    } = reached;
    let chain = match chain {
        Err(reason) => return Some(Finding::new(format!("{user}: {reason}"))),
        Ok(None) => return None,
        Ok(Some(chain)) => chain,
    };
    let anchors = match certificate::read_pem(service.anchors.as_bytes(), "the trust anchors") {
        Ok(anchors) => anchors,
        Err(reason) => return Some(Finding::new(format!("{user}: {reason}"))),
    };
    let error = verify_chain(chain, &anchors, &service.name, now).err()?;
    let presented = names(chain);
    let text = if presented.contains(&service.name) {
        format!("{user}: the certificate of {service} is not valid here: {error}")
    } else {
        format!(
            "{user}: {service} should be {}, and a server with the names {} responds: {error}",
            service.name,
            presented.join(", ")
        )
    };
    Some(Finding::new(text))
}

/// Returns the DNS names of the first certificate.
fn names(chain: &[Vec<u8>]) -> Vec<String> {
    let leaf = chain.first().map(|der| certificate::parse(der, "it"));
    let Some(Ok(leaf)) = leaf else {
        return Vec::new();
    };
    let names = leaf.subject_alternative_name().ok().flatten();
    let names = names.map(|names| names.value.general_names.clone());
    let dns = names.into_iter().flatten().filter_map(|name| match name {
        GeneralName::DNSName(name) => Some(name.to_owned()),
        _ => None,
    });
    dns.collect()
}

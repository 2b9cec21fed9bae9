//! Analysis of objects for `meshctl analyze`: finds objects that have no effect, contradict each
//! other or refer to what does not exist.
//!
//! The rules are pure functions of a set of objects in JSON, so that they apply to files, to the
//! objects of a cluster and to the directory of a local node, and to objects that are invalid. A
//! rule that would need objects that the set cannot have (workloads, in a file of policies) does
//! not apply.

mod annotations;
mod authorizations;
mod duplicates;
mod finding;
mod invalid;
pub(crate) mod kinds;
mod meshed;
mod networks;
mod objects;
mod profiles;
mod proxies;
mod routes;
mod servers;
mod services;
mod shadowed;
mod timeouts;

#[cfg(test)]
pub(crate) mod tests;

pub(crate) use self::{finding::Finding, objects::Objects};

/// Returns the findings, by object.
pub(crate) fn analyze(objects: &Objects) -> Vec<Finding> {
    let mut findings = Vec::new();
    invalid::analyze(objects, &mut findings);
    servers::analyze(objects, &mut findings);
    services::analyze(objects, &mut findings);
    let attachments = routes::Attachments::new(objects);
    routes::analyze(objects, &attachments, &mut findings);
    shadowed::analyze(objects, &mut findings);
    authorizations::analyze(objects, &attachments, &mut findings);
    duplicates::analyze(objects, &mut findings);
    networks::analyze(objects, &mut findings);
    profiles::analyze(objects, &mut findings);
    annotations::analyze(objects, &mut findings);
    timeouts::analyze(objects, &mut findings);
    proxies::analyze(objects, &mut findings);
    findings.sort_by(|one, other| one.order().cmp(&other.order()));
    findings.dedup();
    findings
}

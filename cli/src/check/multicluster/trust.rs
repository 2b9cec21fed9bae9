//! The trust domains of linked clusters with trust anchors of their own, and their trust bundles.

use std::collections::BTreeSet;
use std::time::Duration;

use mesh_cluster::trust_bundle::document;
use mesh_core::annotation::TRUST_BUNDLE_OF;
use mesh_core::exposition::Sample;
use mesh_core::trust_domain::{DomainRefusal, refresh_after};
use mesh_k8s::foreign_domain::recorded::Recorded;
use mesh_k8s::foreign_domain::{
    DOMAIN_LABEL, FAILING_METRIC, FETCHED_METRIC, ForeignDomain, LinkName, Refusal, Refused,
};
use mesh_k8s::kinds::ResourceExt;

use super::links;
use crate::certificate::{self, format_duration, read_pem, time_problem};
use crate::check::framework::{CheckResult, Finding, Outcome};
use crate::facts::{Fact, Facts, LinkFacts, Replica, fact_ref};
use crate::output::count;

/// Clocks of replicas and of this machine differ, and a replica may just be fetching.
const FETCH_MARGIN: u64 = 600;

const NONE: &str = "no trust bundle of another cluster is in use";

/// Finds ConfigMaps that are not in effect, and trust domains whose anchors proxies do not get.
pub(super) fn domains(facts: &Facts) -> CheckResult {
    let (domains, refused) = facts.foreign_domains()?;
    if domains.is_empty() && refused.is_empty() {
        return Ok(Outcome::ok(NONE));
    }
    let recorded = facts.recorded_domains()?;
    let refused = refused.iter().map(|refused| of_refused(facts, refused));
    let (mut failed, mut warned): (Vec<Finding>, Vec<Finding>) = (refused.collect(), Vec::new());
    for domain in &domains {
        match &domain.link {
            Some(link) if !exists(facts, link)? => warned.push(without_link(facts, domain, link)),
            _ => failed.extend(of_domain(facts, domain, &recorded)?),
        }
    }
    let detail = count(domains.len(), "trust domain", "trust domains");
    Ok(outcome(failed, warned, detail))
}

/// Finds bundles that verify no certificate, that are not fetched, or that are outdated.
pub(super) fn bundles(facts: &Facts) -> CheckResult {
    let (domains, _refused) = facts.foreign_domains()?;
    let recorded = facts.recorded_domains()?;
    let known = |domain: ForeignDomain| {
        let anchors = recorded.get(&domain.trust_domain)?.bundle().anchors;
        Some((domain, anchors))
    };
    let known: Vec<(ForeignDomain, String)> = domains.into_iter().filter_map(known).collect();
    if known.is_empty() {
        return Ok(Outcome::ok(NONE));
    }
    let replicas = fact_ref(&facts.multicluster.replicas)?;
    let (mut failed, mut warned) = (Vec::new(), Vec::new());
    if replicas.is_empty() {
        let text = "no pod of the identity service runs, so that no trust bundle is fetched";
        warned.push(Finding::new(text).with_fix("meshctl check shows why"));
    }
    warned.extend(replicas.iter().filter_map(unknown));
    for (domain, anchors) in &known {
        let anchors = read_pem(anchors.as_bytes(), "the bundle").unwrap_or_default();
        failed.extend(unusable(facts, domain, &anchors));
        let fetches = replicas
            .iter()
            .filter_map(|it| of_replica(facts, it, domain));
        warned.extend(fetches);
        warned.extend(outdated(facts, domain, &anchors)?);
    }
    let detail = count(known.len(), "trust bundle", "trust bundles");
    Ok(outcome(failed, warned, detail))
}

/// Returns the trust domain of a target whose anchors are trusted by its bundle.
pub(super) fn of_target(facts: &Facts, known: &LinkFacts) -> Fact<Option<String>> {
    let target = fact_ref(&known.target).and_then(|target| fact_ref(&target.mesh));
    let Ok(mesh) = target else {
        return Ok(None);
    };
    let anchors = facts.recorded_domains()?.anchors();
    let is_trusted = anchors.contains_key(&mesh.trust_domain);
    Ok(is_trusted.then(|| mesh.trust_domain.clone()))
}

/// Returns the name of the ConfigMap for a cluster.
pub(super) fn config_map_of(facts: &Facts, cluster: &str) -> Fact<Option<String>> {
    let mut objects = fact_ref(&facts.multicluster.trust_bundles)?.iter();
    let is_of = |label: &String| label == cluster;
    let found = objects.find(|it| it.labels().get(TRUST_BUNDLE_OF).is_some_and(is_of));
    Ok(found.map(ResourceExt::name_any))
}

fn outcome(mut failed: Vec<Finding>, warned: Vec<Finding>, ok: String) -> Outcome {
    if failed.is_empty() {
        return Outcome::warn_if(warned, ok);
    }
    failed.extend(warned);
    Outcome::Fail(failed)
}

/// Returns the name of the ConfigMap that was read.
fn name_of(facts: &Facts, domain: &ForeignDomain) -> String {
    let mut objects = facts.multicluster.trust_bundles.iter().flatten();
    let found = objects.find(|it| ForeignDomain::read(it).as_ref() == Ok(domain));
    found.map(ResourceExt::name_any).unwrap_or_default()
}

fn exists(facts: &Facts, link: &LinkName) -> Fact<bool> {
    let mut links = fact_ref(&facts.multicluster.links)?.iter();
    Ok(links.any(|it| (&it.namespace, &it.name) == (&link.namespace, &link.name)))
}

/// Returns how to write the ConfigMap of a domain again.
fn trust_again(domain: &ForeignDomain) -> String {
    let cluster = &domain.cluster;
    let (command, flag) = match domain.link {
        Some(_) => ("link-gen", " --trust-bundle"),
        None => ("trust-gen", ""),
    };
    format!(
        "meshctl --context TARGET multicluster {command} --cluster-name {cluster}{flag} | kubectl apply -f -, where TARGET is the context of cluster {cluster}"
    )
}

fn of_refused(facts: &Facts, refused: &Refused) -> Finding {
    let Refused { name, problem } = refused;
    let namespace = &facts.control_namespace;
    let delete = format!("kubectl -n {namespace} delete configmap {name}");
    let finding = Finding::new(refused.to_string());
    match problem {
        // The advice of the row.
        Refusal::Invalid(_) => finding,
        Refusal::Domain(DomainRefusal::Own(_)) => finding.with_fix(format!(
            "give both clusters the same trust anchors, or install the mesh of one of them again with another value of identityTrustDomain; {delete}"
        )),
        Refusal::Domain(_) => finding.with_fix(format!(
            "install the mesh of one of the clusters again with another value of identityTrustDomain; {delete}"
        )),
        Refusal::Second(_) | Refusal::Many => finding.with_fix(delete),
    }
}

fn without_link(facts: &Facts, domain: &ForeignDomain, link: &LinkName) -> Finding {
    let ForeignDomain {
        cluster,
        trust_domain,
        ..
    } = domain;
    let name = name_of(facts, domain);
    let text = format!(
        "ConfigMap {name}: Link {link} does not exist, so that trust domain {trust_domain} is not trusted"
    );
    Finding::new(text).with_fix(format!(
        "kubectl -n {} delete configmap {name}, or link cluster {cluster} again: {}",
        facts.control_namespace,
        trust_again(domain)
    ))
}

/// Returns why proxies do not get the anchors of a domain whose Link exists.
fn of_domain(facts: &Facts, domain: &ForeignDomain, recorded: &Recorded) -> Fact<Option<Finding>> {
    let (name, own) = (name_of(facts, domain), &domain.trust_domain);
    let again = |problem: String| {
        let text = format!("ConfigMap {name}: {problem}");
        Ok(Some(Finding::new(text).with_fix(trust_again(domain))))
    };
    if let Some(other) = other_domain(facts, domain)? {
        return again(format!(
            "data[trust-domain] is {own}, but cluster {} has the trust domain {other}",
            domain.cluster
        ));
    }
    let first = domain
        .bundle
        .as_deref()
        .map(|it| document::read(it.as_bytes()));
    if let Some(Err(error)) = first {
        let error = anyhow::Error::from(error);
        return again(format!("data[bundle.json] is refused: {error:#}"));
    }
    if recorded.get(own).is_some() {
        return Ok(None);
    }
    let text = format!(
        "ConfigMap {name}: the identity service does not send the anchors of trust domain {own}"
    );
    Ok(Some(if facts.values()?.identity.publish_trust_roots {
        let namespace = &facts.control_namespace;
        Finding::new(text).with_fix(format!(
            "kubectl -n {namespace} logs deploy/linkerd-identity -c identity says why; it follows new ConfigMaps within 10 s"
        ))
    } else {
        let text = format!("{text}, because identity.publishTrustRoots is false");
        Finding::new(text)
            .with_fix("set the value identity.publishTrustRoots to true, and upgrade the mesh")
    }))
}

/// Returns the trust domain of the cluster if it is another one.
fn other_domain(facts: &Facts, domain: &ForeignDomain) -> Fact<Option<String>> {
    for (known, link) in links(facts)? {
        let target = fact_ref(&known.target).and_then(|target| fact_ref(&target.mesh));
        if link.spec.target_cluster_name == domain.cluster
            && let Ok(mesh) = target
            && mesh.trust_domain != domain.trust_domain
        {
            return Ok(Some(mesh.trust_domain.clone()));
        }
    }
    Ok(None)
}

/// Returns why no certificate of the domain is accepted.
fn unusable(facts: &Facts, domain: &ForeignDomain, anchors: &[Vec<u8>]) -> Option<Finding> {
    let ForeignDomain {
        cluster,
        trust_domain,
        ..
    } = domain;
    if anchors.is_empty() {
        return Some(Finding::new(format!(
            "cluster {cluster}: there is no trust anchor of {trust_domain}, because the cluster has withdrawn all, or its first bundle was not fetched yet"
        )));
    }
    let problem = |der: &Vec<u8>| match certificate::parse(der, "the bundle") {
        Ok(anchor) => time_problem(&anchor, facts.now),
        Err(problem) => Some(problem),
    };
    let problems: Option<Vec<String>> = anchors.iter().map(problem).collect();
    let text = problems?.join(", ");
    let text = format!("cluster {cluster}: no trust anchor of {trust_domain} is valid: {text}");
    Some(Finding::new(text).with_fix(trust_again(domain)))
}

fn unknown(replica: &Replica) -> Option<Finding> {
    let reason = replica.metrics.as_ref().err()?;
    Some(Finding::new(format!(
        "whether pod {} fetches trust bundles is unknown: {reason}",
        replica.pod
    )))
}

/// Returns the problem of a replica with the server of a bundle.
fn of_replica(facts: &Facts, replica: &Replica, domain: &ForeignDomain) -> Option<Finding> {
    let metrics = replica.metrics.as_ref().ok()?;
    let (pod, name) = (&replica.pod, &domain.trust_domain);
    let url = domain.endpoint.url();
    let fetched = value(metrics, FETCHED_METRIC, name).unwrap_or_default();
    let last = match fetched as u64 {
        0 => "it has fetched none since it started".to_owned(),
        fetched => {
            let age = facts.now.saturating_sub(fetched);
            format!("it has fetched the last one {} ago", format_duration(age))
        }
    };
    let longest = refresh_after(Some(Duration::MAX)).as_secs() + FETCH_MARGIN;
    let is_late = fetched > 0.0 && facts.now.saturating_sub(fetched as u64) > longest;
    let text = match value(metrics, FAILING_METRIC, name) {
        None => format!("pod {pod} does not fetch the trust bundle of {name} yet"),
        Some(failing) if failing != 0.0 => format!(
            "pod {pod} cannot fetch the trust bundle of {name} at {url}, or refuses it; {last}"
        ),
        Some(_) if is_late => {
            format!("pod {pod} does not fetch the trust bundle of {name} any longer; {last}")
        }
        Some(_) => return None,
    };
    let namespace = &facts.control_namespace;
    let reason = format!("kubectl -n {namespace} logs {pod} -c identity has the reason");
    Some(Finding::new(text).with_fix(format!(
        "{reason}; pods of the identity service must reach {url}; if cluster {} was installed again: {}",
        domain.cluster,
        trust_again(domain)
    )))
}

fn value(metrics: &[Sample], name: &str, domain: &str) -> Option<f64> {
    let mut metrics = metrics.iter();
    let found = metrics.find(|it| it.name == name && it.label(DOMAIN_LABEL) == domain);
    found.map(|sample| sample.value)
}

/// Compares the bundle in use with the anchors of linked clusters, if they can be read there.
fn outdated(facts: &Facts, domain: &ForeignDomain, anchors: &[Vec<u8>]) -> Fact<Vec<Finding>> {
    let used: BTreeSet<&Vec<u8>> = anchors.iter().collect();
    let mut findings = Vec::new();
    for (known, link) in links(facts)? {
        let Ok(target) = &known.target else {
            continue;
        };
        let (Ok(mesh), Ok(theirs)) = (&target.mesh, &target.anchors) else {
            continue;
        };
        if mesh.trust_domain != domain.trust_domain || used.is_empty() {
            continue;
        }
        let cluster = &link.spec.target_cluster_name;
        let theirs: BTreeSet<&Vec<u8>> = theirs.iter().collect();
        let missing: Vec<_> = theirs.difference(&used).collect();
        let withdrawn: Vec<_> = used.difference(&theirs).collect();
        let names = |anchors: &[&&Vec<u8>]| {
            let anchors: Vec<&[u8]> = anchors.iter().map(|it| it.as_slice()).collect();
            certificate::subjects(&anchors)
        };
        if !missing.is_empty() {
            let names = names(&missing);
            findings.push(format!(
                "cluster {cluster} trusts {names}, which the trust bundle in use lacks"
            ));
        }
        if !withdrawn.is_empty() {
            let names = names(&withdrawn);
            findings.push(format!(
                "cluster {cluster} does not trust {names} any longer, which the trust bundle in use has"
            ));
        }
    }
    let again = |text| {
        Finding::new(text).with_fix(format!(
            "wait two minutes until a rotation of that cluster has arrived; then {}",
            trust_again(domain)
        ))
    };
    Ok(findings.into_iter().map(again).collect())
}

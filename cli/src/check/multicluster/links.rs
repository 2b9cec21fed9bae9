//! The Links themselves.

use std::collections::BTreeMap;

use jiff::Timestamp;
use mesh_core::annotation::CREATED_BY;
use mesh_k8s::crd::Link;
use mesh_k8s::kinds::ResourceExt;

use super::{checked, links};
use crate::check::framework::{CheckResult, Finding, Outcome};
use crate::facts::{Facts, LinkFacts, fact_ref};
use crate::output::count;

const LINK: &str = "multicluster.linkerd.io/v1alpha3/Link";

/// The program in [`CREATED_BY`] that generates Links.
const PROGRAM: &str = "linkerd/cli";

pub(super) fn served(facts: &Facts) -> CheckResult {
    let served = fact_ref(&fact_ref(&facts.api_server)?.served)?;
    Ok(if served.contains(LINK) {
        Outcome::ok("")
    } else {
        Outcome::fail(format!(
            "the API server does not serve {LINK}: the multicluster extension is not installed"
        ))
    })
}

pub(super) fn valid(facts: &Facts) -> CheckResult {
    let all = fact_ref(&facts.multicluster.links)?;
    let invalid = all.iter().filter_map(|known| {
        let problem = known.link.as_ref().err()?;
        let (namespace, name) = (&known.namespace, &known.name);
        Some(Finding::new(format!("Link {namespace}/{name}: {problem}")))
    });
    let detail = match all.len() {
        0 => "this cluster has no Link".to_owned(),
        number => count(number, "Link", "Links"),
    };
    Ok(Outcome::fail_if(invalid, detail))
}

/// Controllers follow the oldest one of several Links of a cluster.
pub(super) fn unique(facts: &Facts) -> CheckResult {
    let links = links(facts)?;
    let mut by_cluster: BTreeMap<&str, Vec<(&LinkFacts, &Link)>> = BTreeMap::new();
    for &(known, link) in &links {
        let cluster = link.spec.target_cluster_name.as_str();
        by_cluster.entry(cluster).or_default().push((known, link));
    }
    let mut findings = Vec::new();
    for (cluster, mut of_cluster) in by_cluster {
        of_cluster.sort_by(|one, other| age(one).cmp(&age(other)));
        let Some((oldest, others)) = of_cluster.split_first() else {
            continue;
        };
        let oldest = format!("{}/{}", oldest.0.namespace, oldest.0.name);
        for (known, _) in others {
            let (namespace, name) = (&known.namespace, &known.name);
            let text = format!(
                "Link {namespace}/{name} has the targetClusterName {cluster} of Link {oldest}, which is older: only that one is in effect"
            );
            let delete = format!("kubectl -n {namespace} delete link {name}");
            findings.push(Finding::new(text).with_fix(delete));
        }
    }
    Ok(Outcome::fail_if(findings, checked(&links)))
}

/// Returns the order of Links: by age, and by name if they were created together.
fn age<'a>((known, link): &(&'a LinkFacts, &'a Link)) -> (Option<Timestamp>, &'a str, &'a str) {
    let created = link.metadata.creation_timestamp.as_ref();
    let created = created.map(|time| time.0);
    (created, &known.namespace, &known.name)
}

pub(super) fn version(facts: &Facts) -> CheckResult {
    let links = links(facts)?;
    let other = links.iter().filter_map(|(known, link)| {
        let created_by = link.annotations().get(CREATED_BY)?;
        let version = created_by.strip_prefix(PROGRAM)?.strip_prefix(' ')?;
        (version != facts.cli_version).then(|| {
            Finding::new(format!(
                "Link {}/{} is of version {version}, this command {}",
                known.namespace, known.name, facts.cli_version
            ))
        })
    });
    let unknown = links.iter().filter_map(|(known, link)| {
        let created_by = link.annotations().get(CREATED_BY);
        let prefix = format!("{PROGRAM} ");
        let is_known = created_by.is_some_and(|created_by| created_by.starts_with(&prefix));
        (!is_known).then(|| {
            Finding::new(format!(
                "Link {}/{} does not say in annotation {CREATED_BY} which version generated it",
                known.namespace, known.name
            ))
        })
    });
    Ok(Outcome::warn_if(other.chain(unknown), checked(&links)))
}

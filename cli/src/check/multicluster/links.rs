//! The Links themselves.

use mesh_core::annotation::CREATED_BY;
use mesh_k8s::kinds::ResourceExt;

use super::{checked, links};
use crate::check::framework::{CheckResult, Finding, Outcome};
use crate::facts::{Facts, fact_ref};
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

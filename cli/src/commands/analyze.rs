//! `meshctl analyze`: finds objects without effect and contradictions, in files or in a mesh. The
//! rules are in [`crate::analyze`].

use std::path::PathBuf;

use serde::Serialize;
use serde_json::to_value;

use crate::analyze::kinds::{POLICIES, REFERENTS, WORKLOADS};
use crate::analyze::{Finding, Objects, analyze};
use crate::commands::multicluster::bundles;
use crate::exit::Failure;
use crate::global::Global;
use crate::mesh::Mesh;
use crate::output::table::Table;
use crate::output::{self, Format, count, manifests};
use crate::resource::Scope;

#[derive(Debug, clap::Args)]
#[command(after_help = HELP)]
pub(crate) struct Args {
    /// Manifests to analyze: files, directories, or - for standard input. Without them the objects
    /// of the cluster or the local node are analyzed
    #[arg(value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Analyze the manifests together with the objects of the cluster or the local node, as if they
    /// had been applied; only findings about objects of the manifests are printed
    #[arg(long, requires = "files")]
    with_mesh: bool,
    #[arg(short, long, value_enum, default_value_t = Format::Table)]
    output: Format,
}

const HELP: &str = "\
Finds Servers, routes, ServiceProfiles and policies that select nothing, attach nowhere, never match,
overlap or contradict each other, references to what does not exist, and annotations that are misspelled or have no effect
where they are. Exits with 1 if there are findings.

Examples:
  meshctl analyze -A
  meshctl analyze manifests/ --with-mesh
  helm template ./chart | meshctl analyze -";

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Report {
    objects: usize,
    findings: Vec<Finding>,
    /// The namespace that `findings` are about; absent for all.
    #[serde(skip_serializing_if = "Option::is_none")]
    namespace: Option<String>,
    /// The number of findings about other namespaces.
    elsewhere: usize,
}

pub(crate) async fn run(args: &Args, global: &Global) -> anyhow::Result<()> {
    let documents = manifests::read(&args.files)?;
    let own: Objects = documents.iter().cloned().collect();
    let mut scope = Scope::All;
    let (objects, mut findings) = if args.files.is_empty() || args.with_mesh {
        let mesh = Mesh::find(global).await?;
        let mut objects = Box::pin(read(&mesh)).await?;
        objects.extend(documents);
        let mut findings = analyze(&objects);
        if args.with_mesh {
            findings
                .retain(|finding| own.contains(&finding.kind, &finding.namespace, &finding.name));
        } else {
            scope = mesh.scope(global);
        }
        (objects, findings)
    } else {
        let findings = analyze(&own);
        (own, findings)
    };
    if let Some(namespace) = &global.namespace {
        scope = Scope::Namespace(namespace.clone());
    }
    let total = findings.len();
    findings.retain(|finding| finding.namespace.is_empty() || scope.contains(&finding.namespace));
    let report = Report {
        objects: objects.len(),
        elsewhere: total - findings.len(),
        findings,
        namespace: scope.namespace().map(str::to_owned),
    };
    match args.output {
        Format::Json => output::json("Analysis", &report)?,
        Format::Table => print(&report)?,
    }
    if report.findings.is_empty() {
        Ok(())
    } else {
        Err(Failure::NegativeResult.into())
    }
}

fn print(report: &Report) -> anyhow::Result<()> {
    if report.findings.is_empty() {
        return output::line(&report.summary());
    }
    let mut table = Table::default().left("OBJECT FIELD PROBLEM FIX");
    for finding in &report.findings {
        table.row(vec![
            finding.object(),
            finding.field.clone(),
            finding.problem.clone(),
            finding.fix.clone(),
        ]);
    }
    output::text(&table.render())?;
    output::note(&report.summary());
    Ok(())
}

impl Report {
    /// Returns the numbers of objects and findings.
    fn summary(&self) -> String {
        let findings = |number: usize| match number {
            0 => "no findings".to_owned(),
            number => count(number, "finding", "findings"),
        };
        let mut text = format!(
            "{} analyzed, {}",
            count(self.objects, "object", "objects"),
            findings(self.findings.len())
        );
        if let Some(namespace) = &self.namespace {
            text += &format!(" in namespace {namespace}");
            if self.elsewhere > 0 {
                text += &format!(
                    ", {} in other namespaces (-A shows them)",
                    findings(self.elsewhere)
                );
            }
        }
        text
    }
}

async fn read(mesh: &Mesh) -> anyhow::Result<Objects> {
    match mesh {
        Mesh::Local(node) => {
            // The manifests, and the objects that the node wrote for them.
            let directories = [node.manifests()?, node.paths.objects()];
            Ok(manifests::read(&directories)?.into_iter().collect())
        }
        Mesh::Cluster(cluster) => {
            let kinds = REFERENTS.into_iter().chain(WORKLOADS).chain(POLICIES);
            let read = cluster.list_json(kinds).await?;
            let mut objects: Objects = read.items.into_iter().collect();
            objects.set_unserved(read.unserved);
            // Without them, pods have the chart's defaults, and domains are not compared.
            if let Ok(values) = cluster.values().await {
                objects.set_values(values);
            }
            match bundles::list(cluster).await {
                Ok(trusted) => objects.extend(trusted.iter().filter_map(|it| to_value(it).ok())),
                Err(error) => {
                    output::note(&format!(
                        "identities of other trust domains are not checked: {error:#}"
                    ));
                    objects.set_trust_unknown();
                }
            }
            Ok(objects)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn summary_says_what_was_reported_on() {
        let report = |namespace: Option<&str>, elsewhere| Report {
            objects: 168,
            findings: Vec::new(),
            namespace: namespace.map(str::to_owned),
            elsewhere,
        };
        for (report, expect) in [
            (report(None, 0), "168 objects analyzed, no findings"),
            (
                report(Some("shop"), 0),
                "168 objects analyzed, no findings in namespace shop",
            ),
            (
                report(Some("shop"), 2),
                "168 objects analyzed, no findings in namespace shop, 2 findings in other namespaces (-A shows them)",
            ),
        ] {
            assert_eq!(report.summary(), expect);
        }
    }
}

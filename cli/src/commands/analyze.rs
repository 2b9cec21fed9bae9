//! `meshctl analyze`: finds objects without effect and contradictions, in files or in a mesh. The
//! rules are in [`crate::analyze`].

use std::path::PathBuf;

use kube::Api;
use kube::api::{ApiResource, DynamicObject, ListParams};
use kube::core::GroupVersionKind;
use serde::Serialize;
use serde_json::Value;

use crate::analyze::{Finding, Objects, analyze};
use crate::cluster::{Cluster, error};
use crate::exit::Failure;
use crate::global::Global;
use crate::mesh::Mesh;
use crate::node::Node;
use crate::output::table::Table;
use crate::output::{self, Format, manifests};

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

/// The kinds that are read from a cluster, with the versions that the mesh reads, the preferred one
/// first.
const KINDS: [(&str, &[&str], &str); 23] = [
    ("", &["v1"], "Namespace"),
    ("", &["v1"], "Pod"),
    ("", &["v1"], "Service"),
    ("apps", &["v1"], "Deployment"),
    ("apps", &["v1"], "StatefulSet"),
    ("apps", &["v1"], "DaemonSet"),
    ("apps", &["v1"], "ReplicaSet"),
    ("batch", &["v1"], "Job"),
    ("batch", &["v1"], "CronJob"),
    (
        "policy.linkerd.io",
        &["v1beta3", "v1beta2", "v1beta1"],
        "Server",
    ),
    ("policy.linkerd.io", &["v1beta1"], "ServerAuthorization"),
    ("policy.linkerd.io", &["v1alpha1"], "AuthorizationPolicy"),
    ("policy.linkerd.io", &["v1alpha1"], "MeshTLSAuthentication"),
    ("policy.linkerd.io", &["v1alpha1"], "NetworkAuthentication"),
    (
        "policy.linkerd.io",
        &["v1alpha1"],
        "HTTPLocalRateLimitPolicy",
    ),
    ("policy.linkerd.io", &["v1alpha1"], "EgressNetwork"),
    ("linkerd.io", &["v1alpha2", "v1alpha1"], "ServiceProfile"),
    (
        "workload.linkerd.io",
        &["v1beta1", "v1alpha1"],
        "ExternalWorkload",
    ),
    (
        "policy.linkerd.io",
        &["v1beta3", "v1beta2", "v1beta1"],
        "HTTPRoute",
    ),
    ("gateway.networking.k8s.io", &["v1", "v1beta1"], "HTTPRoute"),
    (
        "gateway.networking.k8s.io",
        &["v1", "v1alpha2"],
        "GRPCRoute",
    ),
    (
        "gateway.networking.k8s.io",
        &["v1", "v1alpha3", "v1alpha2"],
        "TLSRoute",
    ),
    ("gateway.networking.k8s.io", &["v1", "v1alpha2"], "TCPRoute"),
];

/// The objects of one response.
const PAGE: u32 = 500;

#[derive(Serialize)]
struct Report {
    objects: usize,
    findings: Vec<Finding>,
}

pub(crate) async fn run(args: &Args, global: &Global) -> anyhow::Result<()> {
    let documents = manifests::read(&args.files)?;
    let mut own = Objects::default();
    documents
        .iter()
        .for_each(|document| own.add(document.clone()));
    let (objects, mut findings) = if args.files.is_empty() || args.with_mesh {
        let mesh = Mesh::find(global).await?;
        let mut objects = read(&mesh).await?;
        documents
            .into_iter()
            .for_each(|document| objects.add(document));
        let scope = mesh.scope(global);
        let mut findings = analyze(&objects);
        findings.retain(|finding| {
            if args.with_mesh {
                return own.contains(&finding.kind, &finding.namespace, &finding.name);
            }
            finding.namespace.is_empty() || scope.contains(&finding.namespace)
        });
        (objects, findings)
    } else {
        let findings = analyze(&own);
        (own, findings)
    };
    if let Some(namespace) = &global.namespace {
        findings.retain(|finding| finding.namespace == *namespace);
    }
    let report = Report {
        objects: objects.len(),
        findings,
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
    let objects = report.objects;
    if report.findings.is_empty() {
        return output::line(&format!("{objects} objects analyzed, no findings"));
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
    let findings = match report.findings.len() {
        1 => "1 finding".to_owned(),
        number => format!("{number} findings"),
    };
    output::note(&format!("{objects} objects analyzed, {findings}"));
    Ok(())
}

async fn read(mesh: &Mesh) -> anyhow::Result<Objects> {
    let mut objects = Objects::default();
    match mesh {
        Mesh::Local(node) => read_node(node, &mut objects)?,
        Mesh::Cluster(cluster) => {
            for (group, versions, kind) in KINDS {
                read_kind(cluster, group, versions, kind, &mut objects).await?;
            }
        }
    }
    Ok(objects)
}

/// Reads the directory of the node's manifests, and the objects that the node wrote for them.
fn read_node(node: &Node, objects: &mut Objects) -> anyhow::Result<()> {
    let directories = [node.manifests()?, node.paths.objects()];
    for document in manifests::read(&directories)? {
        objects.add(document);
    }
    Ok(())
}

/// Reads the objects of the first version that is served.
async fn read_kind(
    cluster: &Cluster,
    group: &str,
    versions: &[&str],
    kind: &str,
    objects: &mut Objects,
) -> anyhow::Result<()> {
    for version in versions {
        let named = GroupVersionKind::gvk(group, version, kind);
        let resource = ApiResource::from_gvk(&named);
        let api: Api<DynamicObject> = Api::all_with(cluster.client.clone(), &resource);
        let mut params = ListParams::default().limit(PAGE);
        loop {
            let page = match api.list(&params).await {
                Ok(page) => page,
                Err(error) if error::is_missing(&error) => break,
                Err(error) => {
                    let what = format!("list the objects of kind {kind}");
                    return Err(error::failed(&what, error));
                }
            };
            for object in page.items {
                let mut json = serde_json::to_value(object)?;
                // Items of a list have no type.
                json["apiVersion"] = Value::from(resource.api_version.clone());
                json["kind"] = Value::from(kind);
                objects.add(json);
            }
            match page.metadata.continue_ {
                Some(next) if !next.is_empty() => params = params.continue_token(&next),
                _ => return Ok(()),
            }
        }
    }
    Ok(())
}

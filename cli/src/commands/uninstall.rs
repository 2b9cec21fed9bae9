//! `meshctl uninstall`: prints the objects of the mesh in the order of their deletion.

use anyhow::bail;
use kube::api::ListParams;
use mesh_k8s::kinds::Pod;

use crate::cluster::{Cluster, error};
use crate::commands::multicluster::bundles;
use crate::exit::Failure;
use crate::global::Global;
use crate::install::{inventory, manifest, preflight};
use crate::output;
use crate::output::manifests::ManifestFormat;
use crate::resource::Scope;

const EXAMPLES: &str = "\
Examples:
  meshctl uninstall | kubectl delete -f -
  meshctl uninstall --crds | kubectl delete -f -    include the custom resource definitions, and with them all policies

To remove a mesh that Helm installed, use `helm uninstall`.";

/// Print all objects of the mesh, for deletion
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Print the objects even if pods still have proxies, which can then neither restart nor renew
    /// their certificates
    #[arg(short, long)]
    force: bool,
    /// Include the custom resource definitions; deleting them deletes all policies of the cluster
    #[arg(long)]
    crds: bool,
    #[arg(short, long, value_enum, default_value_t = ManifestFormat::Yaml)]
    output: ManifestFormat,
}

/// Maximum number of pods that the warning lists.
const MAX_LISTED: usize = 10;

pub(crate) async fn run(args: &Args, global: &Global) -> anyhow::Result<()> {
    let cluster = Cluster::connect(global).await?;
    if !args.force && preflight::is_installed_by_helm(&cluster).await? {
        bail!(
            "namespace {} has a mesh that Helm installed: use `helm uninstall`, or --force to print its objects anyway",
            cluster.control_namespace
        );
    }
    let meshed = meshed_pods(&cluster).await?;
    if !meshed.is_empty() {
        let listed = meshed
            .iter()
            .take(MAX_LISTED)
            .cloned()
            .collect::<Vec<_>>()
            .join("\n  ");
        let warning = format!(
            "pods with a proxy of this mesh: {}\n  {listed}\nRemove the annotation linkerd.io/inject and restart their workloads first",
            meshed.len()
        );
        if !args.force {
            bail!("{warning}, or use --force");
        }
        output::note(&format!("warning: {warning}"));
    }
    let objects = inventory::list_objects(&cluster).await?;
    // First, because they are in the namespace that is deleted last.
    let mut manifests = bundles::for_deletion(&cluster).await?;
    manifests.extend(inventory::for_deletion(objects, args.crds));
    if manifests.is_empty() {
        let namespace = &cluster.control_namespace;
        return Err(Failure::Input(format!(
            "namespace {namespace} has no mesh; -L selects another namespace"
        ))
        .into());
    }
    manifest::print(&manifests, args.output)
}

/// Returns the pods with a proxy of this mesh, as namespace/name, without the control plane's pods.
async fn meshed_pods(cluster: &Cluster) -> anyhow::Result<Vec<String>> {
    let selector = format!(
        "{}={},!{}",
        mesh_core::annotation::CONTROL_PLANE_NS,
        cluster.control_namespace,
        mesh_core::annotation::CONTROL_PLANE_COMPONENT
    );
    let pods: Vec<Pod> = cluster
        .list(&Scope::All, ListParams::default().labels(&selector))
        .await
        .map_err(|error| error::failed("list the pods", error))?;
    let name = |pod: &Pod| {
        let metadata = &pod.metadata;
        Some(format!(
            "{}/{}",
            metadata.namespace.as_deref()?,
            metadata.name.as_deref()?
        ))
    };
    Ok(pods.iter().filter_map(name).collect())
}

//! `meshctl uninstall`: what is to be deleted, in the order in which it is to be deleted.

use anyhow::bail;
use kube::api::ListParams;
use mesh_k8s::kinds::Pod;

use crate::{
    cluster::{Cluster, error},
    exit::Failure,
    global::Global,
    install::{inventory, manifest, preflight},
    mesh::Scope,
    output::{self, manifests::ManifestFormat},
};

const EXAMPLES: &str = "\
Examples:
  meshctl uninstall | kubectl delete -f -
  meshctl uninstall --crds | kubectl delete -f -    the custom resources too, and every policy with them

A mesh that Helm installed is taken away by `helm uninstall`.";

/// Print everything that belongs to the mesh, for deletion
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Even where pods have proxies, which will not be able to start anew or to renew their
    /// certificates
    #[arg(short, long)]
    force: bool,
    /// The custom resources too; with them every policy of the cluster is deleted
    #[arg(long)]
    crds: bool,
    #[arg(short, long, value_enum, default_value_t = ManifestFormat::Yaml)]
    output: ManifestFormat,
}

/// So many pods are named; the number says the rest.
const NAMED: usize = 10;

pub(crate) async fn run(args: &Args, global: &Global) -> anyhow::Result<()> {
    let cluster = Cluster::connect(global).await?;
    if !args.force && preflight::is_helms(&cluster).await? {
        bail!(
            "namespace {} has a mesh that Helm installed: use `helm uninstall` for it, or --force to print its objects all the same",
            cluster.control_namespace
        );
    }
    let meshed = meshed_pods(&cluster).await?;
    if !meshed.is_empty() {
        let listed = meshed
            .iter()
            .take(NAMED)
            .cloned()
            .collect::<Vec<_>>()
            .join("\n  ");
        let said = format!(
            "pods with a proxy of this mesh: {}\n  {listed}\nRemove the annotation linkerd.io/inject and restart their workloads first",
            meshed.len()
        );
        if !args.force {
            bail!("{said}, or use --force");
        }
        output::note(&format!("warning: {said}"));
    }
    let objects = inventory::take(&cluster).await?;
    let manifests: Vec<_> = inventory::for_deletion(objects, args.crds);
    if manifests.is_empty() {
        let namespace = &cluster.control_namespace;
        return Err(Failure::Input(format!(
            "there is no mesh in namespace {namespace}; -L chooses another namespace"
        ))
        .into());
    }
    manifest::print(&manifests, args.output)
}

/// The pods with a proxy of this mesh outside the control plane, as namespace/name.
async fn meshed_pods(cluster: &Cluster) -> anyhow::Result<Vec<String>> {
    let ours = format!(
        "{}={},!{}",
        mesh_core::annotation::CONTROL_PLANE_NS,
        cluster.control_namespace,
        mesh_core::annotation::CONTROL_PLANE_COMPONENT
    );
    let pods: Vec<Pod> = cluster
        .list(&Scope::All, ListParams::default().labels(&ours))
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

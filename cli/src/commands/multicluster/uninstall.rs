//! `meshctl multicluster uninstall`: prints the objects of the multicluster extension in the order
//! of their deletion.

use anyhow::bail;
use kube::Api;
use kube::api::{ApiResource, DynamicObject, GroupVersionKind, ListParams, PartialObjectMeta};
use mesh_core::annotation::MULTICLUSTER;
use mesh_k8s::kinds::ResourceExt as _;

use super::{bundles, cluster};
use crate::cluster::{Cluster, error};
use crate::exit::Failure;
use crate::global::Global;
use crate::install::{inventory, manifest, preflight};
use crate::output;
use crate::output::manifests::ManifestFormat;

const EXAMPLES: &str = "\
Example:
  meshctl multicluster uninstall | kubectl delete -f -

To remove an extension that Helm installed, use `helm uninstall`.";

/// Print all objects of the multicluster extension, for deletion
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    /// Print the objects even if there are Links, which are deleted with their definition while
    /// their mirrors stay, or if Helm installed the extension
    #[arg(short, long)]
    force: bool,
    #[arg(short, long, value_enum, default_value_t = ManifestFormat::Yaml)]
    output: ManifestFormat,
}

/// The number of Links that a message names.
const MAX_NAMED: usize = 5;

pub(super) async fn run(args: &Args, namespace: &str, global: &Global) -> anyhow::Result<()> {
    let cluster = cluster(global).await?;
    if !args.force {
        ensure_removable(&cluster, namespace).await?;
    }
    let objects = inventory::list_extension(&cluster, MULTICLUSTER, namespace).await?;
    // There is no Link whose deletion with the definition would be a surprise.
    let manifests = inventory::for_deletion(objects, true);
    if manifests.is_empty() {
        let text = "no object of the cluster has the label linkerd.io/extension=multicluster: the multicluster extension is not installed";
        return Err(Failure::Input(text.to_owned()).into());
    }
    for note in bundles::notes(&cluster).await? {
        output::note(&note);
    }
    manifest::print(&manifests, args.output)
}

/// Refuses to remove what has been installed by Helm, and the service mirrors of Links: without
/// them nothing removes the mirrors.
async fn ensure_removable(cluster: &Cluster, namespace: &str) -> anyhow::Result<()> {
    if preflight::is_helm_release(cluster, namespace, "linkerd-multicluster").await? {
        bail!(
            "namespace {namespace} has an extension that Helm installed: use `helm uninstall`, or --force to print its objects anyway"
        );
    }
    let mut names = links(cluster).await?;
    if names.is_empty() {
        return Ok(());
    }
    if names.len() > MAX_NAMED {
        let others = names.split_off(MAX_NAMED).len();
        names.push(format!("and {others} others"));
    }
    bail!(
        "clusters are linked ({}), and nothing would remove their mirrors: delete the Links first, as with `kubectl delete link`, and wait until no Service has the label mirror.linkerd.io/mirrored-service; or use --force",
        names.join(", ")
    )
}

/// Returns the Links as namespace/name, also those of a definition of an earlier Linkerd.
async fn links(cluster: &Cluster) -> anyhow::Result<Vec<String>> {
    for version in ["v1alpha3", "v1alpha2", "v1alpha1"] {
        let kind = GroupVersionKind::gvk("multicluster.linkerd.io", version, "Link");
        let resource = ApiResource::from_gvk(&kind);
        let api: Api<DynamicObject> = Api::all_with(cluster.client.clone(), &resource);
        let found = match api.list_metadata(&ListParams::default()).await {
            Err(error) if error::is_missing(&error) => continue,
            found => found.map_err(|error| error::failed("list the Links", error))?,
        };
        let name = |link: &PartialObjectMeta<DynamicObject>| {
            let namespace = link.namespace().unwrap_or_default();
            format!("{namespace}/{}", link.name_any())
        };
        return Ok(found.iter().map(name).collect());
    }
    Ok(Vec::new())
}

#[cfg(test)]
mod tests {
    use kube::Client;
    use mesh_test_support::kube_api::ScriptedApi;
    use serde_json::json;

    use super::*;

    const LINKS: &str = "/apis/multicluster.linkerd.io/v1alpha2/links";

    async fn refusal(api: &ScriptedApi) -> Option<String> {
        let cluster = Cluster::played(Client::new(api.service("meshctl"), "default"));
        let removable = ensure_removable(&cluster, "linkerd-multicluster").await;
        removable.err().map(|error| error.to_string())
    }

    #[tokio::test]
    async fn extension_with_links_is_not_removed() {
        let api = ScriptedApi::default();
        api.put(
            "/api/v1/namespaces/linkerd-multicluster/secrets",
            json!({ "kind": "SecretList", "apiVersion": "v1", "metadata": {}, "items": [] }),
        );
        // Without the definition there are no Links.
        assert_eq!(refusal(&api).await, None);
        let list = |count: usize| {
            let link = |number: usize| {
                json!({
                    "apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata",
                    "metadata": { "name": format!("c{number}"), "namespace": "mc" },
                })
            };
            let items: Vec<_> = (0..count).map(link).collect();
            json!({ "kind": "PartialObjectMetadataList", "apiVersion": "meta.k8s.io/v1", "metadata": {}, "items": items })
        };
        api.put(LINKS, list(0));
        assert_eq!(refusal(&api).await, None);
        api.put(LINKS, list(1));
        let one = refusal(&api).await.unwrap();
        assert!(
            one.contains("(mc/c0)") && one.contains("kubectl delete link"),
            "{one}"
        );
        api.put(LINKS, list(MAX_NAMED + 2));
        let many = refusal(&api).await.unwrap();
        assert!(many.contains("mc/c4, and 2 others)"), "{many}");
    }
}

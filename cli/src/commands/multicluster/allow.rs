//! `meshctl multicluster allow`: prints a further ServiceAccount with the permissions of mirror
//! controllers, so that each cluster that links to this one can have credentials of its own.

use anyhow::bail;
use kube::Api;
use mesh_core::identity::is_dns_label;
use mesh_k8s::kinds::ServiceAccount;

use super::cluster;
use crate::cluster::{Cluster, error};
use crate::exit::Failure;
use crate::global::Global;
use crate::install::flags::{HelmFlags, Overlay};
use crate::install::manifest::{self, Manifest};
use crate::install::{Chart, LayeredValues, render_chart};
use crate::output::manifests::ManifestFormat;

const HELP: &str = "\
Example:
  meshctl multicluster allow --service-account-name west | kubectl apply -f -
  meshctl multicluster link-gen --cluster-name east --service-account-name west

The program helm renders the objects of the chart linkerd-multicluster.";

/// Print the objects that let the mirror controllers of other clusters read this cluster
#[derive(Debug, clap::Args)]
#[command(after_help = HELP)]
pub(super) struct Args {
    /// Name of the ServiceAccount, its ClusterRole and its ClusterRoleBinding
    #[arg(long, value_name = "NAME")]
    service_account_name: String,
    /// Do not check whether the ServiceAccount exists already
    #[arg(long)]
    ignore_cluster: bool,
    #[arg(short, long, value_enum, default_value_t = ManifestFormat::Yaml)]
    output: ManifestFormat,
}

pub(super) async fn run(args: &Args, namespace: &str, global: &Global) -> anyhow::Result<()> {
    let name = &args.service_account_name;
    if !is_name(name) {
        bail!(Failure::Input(format!(
            "--service-account-name: {name:?} is not a name of Kubernetes: lower-case letters, digits, hyphens and dots"
        )));
    }
    if !args.ignore_cluster {
        ensure_new(&cluster(global).await?, namespace, name).await?;
    }
    manifest::print(&render(namespace, name)?, args.output)
}

/// The Secret with the token has the name of the account and this suffix.
const TOKEN_SUFFIX: &str = "-token";

fn is_name(name: &str) -> bool {
    name.len() <= 253 - TOKEN_SUFFIX.len() && name.split('.').all(is_dns_label)
}

/// Refuses a ServiceAccount that exists. `kubectl apply` would change its permissions.
async fn ensure_new(cluster: &Cluster, namespace: &str, name: &str) -> anyhow::Result<()> {
    let accounts: Api<ServiceAccount> = Api::namespaced(cluster.client.clone(), namespace);
    let what = format!("read ServiceAccount {namespace}/{name}");
    let found = accounts.get_metadata_opt(name).await;
    if found
        .map_err(|error| error::failed(&what, error))?
        .is_some()
    {
        bail!(
            "namespace {namespace} already has a ServiceAccount {name}: choose another name, or --ignore-cluster to print it anyway"
        );
    }
    Ok(())
}

/// Returns the ServiceAccount, its token, and its permissions, which the chart decides.
fn render(namespace: &str, name: &str) -> anyhow::Result<Vec<Manifest>> {
    let mut above = Overlay::default();
    above.set("remoteMirrorServiceAccount", Some(true));
    above.set("remoteMirrorServiceAccountName", Some(name));
    let values = LayeredValues {
        below: Vec::new(),
        high_availability: false,
        helm: &HelmFlags::default(),
        above: &above.into_value().unwrap_or_default(),
    };
    let mut manifests = render_chart(Chart::Multicluster, namespace, None, &values)?;
    let token = format!("{name}{TOKEN_SUFFIX}");
    manifests.retain(|manifest| {
        let object = manifest.name();
        match object.kind.as_str() {
            "Secret" => object.name == token,
            "ServiceAccount" | "ClusterRole" | "ClusterRoleBinding" => object.name == name,
            _ => false,
        }
    });
    Ok(manifests)
}

#[cfg(test)]
mod tests {
    use mesh_k8s::kinds::{ClusterRole, ClusterRoleBinding, Secret};
    use mesh_test_support::kube_api::ScriptedApi;
    use serde_json::json;

    use super::*;
    use crate::commands::multicluster::tests::{cluster_of, helm_is_available};

    #[test]
    fn objects_of_the_account_refer_to_each_other() {
        if !helm_is_available("objects_of_the_account_refer_to_each_other") {
            return;
        }
        let objects = render("mc", "west").unwrap();
        let objects = objects.into_iter().map(|manifest| manifest.object);
        let objects: Vec<_> = objects.collect();
        let [account, secret, role, binding] = objects.try_into().unwrap();
        let account: ServiceAccount = serde_json::from_value(account).unwrap();
        assert_eq!(account.metadata.namespace.as_deref(), Some("mc"));
        let secret: Secret = serde_json::from_value(secret).unwrap();
        let annotations = secret.metadata.annotations.unwrap();
        assert_eq!(annotations["kubernetes.io/service-account.name"], "west");
        let role: ClusterRole = serde_json::from_value(role).unwrap();
        let binding: ClusterRoleBinding = serde_json::from_value(binding).unwrap();
        assert_eq!(Some(binding.role_ref.name), role.metadata.name);
        let subject = &binding.subjects.unwrap()[0];
        assert_eq!(subject.namespace.as_deref(), Some("mc"));
        assert_eq!(Some(&subject.name), account.metadata.name.as_ref());
        // Mirror controllers of other clusters read, and write only events.
        for rule in role.rules.unwrap() {
            let resources = rule.resources.unwrap_or_default();
            assert!(!resources.iter().any(|one| one == "secrets" || one == "*"));
            let reads = |verb: &String| ["get", "list", "watch"].contains(&verb.as_str());
            assert!(
                resources == ["events"] || rule.verbs.iter().all(reads),
                "{resources:?}"
            );
        }
    }

    #[tokio::test]
    async fn account_that_exists_is_refused() {
        let api = ScriptedApi::default();
        assert!(ensure_new(&cluster_of(&api), "mc", "west").await.is_ok());
        let account = json!({ "metadata": { "name": "west" } });
        api.put("/api/v1/namespaces/mc/serviceaccounts/west", account);
        let error = ensure_new(&cluster_of(&api), "mc", "west")
            .await
            .unwrap_err();
        let error = error.to_string();
        assert!(
            error.starts_with("namespace mc already has a ServiceAccount west"),
            "{error}"
        );
    }

    #[test]
    fn names_are_names_of_kubernetes() {
        assert!(is_name("west") && is_name("west.example-1"));
        let long = "a".repeat(64);
        for bad in ["", "West", "a_b", "-a", "a..b", "a/b", &long] {
            assert!(!is_name(bad), "{bad}");
        }
        let longest = [
            "a".repeat(63),
            "b".repeat(63),
            "c".repeat(63),
            "d".repeat(55),
        ]
        .join(".");
        assert_eq!(longest.len(), 247);
        assert!(is_name(&longest) && !is_name(&format!("{longest}e")));
    }
}

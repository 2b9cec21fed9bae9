//! `meshctl multicluster unlink`: prints the objects of a link that `meshctl multicluster link`
//! printed, as far as the cluster has them.

use anyhow::bail;
use kube::Api;
use kube::api::{ApiResource, DynamicObject, GroupVersionKind, ListParams};
use mesh_core::annotation::{CLUSTER_NAME, MIRRORED_CLUSTER, MIRRORED_SERVICE};
use mesh_k8s::foreign_domain::{ForeignDomain, LinkName, config_map_name};
use mesh_k8s::kinds::{ConfigMap, Deployment, ObjectMeta, Secret, Service};
use serde_json::{Value, json};

use super::names::credentials_name;
use super::{cluster, namespace};
use crate::cluster::mirrors::lease_name;
use crate::cluster::{Cluster, Namespaced, error};
use crate::exit::Failure;
use crate::global::Global;
use crate::output;
use crate::output::manifests::{self, ManifestFormat};

const HELP: &str = "\
Deprecated: `meshctl multicluster link-gen` prints no controller, and controllers are values of the
chart linkerd-multicluster.

Examples:
  meshctl multicluster unlink --cluster-name east | kubectl delete -f -
  meshctl multicluster unlink --cluster-name east --only-controller | kubectl delete -f -
      before a controller of the chart replaces the one of the link";

/// Print the objects of a link, for deletion (deprecated)
#[derive(Debug, clap::Args)]
#[command(after_help = HELP)]
pub(super) struct Args {
    /// Name of the cluster that is linked
    #[arg(long, value_name = "NAME")]
    cluster_name: String,
    /// Print only the controller and its permissions; the Link, its credentials and mirrors stay
    #[arg(long)]
    only_controller: bool,
    #[arg(short, long, value_enum, default_value_t = ManifestFormat::Yaml)]
    output: ManifestFormat,
}

pub(super) async fn run(args: &Args, global: &Global) -> anyhow::Result<()> {
    output::note(
        "unlink is deprecated: it deletes links of `meshctl multicluster link`. Without a controller of its own, delete a Link and its Secrets with kubectl",
    );
    let (cluster, namespace) = (cluster(global).await?, namespace(global));
    let objects = objects(&cluster, namespace, args).await?;
    output::text(&manifests::render(&objects, args.output)?)
}

/// An object that `link` prints.
struct Part {
    group: &'static str,
    version: &'static str,
    kind: &'static str,
    name: String,
    namespace: Option<String>,
}

impl Part {
    async fn exists(&self, cluster: &Cluster) -> anyhow::Result<bool> {
        let Self {
            group,
            version,
            kind,
            name,
            namespace,
        } = self;
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
        let client = cluster.client.clone();
        let api: Api<DynamicObject> = match namespace {
            Some(namespace) => Api::namespaced_with(client, namespace, &resource),
            None => Api::all_with(client, &resource),
        };
        let found = api.get_metadata_opt(name).await;
        let found = found.map_err(|error| error::failed(&format!("read {kind} {name}"), error))?;
        Ok(found.is_some())
    }

    fn manifest(&self) -> Value {
        let api_version = match self.group {
            "" => self.version.to_owned(),
            group => format!("{group}/{}", self.version),
        };
        let mut metadata = json!({ "name": self.name });
        if let Some(namespace) = &self.namespace {
            metadata["namespace"] = json!(namespace);
        }
        json!({ "apiVersion": api_version, "kind": self.kind, "metadata": metadata })
    }
}

/// Returns the objects in the order of their deletion: the controller first, since it would write
/// mirrors again, and its permissions last.
async fn objects(cluster: &Cluster, namespace: &str, args: &Args) -> anyhow::Result<Vec<Value>> {
    let name = &args.cluster_name;
    let of_namespace = |group, version, kind, name: String| Part {
        group,
        version,
        kind,
        name,
        namespace: Some(namespace.to_owned()),
    };
    let rbac = "rbac.authorization.k8s.io";
    let of_cluster = |kind| Part {
        group: rbac,
        version: "v1",
        kind,
        name: format!("linkerd-service-mirror-access-local-resources-{name}"),
        namespace: None,
    };
    let controller = format!("linkerd-service-mirror-{name}");
    let mut parts = vec![of_namespace("apps", "v1", "Deployment", controller.clone())];
    if !args.only_controller {
        let link = "multicluster.linkerd.io";
        parts.push(of_namespace(link, "v1alpha3", "Link", name.clone()));
        parts.push(of_namespace("", "v1", "Secret", credentials_name(name)));
        let lease = "coordination.k8s.io";
        parts.push(of_namespace(lease, "v1", "Lease", lease_name(name)));
    }
    let probe = format!("probe-gateway-{name}");
    parts.push(of_namespace("", "v1", "Service", probe));
    let credentials = format!("linkerd-service-mirror-read-remote-creds-{name}");
    parts.push(of_namespace(rbac, "v1", "RoleBinding", credentials.clone()));
    parts.push(of_namespace(rbac, "v1", "Role", credentials));
    parts.extend(["ClusterRoleBinding", "ClusterRole"].map(of_cluster));
    parts.push(of_namespace("", "v1", "ServiceAccount", controller));

    let mut found = Vec::new();
    for part in &parts {
        if part.exists(cluster).await? {
            found.push(part.manifest());
        }
    }
    if !args.only_controller {
        found.extend(labelled(cluster, name).await?);
        found.extend(trust_bundle(cluster, namespace, name).await?);
        note_controller_of_chart(cluster, namespace, name).await?;
    }
    if found.is_empty() {
        let what = if args.only_controller {
            "controller of a link"
        } else {
            "Link"
        };
        bail!(Failure::Input(format!(
            "namespace {namespace} has no {what} to cluster {name}: `kubectl get links -A` lists the links"
        )));
    }
    Ok(found)
}

/// Returns the mirrors of a cluster, and the credentials of the destination controller.
async fn labelled(cluster: &Cluster, name: &str) -> anyhow::Result<Vec<Value>> {
    let mirrors = format!("{MIRRORED_SERVICE}=true,{MIRRORED_CLUSTER}={name}");
    let mirrors: Vec<ObjectMeta> = list::<Service>(cluster, None, &mirrors).await?;
    let control = Some(&*cluster.control_namespace);
    let secrets = list::<Secret>(cluster, control, &format!("{CLUSTER_NAME}={name}")).await?;
    let manifests = |kind: &'static str, objects: Vec<ObjectMeta>| {
        objects.into_iter().map(move |meta| Part {
            group: "",
            version: "v1",
            kind,
            name: meta.name.unwrap_or_default(),
            namespace: meta.namespace,
        })
    };
    let parts = manifests("Service", mirrors).chain(manifests("Secret", secrets));
    Ok(parts.map(|part| part.manifest()).collect())
}

/// Returns the trust bundle whose trust ends with the Link. Another one is for clients of that
/// cluster, which has a Link to this one.
async fn trust_bundle(
    cluster: &Cluster,
    namespace: &str,
    name: &str,
) -> anyhow::Result<Option<Value>> {
    let control = &cluster.control_namespace;
    let object = config_map_name(name);
    let found = cluster.control_object::<ConfigMap>(&object).await;
    let what = format!("read ConfigMap {control}/{object}");
    let Some(found) = found.map_err(|error| error::failed(&what, error))? else {
        return Ok(None);
    };
    let link = LinkName {
        namespace: namespace.to_owned(),
        name: name.to_owned(),
    };
    let domain = ForeignDomain::read(&found).ok();
    if domain.and_then(|domain| domain.link).as_ref() != Some(&link) {
        output::note(&format!(
            "ConfigMap {control}/{object} stays, because its trust does not end with Link {link}: `kubectl -n {control} delete configmap {object}` ends it"
        ));
        return Ok(None);
    }
    let part = Part {
        group: "",
        version: "v1",
        kind: "ConfigMap",
        name: object,
        namespace: Some(control.clone()),
    };
    Ok(Some(part.manifest()))
}

async fn list<K: Namespaced>(
    cluster: &Cluster,
    namespace: Option<&str>,
    labels: &str,
) -> anyhow::Result<Vec<ObjectMeta>> {
    let api: Api<K> = match namespace {
        Some(namespace) => Api::namespaced(cluster.client.clone(), namespace),
        None => Api::all(cluster.client.clone()),
    };
    let found = api
        .list_metadata(&ListParams::default().labels(labels))
        .await;
    let what = format!("list {}", K::plural(&()));
    let found = found.map_err(|error| error::failed(&what, error))?;
    Ok(found.items.into_iter().map(|it| it.metadata).collect())
}

/// A controller of the chart would not end with its Link.
async fn note_controller_of_chart(
    cluster: &Cluster,
    namespace: &str,
    name: &str,
) -> anyhow::Result<()> {
    let deployments: Api<Deployment> = Api::namespaced(cluster.client.clone(), namespace);
    let controller = format!("controller-{name}");
    let found = deployments.get_metadata_opt(&controller).await;
    let what = format!("read Deployment {controller}");
    if found
        .map_err(|error| error::failed(&what, error))?
        .is_some()
    {
        output::note(&format!(
            "Deployment {controller} is of the chart linkerd-multicluster: remove the Link {name} from its value controllers, too"
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use mesh_k8s::foreign_domain::{BundleEndpoint, EndpointProfile};
    use mesh_test_support::kube_api::ScriptedApi;

    use super::*;
    use crate::commands::multicluster::tests::cluster_of;

    /// Returns a cluster with the objects of a link, and a mirror.
    fn linked() -> ScriptedApi {
        let api = ScriptedApi::default();
        let object = |name: &str| json!({ "metadata": { "name": name, "namespace": "mc" } });
        let rbac = "/apis/rbac.authorization.k8s.io/v1";
        let controller = "linkerd-service-mirror-east";
        for (path, name) in [
            (
                "/apis/apps/v1/namespaces/mc/deployments".to_owned(),
                controller,
            ),
            (
                "/api/v1/namespaces/mc/serviceaccounts".to_owned(),
                controller,
            ),
            (
                format!("{rbac}/clusterroles"),
                "linkerd-service-mirror-access-local-resources-east",
            ),
            (
                format!("{rbac}/namespaces/mc/roles"),
                "linkerd-service-mirror-read-remote-creds-east",
            ),
            (
                "/apis/multicluster.linkerd.io/v1alpha3/namespaces/mc/links".to_owned(),
                "east",
            ),
            (
                "/api/v1/namespaces/mc/secrets".to_owned(),
                "cluster-credentials-east",
            ),
        ] {
            api.put(&format!("{path}/{name}"), object(name));
        }
        api.put("/api/v1/services", list("ServiceList", "web-east", "shop"));
        let secrets = list("SecretList", "cluster-credentials-east", "linkerd");
        api.put("/api/v1/namespaces/linkerd/secrets", secrets);
        put_trust_bundle(&api, Some("mc"));
        api
    }

    /// Puts the trust bundle of cluster east. `namespace` has the Link that its trust ends with.
    fn put_trust_bundle(api: &ScriptedApi, namespace: Option<&str>) {
        let url = "https://192.0.2.1:8443/";
        let domain = ForeignDomain {
            cluster: "east".to_owned(),
            trust_domain: "east.example".to_owned(),
            endpoint: BundleEndpoint::from_url(url, EndpointProfile::Web(None)).unwrap(),
            bundle: None,
            link: namespace.map(|namespace| LinkName {
                namespace: namespace.to_owned(),
                name: "east".to_owned(),
            }),
        };
        let path = "/api/v1/namespaces/linkerd/configmaps/linkerd-trust-bundle-east";
        let object = domain.config_map("linkerd");
        api.put(path, serde_json::to_value(object).unwrap());
    }

    fn list(kind: &str, name: &str, namespace: &str) -> Value {
        let item = json!({ "metadata": { "name": name, "namespace": namespace } });
        json!({ "apiVersion": "v1", "kind": kind, "metadata": {}, "items": [item] })
    }

    async fn unlink(api: &ScriptedApi, only_controller: bool) -> anyhow::Result<Vec<String>> {
        let args = Args {
            cluster_name: "east".to_owned(),
            only_controller,
            output: ManifestFormat::Yaml,
        };
        let objects = objects(&cluster_of(api), "mc", &args).await?;
        let name = |object: &Value| {
            let text = |value: &Value| value.as_str().unwrap_or("-").to_owned();
            let (kind, metadata) = (text(&object["kind"]), &object["metadata"]);
            let (namespace, name) = (text(&metadata["namespace"]), text(&metadata["name"]));
            format!("{kind} {namespace}/{name}")
        };
        Ok(objects.iter().map(name).collect())
    }

    #[tokio::test]
    async fn objects_that_exist_are_printed_controller_first() {
        let expect = [
            "Deployment mc/linkerd-service-mirror-east",
            "Link mc/east",
            "Secret mc/cluster-credentials-east",
            "Role mc/linkerd-service-mirror-read-remote-creds-east",
            "ClusterRole -/linkerd-service-mirror-access-local-resources-east",
            "ServiceAccount mc/linkerd-service-mirror-east",
            "Service shop/web-east",
            "Secret linkerd/cluster-credentials-east",
            "ConfigMap linkerd/linkerd-trust-bundle-east",
        ];
        assert_eq!(unlink(&linked(), false).await.unwrap(), expect);
    }

    /// Clients of cluster east, which has a Link to this one, would not be accepted any longer.
    #[tokio::test]
    async fn trust_bundle_stays_if_its_trust_does_not_end_with_the_link() {
        let api = linked();
        for namespace in [None, Some("other")] {
            put_trust_bundle(&api, namespace);
            let printed = unlink(&api, false).await.unwrap();
            assert_eq!(
                printed.last().unwrap(),
                "Secret linkerd/cluster-credentials-east"
            );
        }
    }

    #[tokio::test]
    async fn link_and_mirrors_stay_without_the_controller() {
        let expect = [
            "Deployment mc/linkerd-service-mirror-east",
            "Role mc/linkerd-service-mirror-read-remote-creds-east",
            "ClusterRole -/linkerd-service-mirror-access-local-resources-east",
            "ServiceAccount mc/linkerd-service-mirror-east",
        ];
        assert_eq!(unlink(&linked(), true).await.unwrap(), expect);
    }

    #[tokio::test]
    async fn cluster_without_link_is_named() {
        let api = ScriptedApi::default();
        let none = json!({ "apiVersion": "v1", "kind": "List", "metadata": {}, "items": [] });
        api.put("/api/v1/services", none.clone());
        api.put("/api/v1/namespaces/linkerd/secrets", none);
        let error = unlink(&api, false).await.unwrap_err().to_string();
        assert!(
            error.starts_with("namespace mc has no Link to cluster east"),
            "{error}"
        );
    }
}

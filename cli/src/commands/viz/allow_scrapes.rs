//! `meshctl viz allow-scrapes`: prints the policy that lets Prometheus scrape the proxies of a
//! namespace whose default policy denies.

use serde_json::{Value, json};

use crate::global::Global;
use crate::output;
use crate::output::manifests::{self, ManifestFormat};

#[derive(Debug, clap::Args)]
#[command(after_help = HELP)]
pub(super) struct Args {
    #[arg(short, long, value_enum, default_value_t = ManifestFormat::Yaml)]
    output: ManifestFormat,
}

const HELP: &str = "\
Example:
  meshctl viz allow-scrapes -n shop | kubectl apply -f -";

/// The namespace of the extension without a flag. The command does not read the cluster.
const VIZ_NAMESPACE: &str = "linkerd-viz";

pub(super) fn run(args: &Args, viz_namespace: Option<&str>, global: &Global) -> anyhow::Result<()> {
    let documents = documents(
        global.namespace.as_deref(),
        viz_namespace.unwrap_or(VIZ_NAMESPACE),
    );
    output::text(&manifests::render(&documents, args.output)?)
}

/// Returns the objects: the Server of the admin port of all proxies, a route for its metrics and
/// one for its probes, and who may use them. Without a namespace, kubectl decides.
fn documents(namespace: Option<&str>, viz_namespace: &str) -> Vec<Value> {
    let object = |version: &str, kind: &str, name: &str, spec: Value| {
        let mut metadata = json!({"name": name, "labels": {"linkerd.io/extension": "viz"}});
        if let Some(namespace) = namespace {
            metadata["namespace"] = json!(namespace);
        }
        json!({
            "apiVersion": format!("policy.linkerd.io/{version}"),
            "kind": kind,
            "metadata": metadata,
            "spec": spec,
        })
    };
    let server = json!({
        "podSelector": {
            "matchExpressions": [{"key": "linkerd.io/control-plane-ns", "operator": "Exists"}],
        },
        "port": "linkerd-admin",
        "proxyProtocol": "HTTP/1",
    });
    let route = |name: &str, paths: &[&str]| {
        let matches = paths.iter().map(|path| json!({"path": {"value": path}}));
        let parent = json!({"group": "policy.linkerd.io", "kind": "Server", "name": "proxy-admin"});
        let rule = json!({"matches": matches.collect::<Vec<_>>()});
        object(
            "v1beta3",
            "HTTPRoute",
            name,
            json!({"parentRefs": [parent], "rules": [rule]}),
        )
    };
    let policy = |name: &str, route: &str, client: Value| {
        let target = json!({"group": "policy.linkerd.io", "kind": "HTTPRoute", "name": route});
        object(
            "v1alpha1",
            "AuthorizationPolicy",
            name,
            json!({"targetRef": target, "requiredAuthenticationRefs": [client]}),
        )
    };
    let prometheus = json!({
        "kind": "ServiceAccount",
        "name": "prometheus",
        "namespace": viz_namespace,
    });
    let kubelet = json!({
        "group": "policy.linkerd.io",
        "kind": "NetworkAuthentication",
        "name": "kubelet",
        "namespace": viz_namespace,
    });
    vec![
        object("v1beta3", "Server", "proxy-admin", server),
        route("proxy-metrics", &["/metrics"]),
        route("proxy-probes", &["/live", "/ready"]),
        policy("prometheus-scrape", "proxy-metrics", prometheus),
        policy("proxy-probes", "proxy-probes", kubelet),
    ]
}

#[cfg(test)]
mod tests {
    use mesh_k8s::crd::{AuthorizationPolicy, PolicyHttpRoute, Server};

    use super::*;

    #[test]
    fn objects_are_valid_and_refer_to_each_other() {
        let [server, metrics, probes, scrape, kubelet] =
            documents(Some("shop"), "viz").try_into().unwrap();
        let server: Server = serde_json::from_value(server).unwrap();
        assert_eq!(server.metadata.namespace.as_deref(), Some("shop"));
        for (route, policy, path) in [(metrics, scrape, "/metrics"), (probes, kubelet, "/live")] {
            let first = &route["spec"]["rules"][0]["matches"][0]["path"]["value"];
            assert_eq!(first, path);
            let client = &policy["spec"]["requiredAuthenticationRefs"][0];
            assert_eq!(client["namespace"], "viz");
            let route: PolicyHttpRoute = serde_json::from_value(route).unwrap();
            let policy: AuthorizationPolicy = serde_json::from_value(policy).unwrap();
            assert_eq!(Some(policy.spec.target_ref.name), route.metadata.name);
            let parents = route.spec.parent_refs.unwrap();
            assert_eq!(Some(&parents[0].name), server.metadata.name.as_ref());
        }
    }

    #[test]
    fn namespace_is_left_to_kubectl_without_a_flag() {
        let documents = documents(None, VIZ_NAMESPACE);
        assert!(
            documents
                .iter()
                .all(|it| it["metadata"]["namespace"].is_null())
        );
    }
}

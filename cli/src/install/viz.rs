//! The manifests of the viz extension.

use mesh_core::annotation::{EXTENSION, EXTERNAL_PROMETHEUS, VIZ};
use mesh_k8s::values::Values;
use serde_json::{Value, json};

use super::flags::{HelmFlags, Overlay};
use super::manifest::Manifest;
use super::{Chart, LayeredValues, render_chart};

/// The flags of `viz install` and `viz prune`.
#[derive(Debug, Default, clap::Args)]
pub(crate) struct VizFlags {
    #[command(flatten)]
    helm: HelmFlags,
    /// Run three replicas of the tap API and of its injector on different nodes with disruption
    /// budgets
    #[arg(long, help_heading = "Values")]
    ha: bool,
}

/// Renders the manifests in the order of their application. They begin with the namespace, so that
/// they need no Job that labels it.
///
/// `control_plane` has the values of the installed mesh, which decide names and identities; without
/// them the flags must.
pub(crate) fn render(
    namespace: &str,
    kubernetes_version: Option<&str>,
    control_plane: Option<&Values>,
    flags: &VizFlags,
) -> anyhow::Result<Vec<Manifest>> {
    let below = match control_plane {
        Some(values) => vec![serde_norway::to_string(&of_control_plane(values))?],
        None => Vec::new(),
    };
    let mut above = Overlay::default();
    above.set("createNamespaceMetadataJob", Some(false));
    let values = LayeredValues {
        below,
        high_availability: flags.ha,
        helm: &flags.helm,
        above: &above.into_value().unwrap_or_default(),
    };
    let mut manifests = render_chart(Chart::Viz, namespace, kubernetes_version, &values)?;
    let url = prometheus_url(&manifests);
    manifests.insert(0, namespace_manifest(namespace, url.as_deref())?);
    Ok(manifests)
}

/// Returns the values that the extension must share with the control plane.
fn of_control_plane(values: &Values) -> Value {
    json!({
        "linkerdNamespace": values.namespace,
        "meshAgentNamespace": values.agent_namespace(),
        "clusterDomain": values.cluster_domain,
        "identityTrustDomain": values.trust_domain(),
    })
}

/// Returns the URL of a Prometheus that is not the extension's own.
fn prometheus_url(manifests: &[Manifest]) -> Option<String> {
    let find = |kind: &str, name: &str| {
        manifests.iter().find(|manifest| {
            let found = manifest.name();
            found.kind == kind && found.name == name
        })
    };
    if find("Deployment", "prometheus").is_some() {
        return None;
    }
    let metrics_api = find("Deployment", "metrics-api")?;
    let args = metrics_api
        .object
        .pointer("/spec/template/spec/containers/0/args")?;
    args.as_array()?.iter().find_map(|arg| {
        let url = arg.as_str()?.strip_prefix("--prometheus-url=")?;
        Some(url.to_owned())
    })
}

fn namespace_manifest(name: &str, prometheus_url: Option<&str>) -> anyhow::Result<Manifest> {
    let mut object = json!({
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": { "name": name, "labels": { EXTENSION: VIZ } },
    });
    if let Some(url) = prometheus_url {
        object["metadata"]["annotations"] = json!({ EXTERNAL_PROMETHEUS: url });
    }
    Manifest::from_object(object)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn helm_is_available(test: &str) -> bool {
        let found = std::process::Command::new("helm").arg("version").output();
        if found.is_err() {
            println!("skipped: {test}: the program helm is not on the PATH");
        }
        found.is_ok()
    }

    fn flags(settings: &[&str]) -> VizFlags {
        use clap::Parser as _;
        #[derive(clap::Parser)]
        struct Line {
            #[command(flatten)]
            flags: VizFlags,
        }
        Line::parse_from(std::iter::once(&"viz").chain(settings)).flags
    }

    #[test]
    fn extension_uses_names_and_identities_of_installed_mesh() {
        if !helm_is_available("extension_uses_names_and_identities_of_installed_mesh") {
            return;
        }
        let control_plane = Values {
            namespace: "mesh".to_owned(),
            cluster_domain: "example.org".to_owned(),
            ..Values::default()
        };
        let manifests = render("viz", None, Some(&control_plane), &flags(&[])).unwrap();
        assert_eq!(manifests[0].object["metadata"]["name"], "viz");
        assert_eq!(
            manifests[0].object["metadata"]["labels"]["linkerd.io/extension"],
            "viz"
        );
        let text: String = manifests
            .iter()
            .map(|manifest| manifest.text.as_str())
            .collect();
        assert!(
            text.contains("--tap-service-name=tap.viz.serviceaccount.identity.mesh.example.org")
        );
        assert!(text.contains("http://prometheus.viz.svc.example.org:9090"));
        assert!(!text.contains("namespace-metadata"));
    }

    #[test]
    fn namespace_names_external_prometheus() {
        if !helm_is_available("namespace_names_external_prometheus") {
            return;
        }
        let flags = flags(&[
            "--set",
            "prometheus.enabled=false,prometheusUrl=http://prometheus.monitoring:9090",
        ]);
        let manifests = render("viz", None, None, &flags).unwrap();
        assert_eq!(
            manifests[0].object["metadata"]["annotations"]["viz.linkerd.io/external-prometheus"],
            "http://prometheus.monitoring:9090"
        );
    }
}

//! The manifests of the multicluster extension.

use mesh_core::annotation::{EXTENSION, MULTICLUSTER};
use mesh_k8s::values::reading::{ChartValues as _, IgnoredKey, ignored_keys};
use mesh_k8s::values::{MulticlusterValues, Values};
use serde_json::{Value, json};

use super::flags::{HelmFlags, Overlay};
use super::manifest::Manifest;
use super::{Chart, LayeredValues, overrides, render_chart};
use crate::output;

/// The flags of `multicluster install` and `multicluster prune`.
#[derive(Debug, Default, clap::Args)]
pub(crate) struct MulticlusterFlags {
    #[command(flatten)]
    helm: HelmFlags,
    /// Run three replicas of the gateway on different nodes with a disruption budget
    #[arg(long, help_heading = "Values")]
    ha: bool,
    #[command(flatten)]
    gateway: GatewayFlags,
    /// Create a ServiceAccount that other clusters read this one with [default: true]
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true", require_equals = true)]
    service_mirror_credentials: Option<bool>,
}

/// A number of a port.
fn port() -> clap::builder::RangedI64ValueParser<u16> {
    clap::value_parser!(u16).range(1..)
}

#[derive(Debug, Default, clap::Args)]
#[command(next_help_heading = "Gateway")]
struct GatewayFlags {
    /// Install the gateway; without it, other clusters only use Services whose pods they can
    /// connect to [default: true]
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true", require_equals = true)]
    gateway: Option<bool>,
    /// Port of the gateway's Service for other clusters [default: 4143]
    #[arg(long, value_name = "PORT", value_parser = port())]
    gateway_port: Option<u16>,
    /// Seconds between two probes of the gateway by another cluster [default: 3]
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(1..=3600))]
    gateway_probe_seconds: Option<u32>,
    /// Port of the gateway's Service for probes [default: 4191]
    #[arg(long, value_name = "PORT", value_parser = port())]
    gateway_probe_port: Option<u16>,
    /// Type of the gateway's Service: LoadBalancer, NodePort or ClusterIP [default: LoadBalancer]
    #[arg(long, value_name = "TYPE", value_parser = ["ClusterIP", "LoadBalancer", "NodePort"], hide_possible_values = true)]
    gateway_service_type: Option<String>,
    /// Port of the nodes at which the load balancer checks them; the value
    /// gateway.serviceExternalTrafficPolicy must be Local
    #[arg(long, value_name = "PORT", value_parser = port())]
    gateway_healthcheck_nodeport: Option<u16>,
}

impl MulticlusterFlags {
    /// Returns the values of the flags. The manifests begin with the namespace, so that they need
    /// no Job that labels it.
    fn overlay(&self) -> Value {
        let gateway = &self.gateway;
        let mut overlay = Overlay::default();
        overlay.set("createNamespaceMetadataJob", Some(false));
        let credentials = self.service_mirror_credentials;
        overlay.set("remoteMirrorServiceAccount", credentials);
        overlay.set("gateway.enabled", gateway.gateway);
        overlay.set("gateway.port", gateway.gateway_port);
        overlay.set("gateway.probe.seconds", gateway.gateway_probe_seconds);
        overlay.set("gateway.probe.port", gateway.gateway_probe_port);
        let service_type = gateway.gateway_service_type.as_deref();
        overlay.set("gateway.serviceType", service_type);
        let health_check = gateway.gateway_healthcheck_nodeport;
        overlay.set("gateway.healthCheckNodePort", health_check);
        overlay.into_value().unwrap_or_default()
    }
}

/// Renders the manifests in the order of their application, and reports values without effect.
///
/// `control_plane` has the values of the installed mesh, which decide names, identities and the
/// image; without them the flags must.
pub(crate) fn render(
    namespace: &str,
    kubernetes_version: Option<&str>,
    control_plane: Option<&Values>,
    flags: &MulticlusterFlags,
) -> anyhow::Result<Vec<Manifest>> {
    let below = match control_plane {
        Some(values) => vec![serde_norway::to_string(&of_control_plane(values))?],
        None => Vec::new(),
    };
    let values = LayeredValues {
        below,
        high_availability: flags.ha,
        helm: &flags.helm,
        above: &flags.overlay(),
    };
    let mut manifests = render_chart(Chart::Multicluster, namespace, kubernetes_version, &values)?;
    for note in ignored(&overrides::extract_values(&mut manifests)?) {
        output::note(&note);
    }
    let labelled = json!({
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": { "name": namespace, "labels": { EXTENSION: MULTICLUSTER } },
    });
    manifests.insert(0, Manifest::from_object(labelled)?);
    Ok(manifests)
}

/// Returns the values that the extension must share with the control plane.
fn of_control_plane(values: &Values) -> Value {
    let image = json!({
        "name": values.controller_image,
        "version": values.controller_image_version,
    });
    json!({
        "linkerdNamespace": values.namespace,
        "identityTrustDomain": values.trust_domain(),
        "imagePullPolicy": values.image_pull_policy,
        "controllerDefaults": { "image": image },
        "localServiceMirror": { "image": image },
    })
}

/// Returns a note for each given value without effect.
fn ignored(values: &Value) -> Vec<String> {
    let note = |path: &str, reason: &str| format!("the value {path} has no effect: {reason}");
    let keys = ignored_keys::<MulticlusterValues>(values);
    let keys = keys
        .into_iter()
        .map(|IgnoredKey { path, reason }| note(path, reason));
    let of_items = MulticlusterValues::IGNORED.iter().filter_map(|key| {
        let name = key.path.strip_prefix("controllerDefaults.")?;
        Some((name, key.reason))
    });
    let items = values["controllers"].as_array().into_iter().flatten();
    let of_items = items.flat_map(|item| {
        let link = item["link"]["ref"]["name"].as_str().unwrap_or_default();
        let given = of_items.clone().filter(|(name, _)| !item[*name].is_null());
        given.map(move |(name, reason)| note(&format!("{name} of the controller {link}"), reason))
    });
    keys.chain(of_items).collect()
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;
    use mesh_k8s::values::reading::schema;

    use super::*;

    fn helm_is_available(test: &str) -> bool {
        let found = std::process::Command::new("helm").arg("version").output();
        if found.is_err() {
            println!("skipped: {test}: the program helm is not on the PATH");
        }
        found.is_ok()
    }

    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        flags: MulticlusterFlags,
    }

    fn flags(args: &[&str]) -> MulticlusterFlags {
        Line::parse_from(std::iter::once(&"multicluster").chain(args)).flags
    }

    #[test]
    fn flags_become_values_of_the_chart() {
        let args = [
            "--gateway=false",
            "--gateway-port=443",
            "--gateway-probe-seconds=5",
            "--gateway-probe-port=8080",
            "--gateway-service-type=NodePort",
            "--gateway-healthcheck-nodeport=30000",
            "--service-mirror-credentials=false",
        ];
        let expected = json!({
            "createNamespaceMetadataJob": false,
            "remoteMirrorServiceAccount": false,
            "gateway": {
                "enabled": false,
                "port": 443,
                "probe": { "seconds": 5, "port": 8080 },
                "serviceType": "NodePort",
                "healthCheckNodePort": 30000,
            },
        });
        assert_eq!(flags(&args).overlay(), expected);
        fn check(given: &Value, schema: &Value) {
            for (name, value) in given.as_object().into_iter().flatten() {
                let schema = &schema["properties"][name];
                assert!(schema.is_object(), "{name}");
                check(value, schema);
            }
        }
        check(&expected, &schema::<MulticlusterValues>());
        let none = json!({ "createNamespaceMetadataJob": false });
        assert_eq!(flags(&[]).overlay(), none);
        assert!(Line::try_parse_from(["multicluster", "--gateway-port=0"]).is_err());
        assert!(Line::try_parse_from(["multicluster", "--gateway-service-type=External"]).is_err());
    }

    #[test]
    fn extension_uses_names_and_image_of_installed_mesh() {
        if !helm_is_available("extension_uses_names_and_image_of_installed_mesh") {
            return;
        }
        let control_plane = Values {
            namespace: "mesh".to_owned(),
            cluster_domain: "example.org".to_owned(),
            controller_image: "registry.example/controller".to_owned(),
            ..Values::default()
        };
        let manifests = render("mc", None, Some(&control_plane), &flags(&[])).unwrap();
        let first = &manifests[0].object;
        assert_eq!(first["kind"], "Namespace");
        assert_eq!(first["metadata"]["name"], "mc");
        assert_eq!(
            first["metadata"]["labels"]["linkerd.io/extension"],
            "multicluster"
        );
        let text: String = manifests
            .iter()
            .map(|manifest| manifest.text.as_str())
            .collect();
        assert!(
            text.contains("linkerd-gateway.mc.serviceaccount.identity.mesh.example.org"),
            "{text}"
        );
        let image = format!(
            "image: registry.example/controller:{}",
            env!("CARGO_PKG_VERSION")
        );
        assert_eq!(text.matches(&image).count(), 2);
        assert!(!text.contains("namespace-metadata"));
        assert!(!text.contains("meshctl/v1"));
    }

    #[test]
    fn values_without_effect_are_reported() {
        let values = json!({
            "enablePSP": false,
            "localServiceMirror": { "enablePprof": true },
            "controllers": [
                { "link": { "ref": { "name": "east" } }, "retryLimit": 5 },
                { "link": { "ref": { "name": "west" } } },
            ],
        });
        let notes = ignored(&values);
        assert_eq!(notes.len(), 3, "{notes:?}");
        for (note, expected) in notes
            .iter()
            .zip(["enablePSP", "localServiceMirror", "east"])
        {
            assert!(note.contains(expected), "{note}");
        }
        assert!(ignored(&json!({})).is_empty());
    }
}

//! `meshctl multicluster link`: prints what `link-gen` prints, and a mirror controller for the
//! Link, which the chart linkerd-multicluster-link renders.

use mesh_k8s::crd::Link;
use serde_json::{Value, json};

use super::linking::{self, LinkFlags};
use super::{cluster, namespace};
use crate::global::Global;
use crate::install::flags::{HelmFlags, Overlay};
use crate::install::{Chart, LayeredValues, render_chart};
use crate::output;
use crate::output::manifests::{self, ManifestFormat};

const HELP: &str = "\
Deprecated: `meshctl multicluster link-gen` prints the same without a controller, and controllers are
values of the chart linkerd-multicluster, which upgrades them.

Example:
  meshctl --context east multicluster link --cluster-name east | kubectl --context west apply -f -

The program helm renders the controller. helm/linkerd-multicluster-link has the values.";

/// Print a Link, credentials and a mirror controller, for a cluster that is to use Services of this
/// one (deprecated)
#[derive(Debug, clap::Args)]
#[command(after_help = HELP)]
pub(super) struct Args {
    #[command(flatten)]
    link: LinkFlags,
    #[command(flatten)]
    controller: ControllerFlags,
    #[arg(short, long, value_enum, default_value_t = ManifestFormat::Yaml)]
    output: ManifestFormat,
}

/// Values of the controller's chart.
#[derive(Debug, Default, clap::Args)]
struct ControllerFlags {
    #[command(flatten)]
    helm: HelmFlags,
    /// Run three replicas of the controller on different nodes with a disruption budget
    #[arg(long, help_heading = "Values")]
    ha: bool,
    /// Registry and path of the controller's image, as in registry.example/mesh
    #[arg(long, value_name = "REGISTRY", help_heading = "Values")]
    registry: Option<String>,
    /// Tag of the controller's image
    #[arg(long, value_name = "TAG", help_heading = "Values")]
    control_plane_version: Option<String>,
    /// How often the controller repeats a write that failed
    #[arg(long, value_name = "N", help_heading = "Values")]
    service_mirror_retry_limit: Option<u32>,
    /// Log level of the controller
    #[arg(long, value_name = "LEVEL", help_heading = "Values")]
    log_level: Option<String>,
    /// Log format of the controller, plain or json
    #[arg(long, value_name = "FORMAT", value_parser = ["plain", "json"], hide_possible_values = true, help_heading = "Values")]
    log_format: Option<String>,
}

pub(super) async fn run(args: &Args, global: &Global) -> anyhow::Result<()> {
    output::note(
        "link is deprecated: use `meshctl multicluster link-gen`, and add the Link to the value controllers of the chart linkerd-multicluster",
    );
    let (cluster, namespace) = (cluster(global).await?, namespace(global));
    let documents = linking::documents(&args.link, namespace, &cluster, global);
    let mut documents = Box::pin(documents).await?;
    let image = cluster.values().await?.controller_image;
    let link = documents.last().cloned().unwrap_or_default();
    let link: Link = serde_json::from_value(link)?;
    documents.extend(controller(&link, namespace, &image, &args.controller)?);
    output::text(&manifests::render(&documents, args.output)?)
}

/// Returns the objects of the controller. `image` is the one of this cluster's mesh.
fn controller(
    link: &Link,
    namespace: &str,
    image: &str,
    flags: &ControllerFlags,
) -> anyhow::Result<Vec<Value>> {
    let below = json!({ "controllerImage": image });
    let values = LayeredValues {
        below: vec![serde_norway::to_string(&below)?],
        high_availability: flags.ha,
        helm: &flags.helm,
        above: &overlay(link, flags),
    };
    let manifests = render_chart(Chart::MulticlusterLink, namespace, None, &values)?;
    Ok(manifests.into_iter().map(|it| it.object).collect())
}

fn overlay(link: &Link, flags: &ControllerFlags) -> Value {
    let mut overlay = Overlay::default();
    overlay.set("targetClusterName", Some(&*link.spec.target_cluster_name));
    let probe = link.spec.probe_spec.as_ref();
    overlay.set("gateway.enabled", Some(probe.is_some()));
    let port = probe.and_then(|probe| probe.port.parse::<u16>().ok());
    overlay.set("gateway.probe.port", port);
    let registry = flags.registry.as_ref();
    let image = registry.map(|registry| format!("{}/controller", registry.trim_end_matches('/')));
    overlay.set("controllerImage", image.as_deref());
    let version = flags.control_plane_version.as_deref();
    overlay.set("controllerImageVersion", version);
    let retries = flags.service_mirror_retry_limit;
    overlay.set("serviceMirrorRetryLimit", retries);
    overlay.set("logLevel", flags.log_level.as_deref());
    overlay.set("logFormat", flags.log_format.as_deref());
    overlay.into_value().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;
    use mesh_k8s::crd::LinkSpec;
    use mesh_k8s::crd::link::ProbeSpec;

    use super::*;
    use crate::commands::multicluster::tests::helm_is_available;

    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        controller: ControllerFlags,
    }

    fn link(probe_port: Option<&str>) -> Link {
        let probe_spec = probe_port.map(|port| ProbeSpec {
            port: port.to_owned(),
            ..ProbeSpec::default()
        });
        let spec = LinkSpec {
            target_cluster_name: "east".to_owned(),
            probe_spec,
            ..LinkSpec::default()
        };
        Link::new("east", spec)
    }

    fn render(probe_port: Option<&str>, arguments: &[&str]) -> Vec<Value> {
        let line = Line::parse_from(std::iter::once(&"link").chain(arguments));
        let link = link(probe_port);
        controller(&link, "mc", "registry.example/controller", &line.controller).unwrap()
    }

    fn find<'a>(objects: &'a [Value], kind: &str) -> Option<&'a Value> {
        objects.iter().find(|object| object["kind"] == kind)
    }

    #[test]
    fn controller_is_the_one_of_the_link() {
        if !helm_is_available("controller_is_the_one_of_the_link") {
            return;
        }
        let objects = render(Some("30191"), &["--log-format=json", "--ha"]);
        let deployment = find(&objects, "Deployment").unwrap();
        assert_eq!(
            deployment["metadata"]["name"],
            "linkerd-service-mirror-east"
        );
        assert_eq!(deployment["metadata"]["namespace"], "mc");
        assert_eq!(deployment["spec"]["replicas"], 3);
        let container = &deployment["spec"]["template"]["spec"]["containers"][0];
        let image = container["image"].as_str().unwrap();
        assert!(image.starts_with("registry.example/controller:"), "{image}");
        let args = container["args"].to_string();
        assert!(
            args.contains("--log-format=json") && args.ends_with("\"east\"]"),
            "{args}"
        );
        let probe = find(&objects, "Service").unwrap();
        assert_eq!(probe["metadata"]["name"], "probe-gateway-east");
        assert_eq!(probe["spec"]["ports"][0]["port"], 30191);

        let arguments = ["--registry=other.example/", "--control-plane-version=v1"];
        let objects = render(None, &arguments);
        assert!(find(&objects, "Service").is_none(), "nothing is probed");
        let deployment = find(&objects, "Deployment").unwrap();
        let container = &deployment["spec"]["template"]["spec"]["containers"][0];
        assert_eq!(container["image"], "other.example/controller:v1");
    }
}

//! `meshctl inject`: adds the injection annotation to manifests, or with `--manual` the proxy
//! itself. The injection is the function of mesh-k8s that the cluster's injector uses. Manifests go
//! to standard output and the report to standard error, so that the result can be piped to kubectl.

mod input;
mod report;

use std::collections::BTreeMap;
use std::path::PathBuf;

use anyhow::Context as _;
use mesh_core::annotation::CONFIG_PREFIX;
use mesh_k8s::manifest::{self, InjectOptions, Report};
use mesh_k8s::values::Values;
use mesh_k8s::values::reading::{IgnoredKey, ignored_keys};

use crate::cluster::Cluster;
use crate::exit::Failure;
use crate::global::Global;
use crate::output;
use crate::output::manifests::{self, ManifestFormat};

pub(crate) use self::{input::read, report::report};

const EXAMPLES: &str = "\
Examples:
  meshctl inject shop.yaml | kubectl apply -f -
  kubectl get deploy -o yaml | meshctl inject - | kubectl apply -f -
  meshctl inject --manual --values values.yaml shop/";

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Files, directories, URLs (http:// or https://), or - for standard input
    #[arg(required = true)]
    files: Vec<PathBuf>,
    /// Add the proxy to the manifests, instead of the annotation for the cluster's injector
    #[arg(long)]
    manual: bool,
    /// With --manual: read the values of the mesh from a file, instead of the cluster's ConfigMap
    /// linkerd-config
    #[arg(long, value_name = "FILE", requires = "manual")]
    values: Option<PathBuf>,
    /// With --manual: use the default values, without contacting a cluster
    #[arg(long, requires = "manual", conflicts_with = "values")]
    ignore_cluster: bool,
    /// Inject in ingress mode: the proxy routes by request headers
    #[arg(long)]
    ingress: bool,
    #[command(flatten)]
    settings: Settings,
    #[arg(short, long, value_enum, default_value_t = ManifestFormat::Yaml)]
    output: ManifestFormat,
}

/// Flags that become annotations `config.linkerd.io/…`.
#[derive(Debug, clap::Args)]
struct Settings {
    /// Ports without protocol detection: 3306,5432,9000-9010
    #[arg(long, value_name = "PORTS")]
    opaque_ports: Option<String>,
    /// Inbound ports that bypass the proxy
    #[arg(long, value_name = "PORTS")]
    skip_inbound_ports: Option<String>,
    /// Outbound ports that bypass the proxy
    #[arg(long, value_name = "PORTS")]
    skip_outbound_ports: Option<String>,
    /// Policy of ports that no Server selects: all-unauthenticated, all-authenticated, deny and so
    /// on
    #[arg(long, value_name = "POLICY")]
    default_inbound_policy: Option<String>,
    /// Inbound ports that require clients with an identity
    #[arg(long, value_name = "PORTS")]
    require_identity_on_inbound_ports: Option<String>,
    /// Add the proxy as a native sidecar, or with =false as an ordinary container
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true", require_equals = true)]
    native_sidecar: Option<bool>,
    /// Seconds that a proxy in an ordinary container waits before it exits
    #[arg(long, value_name = "SECONDS")]
    wait_before_exit_seconds: Option<u32>,
    /// Add the debugging container, too
    #[arg(long)]
    enable_debug_sidecar: bool,
    /// Timeout of half-closed connections in connection tracking, set by the init container
    #[arg(long, value_name = "DURATION")]
    close_wait_timeout: Option<String>,
    /// Log filter of the proxy
    #[arg(long, value_name = "FILTER")]
    proxy_log_level: Option<String>,
    /// The proxy's image, without tag
    #[arg(long, value_name = "IMAGE")]
    proxy_image: Option<String>,
    /// Tag of the proxy's image
    #[arg(short = 'v', long, value_name = "TAG")]
    proxy_version: Option<String>,
    /// Registry and path of the images of proxy and debugging container, as in
    /// registry.example/mesh
    #[arg(long, value_name = "REGISTRY")]
    registry: Option<String>,
    /// When images are pulled: Always, IfNotPresent or Never
    #[arg(long, value_name = "POLICY")]
    image_pull_policy: Option<String>,
    /// Port of the proxy for connections from other pods
    #[arg(long, value_name = "PORT")]
    inbound_port: Option<u16>,
    /// Port of the proxy for connections of the application
    #[arg(long, value_name = "PORT")]
    outbound_port: Option<u16>,
    /// Port of the proxy for /live, /ready and /metrics
    #[arg(long, value_name = "PORT")]
    admin_port: Option<u16>,
    /// Port of the proxy for tap
    #[arg(long, value_name = "PORT")]
    control_port: Option<u16>,
    /// User ID of the proxy
    #[arg(long, value_name = "UID")]
    proxy_uid: Option<u32>,
    /// Group ID of the proxy
    #[arg(long, value_name = "GID")]
    proxy_gid: Option<u32>,
    /// Look up profiles of names outside the cluster, too
    #[arg(long)]
    enable_external_profiles: bool,
    /// CPU request of the proxy
    #[arg(long, value_name = "QUANTITY", alias = "proxy-cpu")]
    proxy_cpu_request: Option<String>,
    /// CPU limit of the proxy
    #[arg(long, value_name = "QUANTITY")]
    proxy_cpu_limit: Option<String>,
    /// Memory request of the proxy
    #[arg(long, value_name = "QUANTITY", alias = "proxy-memory")]
    proxy_memory_request: Option<String>,
    /// Memory limit of the proxy
    #[arg(long, value_name = "QUANTITY")]
    proxy_memory_limit: Option<String>,
}

impl Settings {
    /// Returns the annotations of the flags. `--registry` applies to the image names in `values`.
    fn annotations(&self, values: &Values) -> BTreeMap<String, String> {
        let number = |value: Option<u32>| value.map(|value| value.to_string());
        let port = |value: Option<u16>| number(value.map(u32::from));
        let flag = |is_set: bool| is_set.then(|| "true".to_owned());
        let image = |name: &str| {
            let registry = self.registry.as_deref()?.trim_end_matches('/');
            let (_, name) = name.rsplit_once('/').unwrap_or(("", name));
            Some(format!("{registry}/{name}"))
        };
        let given = self.proxy_image.clone();
        let proxy_image = image(given.as_ref().unwrap_or(&values.proxy.image.name)).or(given);
        let native_sidecar = self.native_sidecar.map(|value| value.to_string());
        let identity_ports = self.require_identity_on_inbound_ports.clone();
        let settings = [
            ("opaque-ports", self.opaque_ports.clone()),
            ("skip-inbound-ports", self.skip_inbound_ports.clone()),
            ("skip-outbound-ports", self.skip_outbound_ports.clone()),
            (
                "default-inbound-policy",
                self.default_inbound_policy.clone(),
            ),
            ("proxy-require-identity-inbound-ports", identity_ports),
            ("proxy-enable-native-sidecar", native_sidecar),
            ("enable-debug-sidecar", flag(self.enable_debug_sidecar)),
            ("close-wait-timeout", self.close_wait_timeout.clone()),
            ("proxy-log-level", self.proxy_log_level.clone()),
            ("proxy-image", proxy_image),
            ("debug-image", image(&values.debug_container.image.name)),
            ("proxy-version", self.proxy_version.clone()),
            ("image-pull-policy", self.image_pull_policy.clone()),
            ("inbound-port", port(self.inbound_port)),
            ("outbound-port", port(self.outbound_port)),
            ("admin-port", port(self.admin_port)),
            ("control-port", port(self.control_port)),
            ("proxy-uid", number(self.proxy_uid)),
            ("proxy-gid", number(self.proxy_gid)),
            (
                "enable-external-profiles",
                flag(self.enable_external_profiles),
            ),
            ("proxy-cpu-request", self.proxy_cpu_request.clone()),
            ("proxy-cpu-limit", self.proxy_cpu_limit.clone()),
            ("proxy-memory-request", self.proxy_memory_request.clone()),
            ("proxy-memory-limit", self.proxy_memory_limit.clone()),
        ];
        let settings = settings.map(|(name, value)| (format!("{CONFIG_PREFIX}{name}"), value));
        // The only setting with the prefix of Linkerd's experimental ones.
        let wait = "config.alpha.linkerd.io/proxy-wait-before-exit-seconds";
        let wait = (wait.to_owned(), number(self.wait_before_exit_seconds));
        let all = settings.into_iter().chain([wait]);
        all.filter_map(|(key, value)| Some((key, value?))).collect()
    }
}

pub(crate) async fn run(args: &Args, global: &Global) -> anyhow::Result<()> {
    let documents = read(&args.files).await?;
    let values = if args.manual {
        // Boxed, because its future holds the values of the chart twice.
        Some(Box::pin(values(args, global)).await?)
    } else {
        None
    };
    let options = InjectOptions {
        annotations: args
            .settings
            .annotations(values.as_ref().unwrap_or(&Values::default())),
        ingress: args.ingress,
        manual: values.as_ref(),
    };
    let (documents, reports) = manifest::inject(documents, &options)
        .map_err(|error| Failure::Input(format!("{:#}", anyhow::Error::from(error))))?;
    output::text(&manifests::render(&documents, args.output)?)?;
    output::note(&report(&reports));
    // All other manifests have been printed, so that one workload that cannot be injected does not
    // block a directory.
    if reports.iter().any(Report::is_refused) {
        return Err(Failure::NegativeResult.into());
    }
    Ok(())
}

/// Returns the values that the cluster's injector uses: the values of linkerd-config, completed by
/// trust anchors that the mesh created itself.
async fn cluster_values(cluster: &Cluster) -> anyhow::Result<Values> {
    let mut values = cluster.values().await?;
    if values.identity_trust_anchors_pem.trim().is_empty() {
        values.identity_trust_anchors_pem = cluster.trust_anchors().await?;
    }
    Ok(values)
}

async fn values(args: &Args, global: &Global) -> anyhow::Result<Values> {
    let mut values = match &args.values {
        _ if args.ignore_cluster => Values::default(),
        Some(path) => {
            let text = std::fs::read_to_string(path)
                .with_context(|| format!("read {}", path.display()))
                .map_err(|error| Failure::Input(format!("{error:#}")))?;
            read_values(&text)
                .map_err(|problem| Failure::Input(format!("{}: {problem}", path.display())))?
        }
        None => cluster_values(&Cluster::connect(global).await?).await?,
    };
    values.namespace.clone_from(&global.linkerd_namespace);
    Ok(values)
}

/// Reads a values file as Helm does, and prints which keys have no effect.
fn read_values(text: &str) -> Result<Values, String> {
    let given = serde_norway::from_str(text).map_err(|error| format!("not YAML: {error}"))?;
    let values = Values::read_file(&given).map_err(|error| error.to_string())?;
    for IgnoredKey { path, reason } in ignored_keys::<Values>(&given) {
        output::note(&format!("the value {path} has no effect: {reason}"));
    }
    Ok(values)
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    #[test]
    fn values_file_allows_null_and_linkerd_keys_but_no_typos() {
        let text = "{kubeAPI: {}, configReaders: null, proxy: {logLevel: debug, image: null}}";
        let values = read_values(text).unwrap();
        assert_eq!(values.proxy.log_level, "debug");
        assert_eq!(values.proxy.image.name, "mesh/proxy");
        let error = read_values("proxy: {loglevel: debug}").unwrap_err();
        assert!(error.contains("did you mean proxy.logLevel?"), "{error}");
        assert!(read_values("proxy: [").unwrap_err().starts_with("not YAML"));
    }

    fn annotations(line: &[&str]) -> BTreeMap<String, String> {
        let args = Line::try_parse_from(line).unwrap().args;
        args.settings.annotations(&Values::default())
    }

    #[test]
    fn linkerd_flags_become_annotations() {
        let line = "inject --native-sidecar - --admin-port=5191 --control-port 5190 --inbound-port 5143 --outbound-port 5140 -v edge \
            --proxy-uid 3000 --proxy-gid 3001 --registry r.example/mesh/ --image-pull-policy Never --enable-external-profiles \
            --proxy-cpu 1 --proxy-memory 64Mi";
        let line: Vec<&str> = line.split_whitespace().collect();
        let text: Vec<String> = annotations(&line)
            .iter()
            .map(|(key, value)| format!("{}={value}", key.trim_start_matches("config.linkerd.io/")))
            .collect();
        let expected = "admin-port=5191 control-port=5190 debug-image=r.example/mesh/debug enable-external-profiles=true \
            image-pull-policy=Never inbound-port=5143 outbound-port=5140 proxy-cpu-request=1 proxy-enable-native-sidecar=true proxy-gid=3001 \
            proxy-image=r.example/mesh/proxy proxy-memory-request=64Mi proxy-uid=3000 proxy-version=edge";
        assert_eq!(text, expected.split_whitespace().collect::<Vec<_>>());
        let both = ["inject", "-", "--proxy-image=a/b/c", "--registry=r"];
        assert_eq!(annotations(&both)["config.linkerd.io/proxy-image"], "r/c");
    }

    #[test]
    fn flags_become_annotations() {
        let line = "inject - --opaque-ports 3306 --native-sidecar=false --enable-debug-sidecar \
            --wait-before-exit-seconds=5";
        let line: Vec<&str> = line.split_whitespace().collect();
        let annotations = annotations(&line).into_iter();
        let text: Vec<String> = annotations
            .map(|(key, value)| format!("{key}={value}"))
            .collect();
        assert_eq!(
            text,
            [
                "config.alpha.linkerd.io/proxy-wait-before-exit-seconds=5",
                "config.linkerd.io/enable-debug-sidecar=true",
                "config.linkerd.io/opaque-ports=3306",
                "config.linkerd.io/proxy-enable-native-sidecar=false",
            ]
        );
    }
}

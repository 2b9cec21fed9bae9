//! `meshctl inject`: adds the mesh's annotation to manifests, or with `--manual` the proxy itself.
//!
//! The change is a pure function of mesh-k8s, the one that the cluster's injector uses. Manifests go to standard output, the report to standard error, so that
//! the result can be piped on.

mod report;

use std::{collections::BTreeMap, path::PathBuf};

use anyhow::Context as _;
use mesh_k8s::{
    manifest::{self, Injection},
    values::{
        Values,
        reading::{IgnoredKey, ignored_keys},
    },
};

pub(crate) use self::report::report;
use crate::{
    cluster::Cluster,
    exit::Failure,
    global::Global,
    output::{
        self,
        manifests::{self, Form},
    },
};

/// Examples:
///   meshctl inject shop.yaml | kubectl apply -f -
///   kubectl get deploy -o yaml | meshctl inject - | kubectl apply -f -
///   meshctl inject --manual --values values.yaml shop/
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct Args {
    /// Files, folders, or - for standard input
    #[arg(required = true)]
    files: Vec<PathBuf>,
    /// Write the proxy into the manifests, instead of asking the cluster's injector by an annotation
    #[arg(long)]
    manual: bool,
    /// With --manual: the mesh's values from a file, instead of the cluster's ConfigMap linkerd-config
    #[arg(long, value_name = "FILE", requires = "manual")]
    values: Option<PathBuf>,
    /// With --manual: the built-in values, and ask no cluster
    #[arg(long, requires = "manual", conflicts_with = "values")]
    ignore_cluster: bool,
    /// Inject in ingress mode: the proxy routes by the requests' headers
    #[arg(long)]
    ingress: bool,
    #[command(flatten)]
    settings: Settings,
    #[arg(short, long, value_enum, default_value_t = Form::Yaml)]
    output: Form,
}

/// Each becomes the annotation `config.linkerd.io/…` of its name.
#[derive(Debug, clap::Args)]
struct Settings {
    /// Ports whose bytes nobody looks into: 3306,5432,9000-9010
    #[arg(long, value_name = "PORTS")]
    opaque_ports: Option<String>,
    /// Inbound ports that bypass the proxy
    #[arg(long, value_name = "PORTS")]
    skip_inbound_ports: Option<String>,
    /// Outbound ports that bypass the proxy
    #[arg(long, value_name = "PORTS")]
    skip_outbound_ports: Option<String>,
    /// Who may connect where no policy speaks: all-unauthenticated, all-authenticated, deny and so on
    #[arg(long, value_name = "POLICY")]
    default_inbound_policy: Option<String>,
    /// Inbound ports on which the client must have an identity
    #[arg(long, value_name = "PORTS")]
    require_identity_on_inbound_ports: Option<String>,
    /// The proxy as a native sidecar (true), or as an ordinary container (false)
    #[arg(long, value_name = "BOOL")]
    native_sidecar: Option<bool>,
    /// Seconds that an ordinary container's proxy waits before it ends
    #[arg(long, value_name = "SECONDS")]
    wait_before_exit_seconds: Option<u32>,
    /// The debugging container, too
    #[arg(long)]
    enable_debug_sidecar: bool,
    /// Time after which the init container's firewall forgets half-closed connections
    #[arg(long, value_name = "DURATION")]
    close_wait_timeout: Option<String>,
    /// What the proxy logs
    #[arg(long, value_name = "FILTER")]
    proxy_log_level: Option<String>,
    /// The proxy's image
    #[arg(long, value_name = "IMAGE")]
    proxy_image: Option<String>,
    /// CPU that the proxy asks for
    #[arg(long, value_name = "QUANTITY")]
    proxy_cpu_request: Option<String>,
    /// CPU that the proxy may use
    #[arg(long, value_name = "QUANTITY")]
    proxy_cpu_limit: Option<String>,
    /// Memory that the proxy asks for
    #[arg(long, value_name = "QUANTITY")]
    proxy_memory_request: Option<String>,
    /// Memory that the proxy may use
    #[arg(long, value_name = "QUANTITY")]
    proxy_memory_limit: Option<String>,
}

impl Settings {
    fn annotations(&self) -> BTreeMap<String, String> {
        let number = |value: Option<u32>| value.map(|value| value.to_string());
        let flag = |value: Option<bool>| value.map(|value| value.to_string());
        let settings = [
            ("config.linkerd.io/opaque-ports", self.opaque_ports.clone()),
            (
                "config.linkerd.io/skip-inbound-ports",
                self.skip_inbound_ports.clone(),
            ),
            (
                "config.linkerd.io/skip-outbound-ports",
                self.skip_outbound_ports.clone(),
            ),
            (
                "config.linkerd.io/default-inbound-policy",
                self.default_inbound_policy.clone(),
            ),
            (
                "config.linkerd.io/proxy-require-identity-inbound-ports",
                self.require_identity_on_inbound_ports.clone(),
            ),
            (
                "config.linkerd.io/proxy-enable-native-sidecar",
                flag(self.native_sidecar),
            ),
            (
                "config.alpha.linkerd.io/proxy-wait-before-exit-seconds",
                number(self.wait_before_exit_seconds),
            ),
            (
                "config.linkerd.io/enable-debug-sidecar",
                self.enable_debug_sidecar.then(|| "true".to_owned()),
            ),
            (
                "config.linkerd.io/close-wait-timeout",
                self.close_wait_timeout.clone(),
            ),
            (
                "config.linkerd.io/proxy-log-level",
                self.proxy_log_level.clone(),
            ),
            ("config.linkerd.io/proxy-image", self.proxy_image.clone()),
            (
                "config.linkerd.io/proxy-cpu-request",
                self.proxy_cpu_request.clone(),
            ),
            (
                "config.linkerd.io/proxy-cpu-limit",
                self.proxy_cpu_limit.clone(),
            ),
            (
                "config.linkerd.io/proxy-memory-request",
                self.proxy_memory_request.clone(),
            ),
            (
                "config.linkerd.io/proxy-memory-limit",
                self.proxy_memory_limit.clone(),
            ),
        ];
        settings
            .into_iter()
            .filter_map(|(key, value)| Some((key.to_owned(), value?)))
            .collect()
    }
}

pub(crate) async fn run(args: &Args, global: &Global) -> anyhow::Result<()> {
    let documents = manifests::read(&args.files)?;
    let values = match args.manual {
        true => Some(values(args, global).await?),
        false => None,
    };
    let injection = Injection {
        annotations: args.settings.annotations(),
        ingress: args.ingress,
        manual: values.as_ref(),
    };
    let (documents, reports) = manifest::inject(documents, &injection)
        .map_err(|error| Failure::Input(format!("{:#}", anyhow::Error::from(error))))?;
    output::text(&manifests::write(&documents, args.output)?)?;
    output::note(&report(&reports));
    Ok(())
}

/// What the cluster's injector would go by: the values that are written down, and the anchors even where the mesh made them itself and nobody wrote them there.
async fn in_force(cluster: &Cluster) -> anyhow::Result<Values> {
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
        None => in_force(&Cluster::connect(global).await?).await?,
    };
    values.namespace.clone_from(&global.linkerd_namespace);
    Ok(values)
}

/// Reads a file of values as Helm would, and says which of its keys have no effect.
fn read_values(text: &str) -> Result<Values, String> {
    let given = serde_norway::from_str(text).map_err(|error| format!("not YAML: {error}"))?;
    let values = Values::read_file(&given).map_err(|error| error.to_string())?;
    for IgnoredKey { path, reason } in ignored_keys(&given) {
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
    fn values_files_may_have_null_and_keys_of_linkerd_but_no_typos() {
        let text = "{kubeAPI: {}, configReaders: null, proxy: {logLevel: debug, image: null}}";
        let values = read_values(text).unwrap();
        assert_eq!(
            (&*values.proxy.log_level, &*values.proxy.image.name),
            ("debug", "mesh/proxy")
        );
        let error = read_values("proxy: {loglevel: debug}").unwrap_err();
        assert!(error.contains("did you mean proxy.logLevel?"), "{error}");
        assert!(read_values("proxy: [").unwrap_err().starts_with("not YAML"));
    }

    #[test]
    fn flags_become_annotations() {
        let line = [
            "inject",
            "-",
            "--opaque-ports",
            "3306",
            "--native-sidecar",
            "false",
            "--enable-debug-sidecar",
            "--wait-before-exit-seconds=5",
        ];
        let annotations = Line::try_parse_from(line)
            .unwrap()
            .args
            .settings
            .annotations();
        let text: Vec<String> = annotations
            .iter()
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

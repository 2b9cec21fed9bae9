//! The objects that another cluster needs to link to the cluster of the context: credentials for
//! its mirror controller and for its destination controller, and the Link.

mod credentials;

use anyhow::bail;
use mesh_core::annotation::{
    CLUSTER_DOMAIN, CLUSTER_NAME, CREATED_BY, EXPORTED, FEDERATED, TRUST_DOMAIN,
};
use mesh_core::identity::is_dns_label;
use mesh_k8s::crd::link::{CREDENTIALS_KEY, CREDENTIALS_TYPE};
use mesh_k8s::crd::{Link, LinkSpec};
use mesh_k8s::foreign_domain::LinkName;
use mesh_k8s::kinds::{ByteString, LabelSelector, LabelSelectorRequirement, Secret};
use mesh_k8s::{invalid, select};
use serde_json::Value;

use super::names::{DEFAULT_NAMESPACE, credentials_name};
use super::trust_bundle::{self, TrustFlags};
use crate::cluster::gateway::{self, Choice};
use crate::cluster::{Cluster, kubeconfig};
use crate::exit::Failure;
use crate::global::Global;
use crate::output;

/// What is linked, and how.
#[derive(Debug, clap::Args)]
pub(super) struct LinkFlags {
    /// Name of this cluster in the one that links to it, where it is a suffix of Services
    #[arg(long, value_name = "NAME")]
    cluster_name: String,
    /// URL of this cluster's API server for the other one [default: the one in the kubeconfig]
    #[arg(long, value_name = "URL")]
    api_server_address: Option<String>,
    /// ServiceAccount whose token the other cluster gets
    #[arg(
        long,
        value_name = "NAME",
        default_value = "linkerd-service-mirror-remote-access-default"
    )]
    service_account_name: String,
    /// Link with the gateway; with --gateway=false no Services are mirrored behind it
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_value_t = true, default_missing_value = "true", require_equals = true, action = clap::ArgAction::Set)]
    gateway: bool,
    /// Service of the gateway [default: linkerd-gateway]
    #[arg(long, value_name = "NAME")]
    gateway_name: Option<String>,
    /// Namespace of the gateway [default: linkerd-multicluster]
    #[arg(long, value_name = "NAME")]
    gateway_namespace: Option<String>,
    /// Addresses of the gateway, IP addresses or DNS names [default: its load balancer's]
    #[arg(long, value_name = "ADDRESS", value_delimiter = ',')]
    gateway_addresses: Vec<String>,
    /// Port of the gateway [default: the one of its Service]
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    gateway_port: Option<u16>,
    /// Services that are mirrored behind the gateway [default: mirror.linkerd.io/exported=true]
    #[arg(short = 'l', long, value_name = "SELECTOR")]
    selector: Option<String>,
    /// Services whose endpoints are discovered in this cluster [default:
    /// mirror.linkerd.io/exported=remote-discovery]
    #[arg(long, value_name = "SELECTOR")]
    remote_discovery_selector: Option<String>,
    /// Services that join federated Services [default: mirror.linkerd.io/federated=member]
    #[arg(long, value_name = "SELECTOR")]
    federated_service_selector: Option<String>,
    /// Annotations that mirrors do not get; an item may end with /*
    #[arg(long, value_name = "KEY", value_delimiter = ',')]
    excluded_annotations: Vec<String>,
    /// Labels that mirrors do not get; an item may end with /*
    #[arg(long, value_name = "KEY", value_delimiter = ',')]
    excluded_labels: Vec<String>,
    /// Print the trust bundle of this cluster, too, for a cluster with other trust anchors; the
    /// trust ends with the Link
    #[arg(long)]
    trust_bundle: bool,
    #[command(flatten)]
    trust: TrustFlags,
}

impl LinkFlags {
    /// Refuses flags that contradict each other or have no effect.
    fn check(&self) -> Result<(), Failure> {
        if !is_dns_label(&self.cluster_name) {
            return Err(Failure::Input(format!(
                "--cluster-name: {:?} cannot be a part of the names of Services: use at most 63 lower-case letters, digits and hyphens",
                self.cluster_name
            )));
        }
        if let Some(flag) = self.trust.given().filter(|_| !self.trust_bundle) {
            return Err(Failure::Input(format!(
                "{flag} has no effect without --trust-bundle: add that, or leave it out"
            )));
        }
        let about_gateway = [
            ("--gateway-name", self.gateway_name.is_some()),
            ("--gateway-namespace", self.gateway_namespace.is_some()),
            ("--gateway-addresses", !self.gateway_addresses.is_empty()),
            ("--gateway-port", self.gateway_port.is_some()),
            ("--selector", self.selector.is_some()),
        ];
        let given = about_gateway.into_iter().find(|(_, given)| *given);
        match given {
            Some((flag, _)) if !self.gateway => Err(Failure::Input(format!(
                "{flag} has no effect with --gateway=false: leave one of them out"
            ))),
            _ => Ok(()),
        }
    }

    /// Returns the Link without its gateway.
    fn spec(&self, cluster_domain: &str, control_namespace: &str) -> Result<LinkSpec, Failure> {
        let selected = |flag: &str, given: &Option<String>, default: String| {
            let text = given.as_ref().unwrap_or(&default);
            let selector = selector(text);
            selector.map_err(|problem| Failure::Input(format!("{flag}: {problem}")))
        };
        let discovery = selected(
            "--remote-discovery-selector",
            &self.remote_discovery_selector,
            format!("{EXPORTED}=remote-discovery"),
        );
        let federated = selected(
            "--federated-service-selector",
            &self.federated_service_selector,
            format!("{FEDERATED}=member"),
        );
        let mirrored = self.gateway.then(|| {
            let default = format!("{EXPORTED}=true");
            selected("--selector", &self.selector, default)
        });
        Ok(LinkSpec {
            target_cluster_name: self.cluster_name.clone(),
            target_cluster_domain: cluster_domain.to_owned(),
            target_cluster_linkerd_namespace: control_namespace.to_owned(),
            cluster_credentials_secret: credentials_name(&self.cluster_name),
            selector: mirrored.transpose()?,
            remote_discovery_selector: Some(discovery?),
            federated_service_selector: Some(federated?),
            excluded_annotations: self.excluded_annotations.clone(),
            excluded_labels: self.excluded_labels.clone(),
            ..LinkSpec::default()
        })
    }

    async fn add_gateway(
        &self,
        cluster: &Cluster,
        trust_domain: &str,
        spec: &mut LinkSpec,
    ) -> anyhow::Result<()> {
        let name = self.gateway_name.as_deref().unwrap_or("linkerd-gateway");
        let namespace = self.gateway_namespace.as_deref();
        let namespace = namespace.unwrap_or(DEFAULT_NAMESPACE);
        let Some(service) = cluster.service(namespace, name).await? else {
            bail!(Failure::Input(format!(
                "namespace {namespace} has no Service {name}: install the multicluster extension with a gateway, select another one with --gateway-name and --gateway-namespace, or link without one with --gateway=false"
            )));
        };
        let choice = Choice {
            addresses: &self.gateway_addresses,
            port: self.gateway_port,
        };
        let problem = |problem| Failure::Input(format!("Service {namespace}/{name} {problem}"));
        gateway::add(&service, choice, spec).map_err(problem)?;
        Ok(gateway::check_identity(&spec.gateway_identity, trust_domain).map_err(problem)?)
    }
}

/// Returns the two Secrets, the trust bundle if it is asked for, and at last the Link. `namespace`
/// is the extension's, of either cluster.
pub(super) async fn documents(
    flags: &LinkFlags,
    namespace: &str,
    cluster: &Cluster,
    global: &Global,
) -> anyhow::Result<Vec<Value>> {
    flags.check()?;
    let values = cluster.values().await?;
    let mut spec = flags.spec(&values.cluster_domain, &cluster.control_namespace)?;
    if flags.gateway {
        let trust_domain = values.trust_domain();
        flags.add_gateway(cluster, trust_domain, &mut spec).await?;
    }
    let problems = spec.problems();
    if !problems.is_empty() {
        let problems = invalid::summary(&problems);
        bail!(Failure::Input(format!(
            "the Link would be invalid: {problems}"
        )));
    }
    let account = &flags.service_account_name;
    let token = credentials::token(cluster, namespace, account).await?;
    let entry = kubeconfig::api_server(global)?;
    let server = credentials::server(&entry, flags.api_server_address.as_deref())?;
    if credentials::is_local(&server) {
        output::note(&format!(
            "the other cluster cannot reach the API server at {server}, an address of this machine: name another one with --api-server-address"
        ));
    }
    let kubeconfig = credentials::kubeconfig(&entry, &server, account, &token)?;
    let name = credentials_name(&flags.cluster_name);
    let mirrors = secret(&name, namespace, &kubeconfig);
    let mut endpoints = secret(&name, &cluster.control_namespace, &kubeconfig);
    let metadata = &mut endpoints.metadata;
    metadata.labels = Some([(CLUSTER_NAME.to_owned(), flags.cluster_name.clone())].into());
    let annotations = [
        (TRUST_DOMAIN, values.trust_domain().to_owned()),
        (CLUSTER_DOMAIN, values.cluster_domain.clone()),
    ];
    let annotations = annotations.map(|(key, value)| (key.to_owned(), value));
    metadata.annotations = Some(annotations.into());
    let mut documents = vec![
        serde_json::to_value(mirrors)?,
        serde_json::to_value(endpoints)?,
    ];
    let name = &flags.cluster_name;
    if flags.trust_bundle {
        let link = LinkName {
            namespace: namespace.to_owned(),
            name: name.clone(),
        };
        let config_map = trust_bundle::config_map(cluster, global, name, &flags.trust, Some(link));
        documents.push(serde_json::to_value(Box::pin(config_map).await?)?);
    }
    documents.push(serde_json::to_value(link(name, namespace, spec))?);
    Ok(documents)
}

fn secret(name: &str, namespace: &str, kubeconfig: &str) -> Secret {
    let mut secret = Secret {
        type_: Some(CREDENTIALS_TYPE.to_owned()),
        ..Secret::default()
    };
    secret.metadata.name = Some(name.to_owned());
    secret.metadata.namespace = Some(namespace.to_owned());
    let data = ByteString(kubeconfig.as_bytes().to_vec());
    secret.data = Some([(CREDENTIALS_KEY.to_owned(), data)].into());
    secret
}

fn link(name: &str, namespace: &str, spec: LinkSpec) -> Link {
    let mut link = Link::new(name, spec);
    link.metadata.namespace = Some(namespace.to_owned());
    let created_by = format!("linkerd/cli {}", env!("CARGO_PKG_VERSION"));
    link.metadata.annotations = Some([(CREATED_BY.to_owned(), created_by)].into());
    link
}

/// Parses a selector in the notation of `kubectl`. Equality becomes `matchLabels`, as in Linkerd.
fn selector(text: &str) -> Result<LabelSelector, String> {
    let mut selector = LabelSelector::default();
    let requirements = select::parse(text)?.match_expressions;
    for requirement in requirements.unwrap_or_default() {
        let labels = selector.match_labels.get_or_insert_default();
        match equality(&requirement) {
            Some(value) if !labels.contains_key(&requirement.key) => {
                labels.insert(requirement.key.clone(), value.to_owned());
            }
            _ => {
                let expressions = selector.match_expressions.get_or_insert_default();
                expressions.push(requirement);
            }
        }
    }
    selector.match_labels.take_if(|labels| labels.is_empty());
    Ok(selector)
}

/// Returns the only value that a label may have.
fn equality(requirement: &LabelSelectorRequirement) -> Option<&str> {
    match (&*requirement.operator, requirement.values.as_deref()) {
        ("In", Some([value])) => Some(value),
        _ => None,
    }
}

#[cfg(test)]
mod tests;

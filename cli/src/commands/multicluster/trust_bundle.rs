//! The ConfigMap by which another cluster, which has other trust anchors, trusts the identities of
//! this one: where its trust bundle is, and the first one.

mod trusting;

use std::net::IpAddr;
use std::time::Duration;

use anyhow::bail;
use mesh_cluster::trust_bundle::document;
use mesh_core::identity::{Identity, is_dns_label};
use mesh_k8s::foreign_domain::{BundleEndpoint, EndpointProfile, ForeignDomain, LinkName};
use mesh_k8s::kinds::{ConfigMap, Service};
use mesh_k8s::trust::{BUNDLE_CONFIG_MAP, NUMBER_KEY, bundle_server_id};

use crate::cluster::{Cluster, error, gateway};
use crate::exit::Failure;
use crate::facts::names::BUNDLE_KEY;
use crate::global::Global;

/// How the other cluster reaches the trust bundle, and whether it takes it.
#[derive(Debug, Default, clap::Args)]
pub(super) struct TrustFlags {
    /// Address of the trust bundle's server for the other cluster, as bundle.example.com:8443
    /// [default: its load balancer's]
    #[arg(long, value_name = "ADDRESS")]
    trust_bundle_address: Option<String>,
    /// Context of the cluster that is to trust this one; fails if that would refuse the trust
    /// bundle
    #[arg(long, value_name = "NAME")]
    trusting_context: Option<String>,
}

const SERVICE: &str = "linkerd-identity-bundle";

const PORT: &str = "https";

/// Only the hint that the server sends later counts.
const REFRESH_HINT: Duration = Duration::from_secs(60);

impl TrustFlags {
    /// Returns the first flag that is given.
    pub(super) fn given(&self) -> Option<&'static str> {
        let address = self.trust_bundle_address.as_ref();
        let context = self.trusting_context.as_ref();
        address
            .map(|_| "--trust-bundle-address")
            .or(context.map(|_| "--trusting-context"))
    }
}

/// Returns the ConfigMap for the namespace of the control plane, which is the same in both
/// clusters. With a Link, the trust ends with it.
pub(super) async fn config_map(
    cluster: &Cluster,
    global: &Global,
    name: &str,
    flags: &TrustFlags,
    link: Option<LinkName>,
) -> anyhow::Result<ConfigMap> {
    if !is_dns_label(name) {
        bail!(Failure::Input(format!(
            "--cluster-name: {name:?} cannot be a part of names: use at most 63 lower-case letters, digits and hyphens"
        )));
    }
    if let Some(context) = &flags.trusting_context {
        let trusting = Cluster::connect(&global.with_context(context)).await?;
        Box::pin(trusting::check(cluster, &trusting)).await?;
    }
    let namespace = &cluster.control_namespace;
    let values = cluster.values().await?;
    let trust_domain = values.trust_domain().to_owned();
    let Some(service) = cluster.service(namespace, SERVICE).await? else {
        bail!(Failure::Input(format!(
            "namespace {namespace} has no Service {SERVICE}: set the value identity.bundleEndpoint.enabled to true, and upgrade the control plane of this cluster"
        )));
    };
    let id = bundle_server_id(&trust_domain, namespace);
    let id = Identity::parse(&id).map_err(|error| Failure::Input(error.to_string()))?;
    let address = flags.trust_bundle_address.as_deref();
    let endpoint = endpoint(&service, address, id).map_err(Failure::Input)?;
    let record = cluster.control_object::<ConfigMap>(BUNDLE_CONFIG_MAP).await;
    let what = format!("read ConfigMap {namespace}/{BUNDLE_CONFIG_MAP}");
    let record = record.map_err(|error| error::failed(&what, error))?;
    let domain = ForeignDomain {
        cluster: name.to_owned(),
        trust_domain,
        endpoint,
        bundle: Some(first_bundle(record.as_ref()).map_err(Failure::Input)?),
        link,
    };
    Ok(domain.config_map(namespace))
}

/// Returns where the other cluster reaches the server of the bundle.
fn endpoint(
    service: &Service,
    address: Option<&str>,
    id: Identity,
) -> Result<BundleEndpoint, String> {
    let of_service = |problem| format!("Service {SERVICE} {problem}");
    let flag = "--trust-bundle-address";
    let assigned = match address {
        Some(_) => None,
        None => gateway::assigned(service, flag).map_err(of_service)?.pop(),
    };
    let address = address.or(assigned.as_deref()).unwrap_or_default();
    let authority = if has_port(address) {
        address.to_owned()
    } else {
        let instead = format!("; {flag} names one");
        let port = gateway::port(service, PORT, &instead).map_err(of_service)?;
        format!("{}:{port}", in_url(address))
    };
    let problem = || {
        format!(
            "{flag}: {address:?} is not an address with or without a port, as bundle.example.com:8443"
        )
    };
    let url = format!("https://{authority}/");
    let endpoint = BundleEndpoint::from_url(&url, EndpointProfile::Spiffe(id));
    let endpoint = endpoint.ok().filter(|endpoint| endpoint.path == "/");
    endpoint.ok_or_else(problem)
}

fn has_port(address: &str) -> bool {
    let is_literal = address.parse::<IpAddr>().is_ok();
    let host = address.rsplit_once(':').map(|(host, _port)| host);
    !is_literal && host.is_some_and(|host| !host.contains(':') || host.ends_with(']'))
}

/// Returns an address as URLs have it.
fn in_url(address: &str) -> String {
    match address.parse() {
        Ok(IpAddr::V6(address)) => format!("[{address}]"),
        _ => address.to_owned(),
    }
}

/// Returns the bundle that the identity service serves now.
fn first_bundle(record: Option<&ConfigMap>) -> Result<String, String> {
    let entry = |key: &str| record?.data.as_ref()?.get(key);
    let number = entry(NUMBER_KEY).and_then(|number| number.parse().ok());
    let (Some(number), Some(anchors)) = (number, entry(BUNDLE_KEY)) else {
        return Err(format!(
            "ConfigMap {BUNDLE_CONFIG_MAP} has no trust anchors with a number yet: the identity service writes them within seconds if the value identity.publishTrustRoots is true; its log says why not"
        ));
    };
    let of_record = |problem: String| format!("ConfigMap {BUNDLE_CONFIG_MAP}: {problem}");
    let bundle = document::write(anchors, number, REFRESH_HINT);
    let bundle = bundle.map_err(|error| of_record(error.to_string()))?;
    // The other cluster would refuse what cannot be read.
    document::read(bundle.as_bytes()).map_err(|error| of_record(error.to_string()))?;
    Ok(bundle)
}

#[cfg(test)]
mod tests;

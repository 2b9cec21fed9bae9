//! The metrics API of a local node, which `meshctl viz` and `meshctl local dashboard` ask.
//!
//! Its names are the viz extension's. It scrapes the proxies itself, because a node has no
//! Prometheus. Its pod is not in the mesh: only programs of the machine use it, which have no
//! identity of the mesh, and the admin servers of proxies respond to every pod.

pub use crate::observer::NAMESPACE;

use super::{Component, MANIFESTS, OBJECTS, Volume, any_address, container, service};
use crate::image::VIZ;
use crate::service::dns::CLUSTER_DOMAIN;
use crate::settings::Settings;

/// The name of the Service and of the Deployment.
pub const METRICS_API: &str = "metrics-api";
/// The port of the Service.
pub const METRICS_API_PORT: u16 = 8085;

const ADMIN_PORT: u16 = 9995;

pub(super) fn namespace() -> String {
    format!(
        "apiVersion: v1\nkind: Namespace\nmetadata: {{name: {NAMESPACE}, labels: {{linkerd.io/extension: viz}}}}\n"
    )
}

pub(super) fn manifest(settings: &Settings, sources: &[Volume<'_>]) -> String {
    let any = any_address(settings);
    let args = [
        METRICS_API.to_owned(),
        format!("--addr={any}:{METRICS_API_PORT}"),
        format!("--metrics-addr={any}:{ADMIN_PORT}"),
        format!("--controller-namespace={}", super::NAMESPACE),
        format!("--cluster-domain={CLUSTER_DOMAIN}"),
        "--scrape-proxies".to_owned(),
        format!("--source-dir={MANIFESTS}"),
        format!("--source-dir={OBJECTS}"),
    ];
    let labels = format!("component: {METRICS_API}, linkerd.io/extension: viz");
    let port = ("http", METRICS_API_PORT);
    let ports = [port, ("admin", ADMIN_PORT)];
    let component = Component {
        namespace: NAMESPACE,
        name: METRICS_API,
        labels: &labels,
        annotation: "linkerd.io/inject: disabled",
        containers: &container(VIZ, METRICS_API, &args, &ports),
        volumes: sources,
    };
    let service = service(NAMESPACE, METRICS_API, &labels, port, false);
    component.manifest() + &service
}

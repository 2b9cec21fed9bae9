//! The endpoints of ExternalWorkloads, machines outside of the cluster that have a proxy.

use std::net::SocketAddr;

use mesh_core::endpoint::Endpoint;
use mesh_core::labels::Labels;
use mesh_objects::model::ExternalWorkload;
use mesh_objects::policy::server;
use mesh_objects::store::Store;

use super::pod_endpoints::ZONE;
use super::settings::DestinationSettings;

/// Returns the endpoint of the workload at `addr`; `None` if it has no valid identity.
///
/// Linkerd's destination service announces HTTP/2 even if `settings` disable it.
pub(super) fn endpoint(
    store: &Store,
    settings: &DestinationSettings,
    workload: &ExternalWorkload,
    addr: SocketAddr,
    zone: Option<&str>,
) -> Option<Endpoint> {
    let tls = workload.tls.clone()?;
    let opaque = server::is_opaque(
        store.servers_in(&workload.name.namespace),
        workload.into(),
        workload.opaque_ports.as_ref(),
        &settings.default_opaque_ports,
        addr.port(),
    );
    let mut endpoint = Endpoint::plain(addr);
    endpoint.labels = labels(workload, zone);
    endpoint.tls = Some(tls);
    endpoint.http2 = settings.meshed_http2_params;
    endpoint.opaque_transport_port =
        (settings.transport_header || opaque).then_some(workload.proxy_port());
    endpoint.hint = settings.hint(opaque);
    Some(endpoint)
}

fn labels(workload: &ExternalWorkload, zone: Option<&str>) -> Labels {
    let owner = workload.owner.as_ref();
    let labels = [
        Some(("external_workload", &*workload.name.name)),
        owner.map(|owner| (owner.label(), &*owner.name)),
        Some((ZONE, zone.unwrap_or_default())),
    ];
    labels.into_iter().flatten().collect()
}

//! The endpoints of pods: identity, protocol hint and labels.

use std::net::SocketAddr;

use mesh_core::endpoint::{Endpoint, TlsPeer};
use mesh_core::identity::{Identity, service_account};
use mesh_core::labels::Labels;
use mesh_objects::model::PodRecord;
use mesh_objects::policy::server;
use mesh_objects::store::Store;

use super::settings::DestinationSettings;

/// The label with the zone of an endpoint.
pub(super) const ZONE: &str = "zone";

/// Returns whether the port is opaque, by the pod's annotation, the default list or a Server.
pub(super) fn is_opaque(
    store: &Store,
    settings: &DestinationSettings,
    pod: &PodRecord,
    port: u16,
) -> bool {
    server::is_opaque(
        store.servers_in(&pod.name.namespace),
        pod.into(),
        pod.opaque_ports.as_ref(),
        &settings.default_opaque_ports,
        port,
    )
}

/// Returns the endpoint for `port` of the pod, reached at `addr`. Returns `None` for a meshed pod
/// whose proxy's ports are unknown: another endpoint of the Service is better than an incomplete
/// one.
pub(super) fn endpoint(
    store: &Store,
    settings: &DestinationSettings,
    pod: &PodRecord,
    addr: SocketAddr,
    port: u16,
    zone: Option<&str>,
) -> Option<Endpoint> {
    let mut endpoint = Endpoint::plain(addr);
    endpoint.labels = labels(store, pod, zone);
    let Some(control_namespace) = &pod.control_plane_ns else {
        return Some(endpoint);
    };
    if pod.skip_inbound_ports.contains(port) {
        return Some(endpoint);
    }
    let opaque = is_opaque(store, settings, pod, port);
    let Some(proxy) = pod.proxy else {
        tracing::warn!(pod = %pod.name, "Skipped meshed pod without proxy ports in its environment");
        return None;
    };
    let own_port = port == proxy.admin || port == proxy.control;
    endpoint.opaque_transport_port =
        ((settings.transport_header || opaque) && !own_port).then_some(proxy.inbound);
    endpoint.hint = settings.hint(opaque);
    endpoint.http2 = settings.meshed_http2_params;
    // This control plane does not issue the identity of a pod of another one.
    if let Some(trust_domain) = &settings.trust_domain
        && *control_namespace == settings.control_namespace
    {
        endpoint.tls = Some(peer(pod, settings, trust_domain)?);
    }
    Some(endpoint)
}

fn peer(pod: &PodRecord, settings: &DestinationSettings, trust_domain: &str) -> Option<TlsPeer> {
    let name = service_account(
        &pod.service_account,
        &pod.name.namespace,
        &settings.control_namespace,
        trust_domain,
    );
    let id = Identity::parse(&name)
        .inspect_err(|error| {
            tracing::warn!(pod = %pod.name, %error, "Skipped meshed pod without valid identity");
        })
        .ok()?;
    Some(TlsPeer {
        server_name: id.as_str().into(),
        id,
    })
}

fn labels(store: &Store, pod: &PodRecord, zone: Option<&str>) -> Labels {
    let owner = store.owner_of(pod);
    let labels = [
        ("pod", Some(&*pod.name.name)),
        (owner.label(), Some(&*owner.name)),
        ("serviceaccount", Some(&*pod.service_account)),
        ("control_plane_ns", pod.control_plane_ns.as_deref()),
        ("pod_template_hash", pod.pod_template_hash.as_deref()),
        (ZONE, Some(zone.unwrap_or_default())),
    ];
    let set = labels
        .into_iter()
        .filter_map(|(name, value)| Some((name, value?)));
    set.collect()
}

//! The policy controller.

use std::sync::Arc;

use mesh_api::proto::inbound::inbound_server_policies_server::InboundServerPoliciesServer;
use mesh_api::proto::outbound::outbound_policies_server::OutboundPoliciesServer;
use mesh_core::identity::trust_domain;
use parking_lot::Mutex;
use tonic::transport::Server;

use super::{Daemon, DaemonError, export_watched, listen, validator};
use crate::config::Policy;
use crate::index::{PolicyIndex, PolicySettings};
use crate::serve::{InboundService, OutboundService};
use crate::source::kube::kinds;

pub(super) async fn run(config: Policy) -> Result<(), DaemonError> {
    let mut daemon = Daemon::new()?;
    let listener = listen(config.grpc_addr, "gRPC").await?;
    daemon.serve_admin(config.admin_addr).await?;
    let index = Arc::new(Mutex::new(PolicyIndex::new(settings(&config))));
    export_watched(
        &daemon.registry,
        &index,
        [
            (
                "inbound_index_watched",
                "Distinct inbound policies that proxies watch",
            ),
            (
                "outbound_index_watched",
                "Distinct outbound policies that proxies watch",
            ),
        ],
        PolicyIndex::watched,
    );
    let (kinds, apply) = (kinds::POLICY, PolicyIndex::apply);
    let read = daemon.read_source(config.source.clone(), "policy", kinds, &index, apply);
    if !read.await? {
        return Ok(());
    }
    let calls = daemon.calls.clone().limited(config.max_streams);
    let inbound = InboundService::new(index.clone(), daemon.watch.clone(), &calls);
    let outbound = OutboundService::new(index, daemon.watch.clone(), &calls);
    let router = Server::builder()
        .add_service(InboundServerPoliciesServer::new(inbound))
        .add_service(OutboundPoliciesServer::new(outbound));
    daemon.serve_grpc(listener, router);
    validator::serve_policies(&daemon, &config).await?;
    tracing::info!(addr = %config.grpc_addr, "Serving policies");
    daemon.run_until_stopped().await
}

fn settings(config: &Policy) -> PolicySettings {
    PolicySettings {
        cluster_domain: config.cluster_domain.as_str().into(),
        control_namespace: config.control_plane_namespace.as_str().into(),
        identity_domain: trust_domain(&config.identity_domain, &config.cluster_domain).into(),
        cluster_networks: config.cluster_networks.clone(),
        global_egress_namespace: config.global_egress_network_namespace.as_str().into(),
        default_policy: config.default_policy,
        probe_networks: config.probe_networks.clone(),
        default_opaque_ports: config.default_opaque_ports.clone(),
        allow_request_headers: config.allow_l5d_request_headers,
    }
}

//! The policy controller.

use std::sync::Arc;

use mesh_api::proto::inbound::inbound_server_policies_server::InboundServerPoliciesServer;
use mesh_cluster::api_server::{LeaseOwner, LeaseSettings};
use mesh_cluster::daemon::{Daemon, DaemonError, connect, listen};
use mesh_cluster::source::Received;
use mesh_cluster::source::kube::kinds::{self, WatchedKind};
use mesh_core::identity::trust_domain;
use mesh_objects::policy::settings::{NodeProbeSource, PolicySettings};
use parking_lot::Mutex;
use tokio::sync::watch;
use tonic::service::Routes;

use super::{COMPONENT, export_watched, rights, validator, write_objects};
use crate::config::Policy;
use crate::index::PolicyIndex;
use crate::serve::{GrpcServer, InboundService, OutboundService};
use crate::status::StatusObjects;

/// The Lease of the replica that writes statuses, as in Linkerd.
const LEASE: &str = "policy-controller-write";

pub(super) async fn run(config: Policy) -> Result<(), DaemonError> {
    let mut daemon = Daemon::new()?;
    let listener = listen(config.grpc_addr, "gRPC").await?;
    daemon.serve_admin(config.admin_addr).await?;
    let Some(services) = start(&mut daemon, &config).await? else {
        return Ok(());
    };
    daemon.serve_grpc(listener, services);
    validator::serve_policies(&daemon, &config).await?;
    tracing::info!(addr = %config.grpc_addr, "Serving policies");
    daemon.run_until_stopped().await
}

/// Reads the source, starts to write statuses, and returns the services for the objects; `None` if
/// a signal arrives first.
pub(crate) async fn start(
    daemon: &mut Daemon,
    config: &Policy,
) -> Result<Option<Routes>, DaemonError> {
    let index = Arc::new(Mutex::new(PolicyIndex::new(settings(config))));
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
    // Objects in directories have no status.
    let writes_statuses = config.source.dirs.is_empty();
    let (statuses, objects) =
        watch::channel(Arc::new(StatusObjects::new(&config.cluster_networks)));
    let apply = move |index: &mut PolicyIndex, received: Received| {
        if writes_statuses && StatusObjects::may_depend_on(&received.batch) {
            statuses.send_if_modified(|objects| Arc::make_mut(objects).apply(&received.batch));
        }
        index.apply_received(received);
    };
    let source = config.source.clone();
    let read = daemon.read_source(
        source,
        ("mesh-controller policy", rights::policy()),
        watched(config),
        &index,
        apply,
    );
    if !read.await? {
        return Ok(None);
    }
    if writes_statuses {
        write_statuses(daemon, config, objects).await?;
    }
    let calls = daemon.calls.clone().limited(config.max_streams);
    let inbound = InboundService::new(index.clone(), daemon.watch.clone(), &calls);
    let outbound = OutboundService::new(index, daemon.watch.clone(), &calls);
    let inbound = InboundServerPoliciesServer::new(inbound);
    Ok(Some(
        Routes::new(inbound).add_service(GrpcServer::new(outbound)),
    ))
}

/// Starts the writer of statuses. The objects are complete at this time, so that no status is
/// computed from a part of them.
async fn write_statuses(
    daemon: &Daemon,
    config: &Policy,
    objects: watch::Receiver<Arc<StatusObjects>>,
) -> Result<(), DaemonError> {
    let client = connect(
        &config.source.cluster,
        "mesh-controller policy-status",
        rights::policy(),
    )
    .await?;
    let settings = LeaseSettings {
        namespace: config.control_plane_namespace.clone(),
        name: LEASE.to_owned(),
        owner: Some(LeaseOwner {
            component: COMPONENT,
            deployment: config.policy_deployment_name.clone(),
        }),
        claimant: config.replica.claimant(),
        field_manager: "policy-controller",
    };
    write_objects(daemon, &client, settings, objects, config.patch_timeout_ms);
    Ok(())
}

fn watched(config: &Policy) -> &'static [WatchedKind] {
    let sources = &config.node_probe_sources;
    if sources.contains(&NodeProbeSource::PodCidrs) {
        kinds::POLICY_AND_NODES
    } else {
        kinds::POLICY
    }
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
        node_probe_sources: config.node_probe_sources.clone(),
        default_opaque_ports: config.default_opaque_ports.clone(),
        allow_request_headers: config.allow_l5d_request_headers,
    }
}

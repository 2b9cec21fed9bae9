//! Client of the controllers, over the API that proxies use.

use std::time::Duration;

use anyhow::Context;
use mesh_api::destination::LEVEL_HEADER;
use mesh_api::grpc::Channel;
use mesh_api::mesh::service::outbound_policies_client::OutboundPoliciesClient;
use mesh_api::proto::destination::GetDestination;
use mesh_api::proto::destination::destination_client::DestinationClient;
use mesh_api::proto::inbound::PortSpec;
use mesh_api::proto::inbound::inbound_server_policies_client::InboundServerPoliciesClient;
use mesh_core::endpoint::EndpointUpdate;
use mesh_core::policy::inbound::ServerPolicy;
use mesh_core::policy::outbound::{OutboundPolicy, Target};
use mesh_core::profile::Profile;
use tokio_stream::StreamExt;

use super::Mesh;
use crate::clients::grpc;
use crate::exit::Failure;
use crate::host::control_plane::Controllers;
use crate::resource::{MeshPod, Scope};

const DESTINATION_PORT: u16 = 8086;
pub(crate) const POLICY_PORT: u16 = 8090;

/// Component, container and admin port of each controller; the names and ports are Linkerd's.
pub(crate) const ADMIN_PORTS: [(&str, &str, u16); 5] = [
    ("identity", "identity", 9990),
    ("destination", "destination", 9996),
    ("destination", "policy", 9990),
    ("destination", "sp-validator", 9997),
    ("proxy-injector", "proxy-injector", 9995),
];

/// The controllers that answer a query.
#[derive(Clone, Copy)]
pub(crate) enum Source<'a> {
    Mesh {
        mesh: &'a Mesh,
        /// The pod of the destination controller; `None` selects any ready one.
        pod: Option<&'a str>,
    },
    /// The controllers of the mesh that this machine has joined.
    Host(&'a Controllers),
}

/// The target of a query and the client on whose behalf it is sent.
#[derive(Clone, Copy)]
pub(crate) struct QueryContext<'a> {
    pub(crate) source: Source<'a>,
    /// The context token: proxies name their namespace and node in it.
    pub(crate) token: &'a str,
}

/// The controller sends no update for a destination without endpoints; everything else it sends
/// immediately.
const FIRST_UPDATE_TIMEOUT: Duration = Duration::from_secs(3);

/// Returns the endpoints of `authority`; the update is empty if there are none.
pub(crate) async fn endpoints(
    query: &QueryContext<'_>,
    authority: &str,
) -> anyhow::Result<EndpointUpdate> {
    let (update, _level) = endpoints_of_level(query, authority).await?;
    Ok(update)
}

/// Returns the endpoints of `authority`, and the level of locality that they share with the client
/// if the Service has fail-over.
pub(crate) async fn endpoints_of_level(
    query: &QueryContext<'_>,
    authority: &str,
) -> anyhow::Result<(EndpointUpdate, Option<String>)> {
    let mut client = DestinationClient::new(channel(query, DESTINATION_PORT).await?);
    let request = GetDestination {
        scheme: "k8s".to_owned(),
        path: authority.to_owned(),
        context_token: query.token.to_owned(),
    };
    let response = client
        .get(request)
        .await
        .with_context(|| format!("look up the endpoints of {authority}"))?;
    let level = response.metadata().get(LEVEL_HEADER);
    let level = level.and_then(|level| level.to_str().ok().map(str::to_owned));
    let mut stream = response.into_inner();
    let update = match tokio::time::timeout(FIRST_UPDATE_TIMEOUT, stream.next()).await {
        Ok(Some(update)) => mesh_api::destination::endpoint_update(update?)?.update,
        Ok(None) | Err(_) => EndpointUpdate::Empty { exists: true },
    };
    Ok((update, level))
}

pub(crate) async fn profile(query: &QueryContext<'_>, target: &str) -> anyhow::Result<Profile> {
    let mut client = DestinationClient::new(channel(query, DESTINATION_PORT).await?);
    let request = GetDestination {
        scheme: "k8s".to_owned(),
        path: target.to_owned(),
        context_token: query.token.to_owned(),
    };
    let mut stream = client
        .get_profile(request)
        .await
        .with_context(|| format!("look up the profile of {target}"))?
        .into_inner();
    let first = tokio::time::timeout(FIRST_UPDATE_TIMEOUT, stream.next()).await;
    let profile = first.map_err(|_elapsed| {
        Failure::TimedOut(format!(
            "no profile of {target} within {} s",
            FIRST_UPDATE_TIMEOUT.as_secs()
        ))
    })?;
    Ok(mesh_api::destination::profile(
        profile.context("the controller closed the stream")??,
    )?)
}

pub(crate) async fn inbound_policy(
    query: &QueryContext<'_>,
    workload: &str,
    port: u16,
) -> anyhow::Result<ServerPolicy> {
    let mut client = InboundServerPoliciesClient::new(channel(query, POLICY_PORT).await?);
    let request = PortSpec {
        workload: workload.to_owned(),
        port: port.into(),
    };
    let server = client
        .get_port(request)
        .await
        .with_context(|| format!("look up the policy of {workload} port {port}"))?;
    Ok(mesh_api::inbound::server_policy(server.into_inner())?)
}

pub(crate) async fn outbound_policy(
    query: &QueryContext<'_>,
    target: &Target,
) -> anyhow::Result<OutboundPolicy> {
    let mut client = OutboundPoliciesClient::new(channel(query, POLICY_PORT).await?);
    let request = mesh_api::outbound::traffic_spec(query.token, target);
    let policy = client
        .get(request)
        .await
        .context("look up the outbound policy")?;
    Ok(mesh_api::outbound::extended_policy(policy.into_inner())?.policy)
}

async fn channel(query: &QueryContext<'_>, port: u16) -> anyhow::Result<Channel> {
    let (mesh, pod) = match query.source {
        Source::Mesh { mesh, pod } => (mesh, pod),
        Source::Host(controllers) => return controllers.channel(port == DESTINATION_PORT).await,
    };
    let pod = controller(mesh, pod).await?;
    let connection = mesh.connect(&pod, port).await?;
    grpc::channel(
        connection,
        &format!("the controller in pod {pod} at port {port}"),
    )
    .await
}

async fn controller(mesh: &Mesh, name: Option<&str>) -> anyhow::Result<MeshPod> {
    let namespace = mesh.control_namespace().to_owned();
    let pods = mesh.pods(&Scope::Namespace(namespace)).await?;
    let Some(name) = name else {
        return ready(pods);
    };
    let found = pods.into_iter().find(|pod| pod.name == name);
    found.ok_or_else(|| {
        Failure::Input(format!("pod {name:?} of the control plane does not exist")).into()
    })
}

/// Returns a ready pod of the destination and policy controllers, of the pods of the control plane.
pub(crate) fn ready(pods: Vec<MeshPod>) -> anyhow::Result<MeshPod> {
    let is_ready = |pod: &MeshPod| pod.component.as_deref() == Some("destination") && pod.ready;
    pods.into_iter().find(is_ready).ok_or_else(|| {
        Failure::Unreachable(
            "the destination controller has no ready pod; `meshctl check` shows the reason"
                .to_owned(),
        )
        .into()
    })
}

//! Questions to the controllers, over the same API that proxies use.

use std::{net::SocketAddr, time::Duration};

use anyhow::Context;
use mesh_api::proto::{
    destination::{GetDestination, destination_client::DestinationClient},
    inbound::{PortSpec, inbound_server_policies_client::InboundServerPoliciesClient},
    outbound::outbound_policies_client::OutboundPoliciesClient,
};
use mesh_core::{
    endpoint::EndpointUpdate,
    policy::{
        inbound::ServerPolicy,
        outbound::{OutboundPolicy, Target},
    },
    profile::Profile,
};
use tokio_stream::StreamExt;
use tonic::transport::{Channel, Endpoint};

use super::Node;
use crate::exit::Failure;

const DESTINATION_PORT: u16 = 8086;
const POLICY_PORT: u16 = 8090;

/// A destination without endpoints sends nothing; the controllers answer everything else at once.
const PATIENCE: Duration = Duration::from_secs(3);

/// The endpoints of `authority`; empty when the controller knows none.
pub(crate) async fn endpoints(node: &Node, authority: &str) -> anyhow::Result<EndpointUpdate> {
    let mut client = DestinationClient::new(channel(node, DESTINATION_PORT).await?);
    let request = GetDestination {
        scheme: "k8s".to_owned(),
        path: authority.to_owned(),
        context_token: String::new(),
    };
    let mut stream = client
        .get(request)
        .await
        .with_context(|| format!("look up the endpoints of {authority}"))?
        .into_inner();
    match tokio::time::timeout(PATIENCE, stream.next()).await {
        Ok(Some(update)) => Ok(mesh_api::destination::endpoint_update(update?)?.update),
        Ok(None) | Err(_) => Ok(EndpointUpdate::Empty { exists: true }),
    }
}

pub(crate) async fn profile(node: &Node, target: &str) -> anyhow::Result<Profile> {
    let mut client = DestinationClient::new(channel(node, DESTINATION_PORT).await?);
    let request = GetDestination {
        scheme: "k8s".to_owned(),
        path: target.to_owned(),
        context_token: String::new(),
    };
    let mut stream = client
        .get_profile(request)
        .await
        .with_context(|| format!("look up the profile of {target}"))?
        .into_inner();
    let first = tokio::time::timeout(PATIENCE, stream.next()).await;
    let profile = first.map_err(|_elapsed| {
        Failure::TimedOut(format!(
            "no profile of {target} within {} s",
            PATIENCE.as_secs()
        ))
    })?;
    Ok(mesh_api::destination::profile(
        profile.context("the controller closed the stream")??,
    )?)
}

pub(crate) async fn inbound_policy(
    node: &Node,
    workload: &str,
    port: u16,
) -> anyhow::Result<ServerPolicy> {
    let mut client = InboundServerPoliciesClient::new(channel(node, POLICY_PORT).await?);
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
    node: &Node,
    source: &str,
    target: &Target,
) -> anyhow::Result<OutboundPolicy> {
    let mut client = OutboundPoliciesClient::new(channel(node, POLICY_PORT).await?);
    let request = mesh_api::outbound::traffic_spec(source, target);
    let policy = client
        .get(request)
        .await
        .context("look up the outbound policy")?;
    Ok(mesh_api::outbound::outbound_policy(policy.into_inner())?)
}

async fn channel(node: &Node, port: u16) -> anyhow::Result<Channel> {
    let pods = node.pods()?;
    let pod = pods
        .iter()
        .find(|pod| pod.component.as_deref() == Some("destination") && pod.ready);
    let pod = pod.ok_or_else(|| Failure::Unreachable("no ready pod of the destination controller; `meshctl check` says what is wrong with it".to_owned()))?;
    let address = SocketAddr::new(pod.address()?, port);
    let endpoint = Endpoint::from_shared(format!("http://{address}"))?.connect_timeout(PATIENCE);
    endpoint
        .connect()
        .await
        .with_context(|| format!("connect to the controller in pod {pod} at {address}"))
}

//! Follows the policy of one of this pod's ports.

use std::sync::Arc;

use mesh_api::proto::inbound::PortSpec;
use mesh_core::policy::inbound::ServerPolicy;
use tokio::sync::watch;
use tonic::Code;

use super::Context;
use crate::config::Inbound;
use crate::control::follow::{Event, Then, follow};
use crate::control::{self, stream};

/// What a port is judged by until the policy service answers.
pub(super) fn default_policy(config: &Inbound, port: u16) -> ServerPolicy {
    config
        .default_policy
        .server_policy(
            &config.cluster_networks,
            config.detect_timeout,
            config.opaque_ports.contains(port),
        )
        .completed()
}

const WATCH_PORT: &str = "/io.linkerd.proxy.inbound.InboundServerPolicies/WatchPort";

/// Publishes every policy the service sends for `port`.
pub(super) async fn keep(
    context: Arc<Context>,
    port: u16,
    policy: watch::Sender<Arc<ServerPolicy>>,
) {
    context.policy.ready().await;
    let open = || {
        let spec = PortSpec {
            workload: context.config.discovery.workload.to_string(),
            port: port.into(),
        };
        stream::open(context.policy.clone(), WATCH_PORT, spec)
    };
    follow(context.policy_limits, context.backoff(), open, |event| {
        let answered = matches!(event, Event::Message { .. });
        let then = on_event(port, event, &policy);
        if answered || then == Then::Stop {
            context.policy_answered(port);
        }
        then
    })
    .await;
}

fn on_event(
    port: u16,
    event: Event<mesh_api::proto::inbound::Server>,
    policy: &watch::Sender<Arc<ServerPolicy>>,
) -> Then {
    match event {
        Event::Message { message, .. } => match mesh_api::inbound::server_policy(message) {
            Ok(new) => publish(policy, new.completed()),
            // The last policy that could be read stays: opening the port or closing it would both be guesses.
            Err(error) => {
                tracing::error!(port, %error, "Ignored an inbound policy that cannot be used");
            }
        },
        Event::Failed(status) => {
            tracing::debug!(
                port,
                reason = control::reason(&status),
                "Inbound policy stream failed"
            );
            if matches!(
                status.code(),
                Code::InvalidArgument | Code::FailedPrecondition
            ) {
                tracing::warn!(
                    port,
                    reason = control::reason(&status),
                    "The policy service refuses to watch this port; its present policy stays in force"
                );
                return Then::Stop;
            }
        }
    }
    Then::Retry
}

fn publish(policy: &watch::Sender<Arc<ServerPolicy>>, new: ServerPolicy) {
    policy.send_if_modified(|current| {
        let changed = **current != new;
        if changed {
            *current = Arc::new(new);
        }
        changed
    });
}

//! Follows the policy of one of this pod's ports.

use std::sync::Arc;

use mesh_api::proto::inbound::PortSpec;
use mesh_core::meta::Meta;
use mesh_core::policy::inbound::{DefaultPolicy, ServerPolicy};
use tokio::sync::watch;
use tonic::{Code, Status};

use super::ports::{Basis, Current, Usage};
use super::{ASK_AGAIN, Context};
use crate::config::Inbound;
use crate::control::follow::{Event, Then, follow};
use crate::control::{self, stream};

/// What a port is judged by that the policy service has never answered for.
pub(super) fn default_policy(config: &Inbound, port: u16) -> ServerPolicy {
    of_default(config.default_policy, config, port)
}

/// What a port is judged by whose own policy is not known: every connection but those of the pod
/// itself is refused. `name` says why.
pub(super) fn refusing(config: &Inbound, port: u16, name: &str) -> ServerPolicy {
    ServerPolicy {
        meta: Meta::new_default(name),
        ..of_default(DefaultPolicy::Deny, config, port)
    }
}

fn of_default(policy: DefaultPolicy, config: &Inbound, port: u16) -> ServerPolicy {
    policy
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
    policy: watch::Sender<Current>,
    usage: Arc<Usage>,
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
        usage.set_away(matches!(event, Event::Failed(_)));
        match event {
            Event::Message { message, .. } => {
                let new = read(&context, port, message);
                publish(&policy, new);
                Then::Retry
            }
            Event::Failed(status) => on_failure(port, &status),
        }
    })
    .await;
}

/// What the policy service says. What cannot be read refuses: opening the port, or leaving it as
/// open as it was, would be a guess.
fn read(context: &Context, port: u16, message: mesh_api::proto::inbound::Server) -> ServerPolicy {
    match mesh_api::inbound::server_policy(message) {
        Ok(new) => {
            context.policy_known(port);
            new.completed()
        }
        Err(error) => {
            tracing::error!(
                port,
                %error,
                "The inbound policy of this port cannot be read; clients are refused until the policy service sends one that can"
            );
            refusing(&context.config.inbound, port, "unreadable")
        }
    }
}

fn on_failure(port: u16, status: &Status) -> Then {
    let reason = control::reason(status);
    if matches!(
        status.code(),
        Code::InvalidArgument | Code::FailedPrecondition
    ) {
        tracing::warn!(
            port,
            reason,
            "The policy service refuses to watch this port; its present policy stays in force"
        );
        return Then::RetryAfter(ASK_AGAIN);
    }
    tracing::debug!(port, reason, "Inbound policy stream failed");
    Then::Retry
}

fn publish(policy: &watch::Sender<Current>, new: ServerPolicy) {
    policy.send_if_modified(|current| {
        let is_new = *current.policy != new;
        if is_new {
            current.policy = Arc::new(new);
        }
        let is_first = current.basis != Basis::Answer;
        current.basis = Basis::Answer;
        is_new || is_first
    });
}

//! Receives the policy of one of this pod's ports.

use std::sync::Arc;

use mesh_api::proto::inbound::PortSpec;
use mesh_core::meta::Meta;
use mesh_core::policy::inbound::{DefaultPolicy, ServerPolicy};
use tonic::{Code, Status};

use super::ports::{CurrentPolicy, PolicySource, PortUsage};
use super::{Context, RETRY_REJECTED};
use crate::config::Inbound;
use crate::control::follow::{Event, RetryDecision, follow};
use crate::control::{self, stream};
use crate::watch;

/// Returns the policy of a port until the policy service has responded.
pub(super) fn default_policy(config: &Inbound, port: u16) -> ServerPolicy {
    server_policy(config.default_policy, config, port)
}

/// Returns the policy of a port whose own policy is lost or invalid: it allows only connections
/// from the pod itself. `name` is the reason.
pub(super) fn deny_policy(config: &Inbound, port: u16, name: &str) -> ServerPolicy {
    ServerPolicy {
        meta: Meta::new_default(name),
        ..server_policy(DefaultPolicy::Deny, config, port)
    }
}

fn server_policy(policy: DefaultPolicy, config: &Inbound, port: u16) -> ServerPolicy {
    policy
        .server_policy(
            &config.cluster_networks,
            config.detect_timeout,
            config.opaque_ports.contains(port),
        )
        .completed()
}

const WATCH_PORT: &str = "/io.linkerd.proxy.inbound.InboundServerPolicies/WatchPort";

/// Publishes every policy that the policy service sends for `port`.
pub(super) async fn run(
    context: Arc<Context>,
    port: u16,
    policy: watch::Sender<CurrentPolicy>,
    usage: Arc<PortUsage>,
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
        usage.set_unavailable(matches!(event, Event::Failed(_)));
        match event {
            Event::Message { message, .. } => {
                let new = read(&context, port, message);
                publish(&policy, new);
                RetryDecision::Retry
            }
            Event::Failed(status) => on_failure(port, &status),
        }
    })
    .await;
}

/// Converts a policy of the policy service. An invalid policy denies all clients: to open the port,
/// or to keep the previous policy, would be a guess.
fn read(context: &Context, port: u16, message: mesh_api::proto::inbound::Server) -> ServerPolicy {
    match mesh_api::inbound::server_policy(message) {
        Ok(new) => {
            context.record_valid_policy(port);
            new.completed()
        }
        Err(error) => {
            tracing::error!(
            port,
            %error,
            "Invalid inbound policy: clients are denied until the policy service sends a valid one"
            );
            deny_policy(&context.config.inbound, port, "unreadable")
        }
    }
}

fn on_failure(port: u16, status: &Status) -> RetryDecision {
    let reason = control::reason(status);
    if matches!(
        status.code(),
        Code::InvalidArgument | Code::FailedPrecondition
    ) {
        tracing::warn!(
            port,
            reason,
            "The policy service rejected the watch of this port; the current policy stays in force"
        );
        return RetryDecision::RetryAfter(RETRY_REJECTED);
    }
    tracing::debug!(port, reason, "Inbound policy stream failed");
    RetryDecision::Retry
}

fn publish(policy: &watch::Sender<CurrentPolicy>, new: ServerPolicy) {
    policy.send_if_modified(|current| {
        let is_new = *current.policy != new;
        if is_new {
            current.policy = Arc::new(new);
        }
        let is_first = current.source != PolicySource::Received;
        current.source = PolicySource::Received;
        is_new || is_first
    });
}

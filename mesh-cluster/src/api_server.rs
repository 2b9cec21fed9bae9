//! The client of the API server, and the parts that its users share: backoff, events, watches, rate
//! limits.
//!
//! Creating a client does no I/O to the server. The first request shows whether it is reachable,
//! and each caller handles an unreachable API server.

use std::time::Duration;

use http::HeaderValue;
use http::header::USER_AGENT;
use kube::config::{InClusterError, KubeConfigOptions, Kubeconfig, KubeconfigError};
use kube::{Client, Config};
use mesh_core::rights::Right;

mod backoff;
mod events;
mod explain;
mod flags;
mod guard;
mod lease;
mod rate_limit;
mod retry;
mod watch;

pub use self::flags::ClusterFlags;
pub use self::rate_limit::{Rate, RateLimiter};
pub use self::{
    backoff::Backoff,
    events::{Events, ObjectEvent, Severity, rights as event_rights},
    explain::explain,
    lease::{Leadership, LeaseSettings, LeaseTask, MAX_WRITE_DURATION, rights as lease_rights},
    rate_limit::TokenBucket,
    retry::retry_while_unreachable,
    watch::{requires_new_watch, watch_error, watch_objects},
};

/// Why there is no client.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    #[error("cannot use the kubeconfig {path}")]
    Kubeconfig {
        path: String,
        source: KubeconfigError,
    },
    #[error(
        "not running in a pod: the ServiceAccount's files or KUBERNETES_SERVICE_HOST are missing; use --kubeconfig outside of a cluster"
    )]
    NotInCluster(#[source] InClusterError),
    #[error("cannot create a client of the API server")]
    Client(#[source] kube::Error),
}

/// Timeout of connecting to the API server. The default of kube is 30 s.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Returns a client of the configured API server. `program`, with its command, identifies this
/// process in audit logs.
/// Calls beyond `rights` are refused before they are sent.
pub async fn connect(
    flags: &ClusterFlags,
    program: &str,
    rights: Vec<Right>,
) -> Result<Client, ConnectError> {
    let mut config = match &flags.kubeconfig {
        Some(path) => {
            let error = |source| ConnectError::Kubeconfig {
                path: path.display().to_string(),
                source,
            };
            let options = KubeConfigOptions {
                context: flags.context.clone(),
                ..KubeConfigOptions::default()
            };
            let file = Kubeconfig::read_from(path).map_err(error)?;
            Config::from_custom_kubeconfig(file, &options)
                .await
                .map_err(error)?
        }
        None => Config::incluster().map_err(ConnectError::NotInCluster)?,
    };
    config.connect_timeout = Some(CONNECT_TIMEOUT);
    let agent = format!(
        "{}/{}",
        program.replace(' ', "-"),
        env!("CARGO_PKG_VERSION")
    );
    if let Ok(agent) = HeaderValue::from_str(&agent) {
        config.headers.push((USER_AGENT, agent));
    }
    let client = Client::try_from(config).map_err(ConnectError::Client)?;
    Ok(guard::restrict(client, program, rights))
}

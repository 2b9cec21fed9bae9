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
mod deadline;
mod events;
mod explain;
mod flags;
mod guard;
mod lease;
mod linked;
mod pace;
mod rate_limit;
mod retry;
mod watch;

pub use self::flags::ClusterFlags;
pub use self::rate_limit::{Rate, RateLimiter};
pub use self::{
    backoff::Backoff,
    events::{Events, ObjectEvent, Severity, rights as event_rights},
    explain::explain,
    lease::{
        Leadership, LeaseOwner, LeaseSettings, LeaseTask, MAX_WRITE_DURATION,
        owner_rights as lease_owner_rights,
    },
    linked::{LinkedKubeconfig, LinkedKubeconfigError},
    rate_limit::TokenBucket,
    retry::{is_transient, retry_while_unreachable},
    watch::{WATCH_SECONDS, requires_new_watch, watch_error, watch_objects},
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
    #[cfg(feature = "simulation")]
    if let Some(dial) = &flags.simulated {
        let config = configured(dial.config(), program);
        let client = dial.client(&config).map_err(ConnectError::Client)?;
        return Ok(guard::restrict(client, program, rights));
    }
    let config = match &flags.kubeconfig {
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
    let client = Client::try_from(configured(config, program)).map_err(ConnectError::Client)?;
    Ok(guard::restrict(client, program, rights))
}

/// Adds the settings that all API servers share.
fn configured(mut config: Config, program: &str) -> Config {
    config.connect_timeout = Some(CONNECT_TIMEOUT);
    // kube would repeat requests that are refused with 429 or 503 up to 15 times, first after 5 ms
    // and then after up to 1000 s, or when the API server asks for it, without a limit. Callers
    // have delays of their own, and say that the API server refuses.
    config.default_retry = false;
    let agent = format!(
        "{}/{}",
        program.replace(' ', "-"),
        env!("CARGO_PKG_VERSION")
    );
    if let Ok(agent) = HeaderValue::from_str(&agent) {
        config.headers.push((USER_AGENT, agent));
    }
    config
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use http::StatusCode;
    use k8s_openapi::api::core::v1::Pod;
    use kube::Api;
    use kube::api::ListParams;
    use mesh_core::rights;
    use mesh_test_support::kube_api;

    use super::*;

    #[tokio::test]
    async fn request_that_is_refused_is_not_repeated_by_the_client() {
        let asked = Arc::new(AtomicUsize::new(0));
        let counter = asked.clone();
        let server = kube_api::start(move |_request| {
            counter.fetch_add(1, Ordering::Relaxed);
            async { kube_api::failure(StatusCode::TOO_MANY_REQUESTS, "busy") }
        });
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("kubeconfig");
        kube_api::write_kubeconfig(&path, server.await);
        let flags = ClusterFlags {
            kubeconfig: Some(path),
            ..ClusterFlags::default()
        };
        let rights = rights::all("", "pods", &["list"]).collect();
        let client = connect(&flags, "test", rights).await.unwrap();
        let pods: Api<Pod> = Api::all(client);
        let error = pods.list(&ListParams::default()).await.unwrap_err();
        assert!(
            matches!(&error, kube::Error::Api(status) if status.code == 429),
            "{error:?}"
        );
        assert_eq!(asked.load(Ordering::Relaxed), 1);
    }
}

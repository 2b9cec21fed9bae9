//! The API server: a connection to it, and what every user of that connection needs.
//!
//! Called by the [source](crate::source), by identity and by whatever else asks or tells the API
//! server something. Making a client does no I/O to the server: whether it answers is found out by
//! the first question, and each caller decides what an API server that is away means to it.

use std::{error::Error as _, time::Duration};

use http::{HeaderValue, header::USER_AGENT};
use kube::{
    Client, Config,
    config::{InClusterError, KubeConfigOptions, Kubeconfig, KubeconfigError},
};

use crate::config;

mod backoff;
mod events;
mod follow;
mod pace;

pub use self::pace::{Pace, Rate};
pub(crate) use self::{
    backoff::Backoff,
    events::{Events, Posting, Severity},
    follow::{follow, is_beyond_resuming, watch_error},
    pace::Allowance,
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
        "this is no pod of a cluster: the ServiceAccount's files or KUBERNETES_SERVICE_HOST are missing (give --kubeconfig to run elsewhere)"
    )]
    NotInCluster(#[source] InClusterError),
    #[error("cannot make a client of the API server")]
    Client(#[source] kube::Error),
}

/// An API server that does not even accept a connection is away. The library's own limit is 30 s.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// A client of the API server that the flags name. `service` is what audit logs call us.
pub(crate) async fn connect(
    flags: &config::Cluster,
    service: &str,
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
    let agent = format!("mesh-controller-{service}/{}", env!("CARGO_PKG_VERSION"));
    if let Ok(agent) = HeaderValue::from_str(&agent) {
        config.headers.push((USER_AGENT, agent));
    }
    Client::try_from(config).map_err(ConnectError::Client)
}

/// An error of the API server in one line. The library's own text repeats itself and prints
/// structs.
pub(crate) fn explain(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) if status.is_forbidden() => format!(
            "{} (are the roles of the chart installed, and bound to this ServiceAccount?)",
            status.message
        ),
        kube::Error::Api(status) if status.message.is_empty() => {
            format!("the API server answered {} {}", status.code, status.reason)
        }
        kube::Error::Api(status) => status.message.trim().to_owned(),
        // What happened is at the end of the chain: "connection refused", "certificate expired".
        error => {
            let mut causes = error.to_string();
            let mut cause = error.source();
            while let Some(inner) = cause {
                let text = inner.to_string();
                if !causes.contains(&text) {
                    causes = format!("{causes}: {text}");
                }
                cause = inner.source();
            }
            causes
        }
    }
}

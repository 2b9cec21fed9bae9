//! The way to the API server, and how its absence is told.

use std::{path::Path, time::Duration};

use kube::{
    Client, Config,
    config::{KubeConfigOptions, Kubeconfig},
};
use mesh_runtime::log::chain;

use super::Settings;
use crate::findings::Findings;

/// Between attempts to read the service account's files, which appear with the pod and change with
/// nothing else.
const RETRY: Duration = Duration::from_secs(10);

#[derive(Debug, thiserror::Error)]
enum ConnectError {
    #[error("cannot use the kubeconfig {path}")]
    Kubeconfig {
        path: String,
        #[source]
        source: kube::config::KubeconfigError,
    },
    #[error("cannot use the service account of this pod; outside of a cluster give --kubeconfig")]
    InCluster(#[source] kube::config::InClusterError),
    #[error("cannot prepare a connection to the API server")]
    Client(#[source] kube::Error),
}

/// Tells once that the API server is away, and once that it is back.
#[derive(Debug)]
pub(super) struct Availability<'a> {
    findings: &'a Findings,
    what: &'static str,
    is_away: bool,
}

impl<'a> Availability<'a> {
    /// `what` is what goes on without it, for the log.
    pub(super) fn new(findings: &'a Findings, what: &'static str) -> Self {
        Self {
            findings,
            what,
            is_away: false,
        }
    }

    pub(super) fn lost(&mut self, error: &dyn std::error::Error) {
        let error = chain(error);
        if !self.is_away {
            tracing::warn!(
                error,
                "The API server does not answer, so that {}",
                self.what
            );
        }
        self.is_away = true;
        let problem = format!(
            "the API server does not answer ({error}), so that {}",
            self.what
        );
        self.findings.set_api_problem(Some(problem));
    }

    pub(super) fn found(&mut self) {
        if self.is_away {
            tracing::info!("The API server answers again");
            self.findings.set_api_problem(None);
        }
        self.is_away = false;
    }
}

/// A client, as soon as there is what it takes to make one. It need not reach anybody.
pub(super) async fn connect(settings: &Settings, findings: &Findings) -> Client {
    let mut availability = Availability::new(findings, "only the CNI plugin enrols pods");
    loop {
        match client(settings.kubeconfig.as_deref()).await {
            Ok(client) => {
                availability.found();
                return client;
            }
            Err(error) => availability.lost(&error),
        }
        tokio::time::sleep(RETRY).await;
    }
}

async fn client(kubeconfig: Option<&Path>) -> Result<Client, ConnectError> {
    let config = match kubeconfig {
        Some(path) => {
            let failed = |source| ConnectError::Kubeconfig {
                path: path.display().to_string(),
                source,
            };
            let kubeconfig = Kubeconfig::read_from(path).map_err(failed)?;
            Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default())
                .await
                .map_err(failed)?
        }
        None => Config::incluster().map_err(ConnectError::InCluster)?,
    };
    Client::try_from(config).map_err(ConnectError::Client)
}

//! Connects to the API server and reports when it is unreachable.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use http::Request;
use kube::client::Body;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use mesh_core::rights::Right;
use mesh_runtime::log::chain;

use super::{Settings, rights};
use crate::shared_status::SharedStatus;

/// Between attempts to read the service account's files, which are created with the pod.
const RETRY: Duration = Duration::from_secs(10);

#[derive(Debug, thiserror::Error)]
enum ConnectError {
    #[error("cannot use the kubeconfig {path}")]
    Kubeconfig {
        path: String,
        source: kube::config::KubeconfigError,
    },
    #[error("cannot use the service account of this pod; outside of a cluster give --kubeconfig")]
    InCluster(#[source] kube::config::InClusterError),
    #[error("cannot prepare a connection to the API server")]
    Client(#[source] kube::Error),
}

/// Logs once that the API server is unreachable, and once that it is reachable again.
#[derive(Debug)]
pub(super) struct Availability<'a> {
    shared_status: &'a SharedStatus,
    consequence: &'static str,
    is_unavailable: bool,
}

impl<'a> Availability<'a> {
    /// `consequence` names what works without the API server, for the log.
    pub(super) fn new(shared_status: &'a SharedStatus, consequence: &'static str) -> Self {
        Self {
            shared_status,
            consequence,
            is_unavailable: false,
        }
    }

    pub(super) fn report_failure(&mut self, error: &dyn std::error::Error) {
        let error = chain(error);
        if !self.is_unavailable {
            tracing::warn!(
                error,
                "The API server is unreachable, so that {}",
                self.consequence
            );
        }
        self.is_unavailable = true;
        let problem = format!(
            "the API server is unreachable ({error}), so that {}",
            self.consequence
        );
        self.shared_status.set_api_problem(Some(problem));
    }

    pub(super) fn report_success(&mut self) {
        if self.is_unavailable {
            tracing::info!("The API server is reachable again");
            self.shared_status.set_api_problem(None);
        }
        self.is_unavailable = false;
    }
}

/// Returns a client once its configuration can be read. Does not connect yet.
pub(super) async fn connect(settings: &Settings, shared_status: &SharedStatus) -> Client {
    let mut availability = Availability::new(shared_status, "only the CNI plugin enrols pods");
    loop {
        match client(settings.kubeconfig.as_deref()).await {
            Ok(client) => {
                availability.report_success();
                return client;
            }
            Err(error) => availability.report_failure(&error),
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
    let client = Client::try_from(config).map_err(ConnectError::Client)?;
    Ok(restrict(client))
}

/// Returns the client that refuses calls beyond the rights of the agent, as the API server does
/// with the role of the chart: tests with scripted API servers find what the list lacks.
fn restrict(client: Client) -> Client {
    let rights: Arc<[Right]> = rights::of_agent().into();
    let (namespace, valid_until) = (client.default_namespace().to_owned(), *client.valid_until());
    let restricted = tower::service_fn(move |request: Request<Body>| {
        let (method, uri) = (request.method().as_str(), request.uri());
        let asked = (method, uri.path(), uri.query().unwrap_or_default());
        let checked = mesh_core::rights::check("mesh-agent", &rights, asked);
        let client = client.clone();
        async move {
            checked?;
            let response = client.send(request).await?;
            Ok::<_, tower::BoxError>(response)
        }
    });
    Client::new(restricted, namespace).with_valid_until(valid_until)
}

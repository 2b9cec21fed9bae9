//! Makes one connection from the client's pod, by its node agent, and sends the request.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::Context as _;
use http::Method;
use serde::Deserialize;

use super::super::facts::{Connection, Exchange, RequestLine, Target};
use super::exchange;
use crate::mesh::Mesh;
use crate::mesh::agent_process::AgentProcess;
use crate::resource::MeshPod;

pub(super) struct Attempt<'a> {
    pub(super) mesh: &'a Mesh,
    pub(super) client: &'a MeshPod,
    pub(super) node: &'a str,
    pub(super) target: &'a Target,
    pub(super) request: Option<&'a (Method, String)>,
    pub(super) timeout: Duration,
}

/// The first line of `mesh-agent dial`.
#[derive(Deserialize)]
struct Dialled {
    connected: Local,
}

#[derive(Deserialize)]
struct Local {
    local: SocketAddr,
}

impl Attempt<'_> {
    pub(super) async fn run(&self) -> (Option<RequestLine>, Connection) {
        let request = self.request.map(RequestLine::marked);
        let (process, local) = match self.dial().await {
            Ok(dialled) => dialled,
            Err(error) => return (request, Connection::Failed(format!("{error:#}"))),
        };
        let exchange = self.exchange(process, request.as_ref()).await;
        (request, Connection::Made { local, exchange })
    }

    async fn dial(&self) -> anyhow::Result<(AgentProcess, SocketAddr)> {
        let pod = self.client.to_string();
        let address = self.target.address.to_string();
        let arguments = ["dial", "--pod", &pod, &address];
        let mut process = self.mesh.run_agent(self.node, &arguments).await?;
        let line = process.first_line().await?;
        let dialled: Dialled = serde_json::from_str(&line)
            .with_context(|| format!("unexpected output of `mesh-agent dial`: {line}"))?;
        Ok((process, dialled.connected.local))
    }

    async fn exchange(&self, process: AgentProcess, request: Option<&RequestLine>) -> Exchange {
        match request {
            Some(request) => {
                exchange::send(process, request, &self.target.authority, self.timeout).await
            }
            None => exchange::watch(process).await,
        }
    }
}

impl RequestLine {
    /// Returns a request with a marker of its own, which distinguishes it from others.
    fn marked((method, path): &(Method, String)) -> Self {
        Self {
            method: method.clone(),
            path: path.clone(),
            marker: format!("{:016x}", rand::random::<u64>()),
        }
    }

    pub(super) fn unsent((method, path): &(Method, String)) -> Self {
        Self {
            method: method.clone(),
            path: path.clone(),
            marker: String::new(),
        }
    }
}

//! Client of the node agents of a cluster: reads JSON from the admin server of each agent pod.

use std::time::Duration;

use kube::Api;
use kube::api::{AttachParams, AttachedProcess, ListParams};
use mesh_k8s::kinds::{DaemonSet, Pod, ResourceExt};
use mesh_k8s::select;
use serde::de::DeserializeOwned;

use super::{Cluster, error};
use crate::clients::connection::Connection;
use crate::clients::{self, http};
use crate::exit::Failure;
use crate::resource::AgentReport;

/// The name of the agent's DaemonSet and container.
pub(crate) const NAME: &str = "mesh-agent";

/// The agent's program in its image.
const PROGRAM: &str = "/mesh-agent";

/// API server, kubelet and container runtime start a process within a second.
const EXEC_TIMEOUT: Duration = Duration::from_secs(10);

/// The default port of the agent's admin server.
const ADMIN_PORT: u16 = 9993;

impl Cluster {
    /// Returns the report of every agent pod. The failure of one agent is part of its report.
    pub(crate) async fn agents(&self) -> anyhow::Result<Vec<AgentReport>> {
        let pods = self.agent_pods(ListParams::default()).await?;
        let reports = pods
            .iter()
            .filter_map(|pod| Some((pod, pod.spec.as_ref()?.node_name.clone()?)))
            .map(|(pod, node)| self.query_agent(pod, node));
        let mut reports: Vec<AgentReport> = clients::concurrently(reports).await;
        reports.sort_by(|a, b| a.node.cmp(&b.node));
        Ok(reports)
    }

    /// Returns the report of the agent of one node.
    pub(crate) async fn agent_of(&self, node: &str) -> anyhow::Result<AgentReport> {
        let pod = self.agent_pod(node).await?;
        Ok(self.query_agent(&pod, node.to_owned()).await)
    }

    /// Starts a command of the agent in its pod on a node.
    pub(crate) async fn run_agent(
        &self,
        node: &str,
        arguments: &[&str],
    ) -> anyhow::Result<AttachedProcess> {
        let pod = self.agent_pod(node).await?;
        let (namespace, name) = (pod.namespace().unwrap_or_default(), pod.name_any());
        let what = format!(
            "run {} {} in pod {namespace}/{name}",
            NAME,
            arguments.first().unwrap_or(&"")
        );
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), &namespace);
        let streams = AttachParams::default()
            .container(NAME)
            .stdin(true)
            .stdout(true)
            .stderr(true);
        let command = std::iter::once(PROGRAM).chain(arguments.iter().copied());
        let command: Vec<&str> = command.collect();
        let started = tokio::time::timeout(EXEC_TIMEOUT, pods.exec(&name, command, &streams));
        let started = started.await.map_err(|_elapsed| {
            Failure::TimedOut(format!(
                "cannot {what}: no response within {} s",
                EXEC_TIMEOUT.as_secs()
            ))
        })?;
        started.map_err(|error| error::failed(&what, error))
    }

    async fn agent_pod(&self, node: &str) -> anyhow::Result<Pod> {
        let of_node = ListParams::default().fields(&format!("spec.nodeName={node}"));
        let mut pods = self.agent_pods(of_node).await?.into_iter();
        // An empty name also selects pods without a node.
        let is_there = |pod: &Pod| {
            let spec = pod.spec.as_ref();
            spec.and_then(|spec| spec.node_name.as_deref()) == Some(node)
        };
        let found = pods.find(is_there);
        let missing = || Failure::Unreachable(format!("node {node} has no node agent"));
        Ok(found.ok_or_else(missing)?)
    }

    /// Lists the agent pods that the parameters select.
    async fn agent_pods(&self, params: ListParams) -> anyhow::Result<Vec<Pod>> {
        let failed = |error| error::failed("list the node agents", error);
        let namespace = self.agent_namespace().await;
        let sets: Api<DaemonSet> = Api::namespaced(self.client.clone(), &namespace);
        let Some(set) = sets.get_opt(NAME).await.map_err(failed)? else {
            return Ok(Vec::new());
        };
        let labels = set
            .spec
            .and_then(|spec| spec.selector.match_labels)
            .unwrap_or_default();
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), &namespace);
        let params = params.labels(&select::text(&labels));
        Ok(pods.list(&params).await.map_err(failed)?.items)
    }

    async fn query_agent(&self, pod: &Pod, node: String) -> AgentReport {
        AgentReport {
            status: self.agent_json(pod, "/status").await,
            pods: self.agent_json(pod, "/pods").await,
            node,
        }
    }

    async fn agent_json<T: DeserializeOwned>(&self, pod: &Pod, path: &str) -> anyhow::Result<T> {
        let (namespace, name) = (pod.namespace().unwrap_or_default(), pod.name_any());
        let connection: Connection = self.forward(&namespace, &name, admin_port(pod)).await?;
        let body = http::get(connection, &format!("{namespace}/{name}"), path).await?;
        clients::read_json(&body, &format!("the agent {namespace}/{name}"))
    }
}

/// Returns the port of `--admin-addr`, which is one argument or two.
fn admin_port(pod: &Pod) -> u16 {
    let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
    let mut words = containers
        .filter(|container| container.name == NAME)
        .flat_map(|container| container.command.iter().chain(&container.args).flatten());
    while let Some(word) = words.next() {
        let address = match word.strip_prefix("--admin-addr") {
            Some("") => words.next().map(String::as_str),
            Some(rest) => rest.strip_prefix('='),
            None => continue,
        };
        let port = address.and_then(|address| address.rsplit(':').next()?.parse().ok());
        return port.unwrap_or(ADMIN_PORT);
    }
    ADMIN_PORT
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(args: &str, expect: u16) {
        let text = format!("spec: {{containers: [{{name: mesh-agent, args: {args}}}]}}");
        let pod: Pod = serde_norway::from_str(&text).unwrap();
        assert_eq!(admin_port(&pod), expect, "{args}");
    }

    #[test]
    fn admin_port_is_read_from_the_arguments() {
        check("[]", 9993);
        check("[--admin-addr, '127.0.0.1:19993']", 19993);
        check("['--tier=auto', '--admin-addr=[::1]:19994']", 19994);
        check("[--admin-addr]", 9993);
    }
}

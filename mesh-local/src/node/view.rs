//! Publishes the state of the node and responds to status requests.

use std::collections::{BTreeMap, BTreeSet};

use mesh_runtime::log::chain;

use super::Node;
use super::control::{NodeStatus, Target};
use crate::manifest::ObjectKey;
use crate::observer::{self, Observer};
use crate::pod::status;

impl Node {
    /// Publishes the state of pods and Services. A failure is logged and retried with the next
    /// change.
    pub(super) async fn publish(&mut self) {
        let hosts = self.context.settings.network.node_ips();
        let pods = self.entries.iter().map(|(key, entry)| {
            let state = entry.state.borrow();
            let mut pod = entry.workload.pod.clone();
            pod.status = Some(status::status(&pod, &state, &hosts));
            pod.metadata
                .deletion_timestamp
                .clone_from(&entry.stopped_at);
            (key.clone(), (pod, entry.stopped_at.is_some()))
        });
        let pods: BTreeMap<_, _> = pods.collect();
        let node = self.context.paths.name().as_str();
        let published = self
            .publisher
            .publish(
                node,
                &self.manifests,
                &self.workloads,
                &pods,
                self.values.as_ref(),
            )
            .await;
        match published {
            Ok(service_problems) => {
                self.problems
                    .retain(|problem| !problem.is_about("Service "));
                self.problems.extend(service_problems);
                self.publish_error = None;
            }
            Err(error) => {
                let message = chain(&error);
                tracing::error!("{message}");
                self.publish_error = Some(message);
            }
        }
    }

    pub(super) fn status(&self) -> NodeStatus {
        let pods = self.entries.values().map(|entry| {
            let mut summary = status::summary(&entry.workload.pod, &entry.state.borrow());
            if entry.stopped_at.is_some() {
                "Terminating".clone_into(&mut summary.status);
                summary.ready = false;
            }
            summary
        });
        let pods: Vec<_> = pods.collect();
        let wanted: BTreeSet<&ObjectKey> = self.workloads.pods.keys().collect();
        let running: BTreeSet<&ObjectKey> = self.entries.keys().collect();
        NodeStatus {
            name: self.context.paths.name().to_string(),
            manifests: self.context.settings.manifests.clone(),
            mesh: self.values.is_some(),
            tier: self.tier,
            ready: wanted == running
                && pods.iter().all(|pod| pod.ready)
                && self.publish_error.is_none(),
            services: self.publisher.services(),
            warnings: [&self.workloads.warnings[..], self.publish_error.as_slice()].concat(),
            problems: self.problems.clone(),
            pods,
        }
    }

    /// Returns a token of the observer of the node's proxies.
    pub(super) fn observer(&self) -> Result<Observer, String> {
        let Some(values) = &self.values else {
            return Err(
                "this node has no proxies: it was started with `meshctl local up --no-mesh`".into(),
            );
        };
        observer::issue(&self.context.signer, values).map_err(|error| chain(&error))
    }

    /// Returns the container that `exec` enters.
    pub(super) fn target(
        &self,
        pod: &ObjectKey,
        container: Option<&str>,
    ) -> Result<Target, String> {
        let Some(entry) = self.entries.get(pod) else {
            return Err(format!(
                "pod {pod} does not exist; `meshctl local status` lists the pods"
            ));
        };
        let spec = entry.workload.pod.spec.clone().unwrap_or_default();
        let name = match container {
            Some(name) => name.to_owned(),
            None => spec
                .containers
                .first()
                .map(|c| c.name.clone())
                .unwrap_or_default(),
        };
        if !mesh_k8s::pod::containers(&spec).any(|container| container.name == name) {
            let names: Vec<&str> = mesh_k8s::pod::containers(&spec)
                .map(|c| c.name.as_str())
                .collect();
            return Err(format!(
                "pod {pod} has no container {name:?}; its containers are {}",
                names.join(", ")
            ));
        }
        let state = entry.state.borrow();
        let pid = state.containers.get(&name).and_then(|state| state.pid());
        let Some(pid) = pid else {
            return Err(format!("container {name} of pod {pod} is not running"));
        };
        let uid = entry
            .workload
            .pod
            .metadata
            .uid
            .as_deref()
            .unwrap_or_default();
        Ok(Target {
            pid,
            task: self.context.paths.pod(uid).join(format!("{name}.json")),
            container: name,
        })
    }
}

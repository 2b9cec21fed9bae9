//! Reconciles the running pods with the manifests.

use std::collections::BTreeSet;
use std::sync::Arc;

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::{Entry, Node, NodeError, now};
use crate::control_plane::{self, Stage};
use crate::manifest::{self, ObjectKey};
use crate::pod::{self, NodeContext, PodState, PodTask, status};
use crate::workload::{self, NodeCapabilities, Workload};
use crate::{digest, image};

impl Node {
    /// Reads the manifests and computes the pods to run.
    pub(super) fn read_manifests(&mut self) -> Result<(), NodeError> {
        let NodeContext {
            settings, paths, ..
        } = &*self.context;
        let mut manifests = manifest::read_directory(&settings.manifests)?;
        manifests.retain_last_valid(&self.manifests);
        if let Some(values) = &self.values {
            control_plane::add(&mut manifests, paths, settings, values);
        }
        let has_image = |image: &str| image::find(settings, image).is_some();
        let capabilities = NodeCapabilities {
            has_image: &has_image,
        };
        let mut workloads = workload::compute(&manifests, self.values.as_ref(), &capabilities);
        workloads.retain_last_valid(&self.workloads);
        self.workloads = workloads;
        for warning in &self.workloads.warnings {
            tracing::warn!("{warning}");
        }
        self.problems = manifests.problems.clone();
        self.problems
            .extend(self.workloads.problems.iter().cloned());
        for problem in &self.problems {
            tracing::error!("{problem}");
        }
        self.manifests = Arc::new(manifests);
        Ok(())
    }

    /// Stops pods that are obsolete or changed, and starts missing ones. The replacement of a pod
    /// starts when its predecessor has been removed.
    pub(super) fn reconcile(&mut self) -> Result<(), NodeError> {
        for (key, entry) in &mut self.entries {
            let wanted = self.workloads.pods.get(key);
            if wanted.is_none_or(|wanted| wanted.digest != entry.workload.digest) {
                entry.stop();
            }
        }
        let missing: Vec<ObjectKey> = self
            .workloads
            .pods
            .keys()
            .filter(|key| !self.entries.contains_key(*key))
            .cloned()
            .collect();
        for key in missing {
            let due = control_plane::stage(&key) <= self.stage;
            if due && let Some(workload) = self.workloads.pods.get(&key).cloned() {
                self.start(key, workload)?;
            }
        }
        Ok(())
    }

    /// Advances to the next stage when all pods of the previous stages are ready.
    pub(super) fn advance(&mut self) -> Result<(), NodeError> {
        while self.stage < Stage::Others {
            let mut started = self
                .workloads
                .pods
                .keys()
                .filter(|key| control_plane::stage(key) <= self.stage);
            let ready = |key: &ObjectKey| {
                self.entries.get(key).is_some_and(|entry| {
                    status::is_ready(&entry.workload.pod, &entry.state.borrow())
                })
            };
            if !started.all(ready) {
                break;
            }
            self.stage = self.stage.next();
            self.reconcile()?;
        }
        Ok(())
    }

    pub(super) fn start(&mut self, key: ObjectKey, workload: Workload) -> Result<(), NodeError> {
        let uid = digest::random_uuid().map_err(NodeError::Random)?;
        let mut pod = workload.pod.clone();
        pod.metadata.uid = Some(uid.clone());
        pod.metadata.creation_timestamp = Some(now());
        if let Some(spec) = &mut pod.spec {
            spec.node_name = Some(self.context.paths.name().to_string());
        }
        tracing::info!(pod = %key, uid, "Starting pod");
        let task = PodTask {
            context: Arc::clone(&self.context),
            key: key.clone(),
            uid,
            pod: pod.clone(),
            manifests: Arc::clone(&self.manifests),
        };
        let (sender, state) = watch::channel(PodState::default());
        let stop = CancellationToken::new();
        let entry = Entry {
            workload: Workload { pod, ..workload },
            state: state.clone(),
            token: stop.clone(),
            stopped_at: None,
        };
        self.entries.insert(key.clone(), entry);
        self.pods.spawn(async move {
            Box::pin(pod::run(task, sender, stop)).await;
            key
        });
        let changed = Arc::clone(&self.changed);
        let mut watched = state;
        self.watchers.spawn(async move {
            while watched.changed().await.is_ok() {
                changed.notify_one();
            }
        });
        Ok(())
    }

    /// Stops all pods in the reverse order of their start, because proxies use the control plane
    /// until they exit.
    pub(super) async fn stop_all(&mut self) {
        for stage in [Stage::Others, Stage::ControlPlane, Stage::Identity] {
            let mut stopped = BTreeSet::new();
            for (key, entry) in &mut self.entries {
                if control_plane::stage(key) == stage {
                    entry.stop();
                    stopped.insert(key.clone());
                }
            }
            self.publish().await;
            while !stopped.is_empty() {
                match self.pods.join_next().await {
                    Some(Ok(key)) => {
                        stopped.remove(&key);
                        self.entries.remove(&key);
                    }
                    Some(Err(_)) => {}
                    None => break,
                }
            }
        }
        self.publish().await;
    }
}

//! Makes what runs what the manifests say.

use std::{collections::BTreeSet, sync::Arc};

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::{Entry, Node, NodeError, now};
use crate::{
    control_plane::{self, Stage},
    digest, image,
    manifest::{self, Key},
    pod::{self, Context, PodState, Task, status},
    workload::{self, Known, Workload},
};

impl Node {
    /// Reads the folder anew and computes what must run.
    pub(super) fn read(&mut self) -> Result<(), NodeError> {
        let Context {
            settings, instance, ..
        } = &*self.context;
        let mut manifests = manifest::read_folder(&settings.manifests)?;
        manifests.keep_last_good(&self.manifests);
        if let Some(values) = &self.values {
            control_plane::add(&mut manifests, instance, settings, values);
        }
        let has_image = |image: &str| image::find(settings, image).is_some();
        let known = Known {
            has_image: &has_image,
        };
        let mut workloads = workload::compute(&manifests, self.values.as_ref(), &known);
        workloads.keep_last_good(&self.workloads);
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

    /// Stops pods that are no longer wanted as they are, and starts those that are missing. A pod
    /// that is replaced starts when its predecessor is gone.
    pub(super) fn reconcile(&mut self) -> Result<(), NodeError> {
        for (key, entry) in &mut self.entries {
            let wanted = self.workloads.pods.get(key);
            if wanted.is_none_or(|wanted| wanted.digest != entry.workload.digest) {
                entry.end();
            }
        }
        let missing: Vec<Key> = self
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

    /// Goes on to the next stage when every pod of those before is ready.
    pub(super) fn advance(&mut self) -> Result<(), NodeError> {
        while self.stage < Stage::Others {
            let mut started = self
                .workloads
                .pods
                .keys()
                .filter(|key| control_plane::stage(key) <= self.stage);
            let ready = |key: &Key| {
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

    pub(super) fn start(&mut self, key: Key, workload: Workload) -> Result<(), NodeError> {
        let uid = digest::random_uuid().map_err(NodeError::Random)?;
        let mut pod = workload.pod.clone();
        pod.metadata.uid = Some(uid.clone());
        pod.metadata.creation_timestamp = Some(now());
        if let Some(spec) = &mut pod.spec {
            spec.node_name = Some(self.context.instance.name().to_string());
        }
        tracing::info!(pod = %key, uid, "start");
        let task = Task {
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
            stop: stop.clone(),
            ending: None,
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

    /// Ends every pod, in the reverse order of their start: proxies talk to the control plane until
    /// they end.
    pub(super) async fn stop_all(&mut self) {
        for stage in [Stage::Others, Stage::ControlPlane, Stage::Identity] {
            let mut stopped = BTreeSet::new();
            for (key, entry) in &mut self.entries {
                if control_plane::stage(key) == stage {
                    entry.end();
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

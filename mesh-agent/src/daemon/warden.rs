//! What the thread "node" does: answers requests, sweeps, and keeps logs and metrics of both.

use std::collections::BTreeMap;

use mesh_core::node::{
    Answer, Attachment, Collected, Enrolled, NodeStatus, Refusal, RepairKind, Request,
};
use mesh_runtime::log::chain;

use crate::{
    ebpf::{Loaded, PodCounters},
    findings::Findings,
    metrics::Metrics,
    node::{Care, Node, NodeError, by_verdict},
    repairs::Repairs,
    tier::Attached,
};

#[derive(Debug)]
pub struct Warden {
    node: Node,
    metrics: Metrics,
    /// What does not change while the agent runs, and the failures of the last sweep as warnings.
    status: NodeStatus,
    attached: Option<Attached>,
    findings: Findings,
    repairs: Repairs,
    /// Warnings of the start, which no sweep takes back.
    standing: Vec<String>,
}

impl Warden {
    pub fn new(
        node: Node,
        metrics: Metrics,
        status: NodeStatus,
        attached: Option<Attached>,
        findings: Findings,
        repairs: Repairs,
    ) -> Self {
        Self {
            node,
            metrics,
            standing: status.warnings.clone(),
            status,
            attached,
            findings,
            repairs,
        }
    }

    /// Takes over the pods that an earlier agent, or the plugin alone, enrolled.
    pub fn adopt(&mut self) {
        match self.node.look_after(true) {
            Ok(care) => {
                tracing::info!(
                    intact = care.intact,
                    repaired = care.repaired.len(),
                    gone = care.removed.len(),
                    "Adopted the enrolled pods"
                );
                self.note(&care);
            }
            Err(error) => tracing::error!(
                error = chain(&error),
                "The enrolled pods cannot be adopted; trying again with the next sweep"
            ),
        }
        self.count();
    }

    pub fn look_after(&mut self) {
        self.look_after_programs();
        match self.node.look_after(false) {
            Ok(care) => self.note(&care),
            Err(error) => tracing::error!(error = chain(&error), "The sweep failed"),
        }
        self.count();
    }

    pub fn answer(&mut self, request: &Request) -> Answer {
        let answer = match request {
            Request::Add(attachment) => self.add(attachment),
            Request::Del(id) => {
                // The pod's counters go with it.
                self.count();
                self.node.del(id).map(|()| Answer::Deleted)
            }
            Request::Check(attachment) => self.node.check(attachment).map(|()| Answer::Checked),
            Request::Status => Ok(Answer::Status(Box::new(self.status()))),
            Request::Pods => self.node.pods().map(Answer::Pods),
            Request::Gc(valid) => self
                .node
                .collect(valid)
                .map(|removed| Answer::Collected(Collected { removed })),
        };
        self.count();
        answer.unwrap_or_else(|error| {
            let refusal = refusal(&error);
            tracing::warn!("{}", refusal.message);
            Answer::Refused(refusal)
        })
    }

    /// A pod that runs and is not enrolled, as the API server and the node's processes say. Whoever
    /// asks tells of a refusal: he asks again and again.
    pub fn enrol_in_place(&mut self, attachment: &Attachment) -> Result<Enrolled, Refusal> {
        let result = self.node.add(attachment).map(|tier| Enrolled { tier });
        self.count();
        let enrolled = result.map_err(|error| refusal(&error))?;
        self.repairs
            .note(RepairKind::NotEnrolled, &attachment.pod.to_string());
        tracing::warn!(
            pod = %attachment.pod,
            tier = %enrolled.tier,
            netns = %attachment.netns.display(),
            "A meshed pod ran and was not enrolled; enrolled it in place"
        );
        Ok(enrolled)
    }

    /// Takes the redirection from every pod. Returns what could not be undone.
    pub fn release_all(self) -> Result<Vec<String>, NodeError> {
        self.node.release_all()
    }

    fn add(&self, attachment: &Attachment) -> Result<Answer, NodeError> {
        let result = self.node.add(attachment).map(|tier| Enrolled { tier });
        self.metrics
            .enrolled(result.as_ref().map_err(NodeError::reason));
        let enrolled = result?;
        tracing::info!(
            pod = %attachment.pod,
            tier = %enrolled.tier,
            netns = %attachment.netns.display(),
            "Enrolled"
        );
        Ok(Answer::Added(enrolled))
    }

    /// Says what can be said: what cannot be read is a warning, since a broken node is when
    /// somebody asks.
    fn status(&self) -> NodeStatus {
        let mut status = self.status.clone();
        match self.node.census() {
            Ok(census) => status.pods = census,
            Err(error) => status.warnings.push(chain(&error)),
        }
        match self.node.programs() {
            Ok(programs) => status.programs = programs,
            Err(error) => status.warnings.push(chain(&error)),
        }
        match self.node.counters() {
            Ok(counters) => status.connections = sum(&counters),
            Err(error) => status.warnings.push(chain(&error)),
        }
        self.findings.add_to(&mut status);
        status.repairs = self.repairs.of_last_day();
        status
    }

    /// Somebody may have detached a program by hand.
    fn look_after_programs(&self) {
        let Some(attached) = &self.attached else {
            return;
        };
        let before = attached.programs.attached().unwrap_or_default();
        match attached.look_after() {
            Ok(Loaded::Adopted) => {}
            Ok(Loaded::Replaced) => {
                let now = attached.programs.attached().unwrap_or_default();
                let missing: Vec<&str> = now
                    .into_iter()
                    .filter(|name| !before.contains(name))
                    .collect();
                let programs = missing.join(", ");
                tracing::warn!(
                    programs,
                    "Kernel programs were detached or unpinned by another program and have been attached again"
                );
                self.repairs.note(RepairKind::ProgramsDetached, &programs);
            }
            Ok(Loaded::Fresh) => {
                tracing::warn!(
                    "The pins of the kernel programs were deleted; the programs have been loaded again, and every pod is redirected again"
                );
                let pins = self.status.pin_dir.display().to_string();
                self.repairs.note(RepairKind::PinsDeleted, &pins);
            }
            Err(error) => tracing::error!(
                error = chain(&error),
                "The kernel programs cannot be kept attached"
            ),
        }
    }

    fn note(&mut self, care: &Care) {
        for (pod, found) in &care.repaired {
            tracing::warn!(%pod, found, "Put a pod's redirection right");
            self.repairs
                .note(RepairKind::Incomplete, &format!("{pod}: {found}"));
        }
        for pod in &care.readdressed {
            tracing::info!(%pod, "A pod's addresses changed; its redirection follows");
        }
        for pod in &care.removed {
            tracing::info!(%pod, "Forgot a pod that is gone");
        }
        // What stays wrong is said once, and shown by `status` for as long as it does.
        for failure in &care.failures {
            if !self.status.warnings.contains(failure) {
                tracing::error!("{failure}");
            }
        }
        self.status.warnings = [&self.standing[..], &care.failures].concat();
        self.metrics.cared(care);
    }

    fn count(&mut self) {
        match self.node.counters() {
            Ok(counters) => self.metrics.observe(&counters),
            Err(error) => tracing::warn!(error = chain(&error), "Cannot read the counters"),
        }
        match self.node.guard_counters() {
            Ok(counters) => {
                for pod in self.metrics.guarded(&counters) {
                    tracing::warn!(%pod, "A pod sent connection requests around its proxy");
                }
            }
            Err(error) => tracing::warn!(error = chain(&error), "Cannot read the guard's counters"),
        }
        match self.node.census() {
            Ok(census) => self.metrics.counted(&census),
            Err(error) => tracing::warn!(error = chain(&error), "Cannot count the pods"),
        }
    }
}

fn refusal(error: &NodeError) -> Refusal {
    Refusal {
        reason: error.reason(),
        message: chain(error),
    }
}

/// Over all pods.
fn sum(counters: &[PodCounters]) -> BTreeMap<String, u64> {
    let mut sums = BTreeMap::new();
    for (verdict, count) in counters.iter().flat_map(by_verdict) {
        *sums.entry(verdict).or_default() += count;
    }
    sums
}

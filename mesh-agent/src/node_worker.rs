//! The thread "node": serves requests, reconciles, and updates logs and metrics of both.

use std::collections::BTreeMap;

use mesh_core::node::{
    Attachment, Collected, Enrolled, NodeStatus, PodRef, Refusal, RefusalReason, RepairKind,
    Request, Response,
};
use mesh_runtime::log::chain;

use crate::ebpf::{Loaded, PodCounters, TraceLog};
use crate::metrics::Metrics;
use crate::node::{Node, NodeError, ReconcileReport, by_verdict};
use crate::node_handle::Worker;
use crate::repairs::Repairs;
use crate::shared_status::SharedStatus;
use crate::tier::AttachedPrograms;

#[derive(Debug)]
pub(crate) struct NodeWorker {
    node: Node,
    metrics: Metrics,
    /// The constant part of the status, with the failures of the last reconciliation as warnings.
    status: NodeStatus,
    attached: Option<AttachedPrograms>,
    shared_status: SharedStatus,
    repairs: Repairs,
    /// Warnings of the agent's start, which reconciliations keep.
    startup_warnings: Vec<String>,
}

impl NodeWorker {
    pub(crate) fn new(
        node: Node,
        metrics: Metrics,
        status: NodeStatus,
        attached: Option<AttachedPrograms>,
        shared_status: SharedStatus,
        repairs: Repairs,
    ) -> Self {
        Self {
            node,
            metrics,
            startup_warnings: status.warnings.clone(),
            status,
            attached,
            shared_status,
            repairs,
        }
    }
}

impl Worker for NodeWorker {
    /// Adopts the pods that an earlier agent, or the plugin by itself, enrolled.
    fn adopt(&mut self) {
        match self.node.stop_all_traces() {
            Ok(0) => {}
            Ok(pods) => tracing::info!(pods, "Ended the traces of an earlier agent"),
            Err(error) => tracing::warn!(
                error = chain(&error),
                "Cannot end the traces of an earlier agent"
            ),
        }
        match self.node.reconcile(true) {
            Ok(report) => {
                tracing::info!(
                    intact = report.intact,
                    repaired = report.repaired.len(),
                    gone = report.removed.len(),
                    "Adopted the enrolled pods"
                );
                self.log_report(&report);
            }
            Err(error) => tracing::error!(
                error = chain(&error),
                "Cannot adopt the enrolled pods; retrying with the next reconciliation"
            ),
        }
        self.update_metrics();
    }

    fn reconcile(&mut self) {
        self.reattach_programs();
        match self.node.reconcile(false) {
            Ok(report) => self.log_report(&report),
            Err(error) => tracing::error!(error = chain(&error), "Reconciliation failed"),
        }
        self.update_metrics();
    }

    fn handle(&mut self, request: &Request) -> Response {
        let response = match request {
            Request::Add(attachment) => self.add(attachment),
            Request::Del(id) => {
                // Deleting the pod deletes its counters too.
                self.update_metrics();
                self.node.del(id).map(|()| Response::Deleted)
            }
            Request::Check(attachment) => self.node.check(attachment).map(|()| Response::Checked),
            Request::Status => Ok(Response::Status(Box::new(self.status()))),
            Request::Pods => self.node.pods().map(Response::Pods),
            Request::Gc(valid) => self
                .node
                .collect(valid)
                .map(|removed| Response::Collected(Collected { removed })),
            // The socket's server keeps the connection for what follows.
            Request::Trace(_) => return Response::Refused(not_a_single_response()),
            Request::EnrolUnit(_)
            | Request::WithdrawUnit(_)
            | Request::Units
            | Request::DecideUnit(_)
            | Request::MachineKey
            | Request::Join(_)
            | Request::Membership
            | Request::Leave => {
                return Response::Refused(no_units());
            }
        };
        self.update_metrics();
        response.unwrap_or_else(|error| {
            let refusal = refusal(&error);
            tracing::warn!("{}", refusal.message);
            Response::Refused(refusal)
        })
    }

    /// Enrols a pod that runs without being enrolled according to the API server and the node's
    /// processes. The caller reports a refusal, since it retries periodically.
    fn enrol_in_place(&mut self, attachment: &Attachment) -> Result<Enrolled, Refusal> {
        let result = self.node.enrol_in_place(attachment);
        let result = result.map(|tier| Enrolled { tier });
        self.update_metrics();
        let enrolled = result.map_err(|error| refusal(&error))?;
        self.repairs
            .record(RepairKind::NotEnrolled, &attachment.pod.to_string());
        tracing::warn!(
            pod = %attachment.pod,
            tier = %enrolled.tier,
            netns = %attachment.netns.display(),
            "Enrolled a running meshed pod in place"
        );
        Ok(enrolled)
    }

    fn pod_to_trace(&self, pod: &PodRef) -> Result<u64, Refusal> {
        let cookie = self.node.pod_to_trace(pod);
        cookie.map_err(|error| refusal(&error))
    }

    fn start_trace(&self, cookie: u64) -> Result<(), Refusal> {
        let started = self.node.start_trace(cookie);
        started.map_err(|error| refusal(&error))
    }

    fn stop_trace(&self, cookie: u64) {
        if let Err(error) = self.node.stop_trace(cookie) {
            tracing::warn!(cookie, error = chain(&error), "Cannot end a trace");
        }
    }

    fn trace_log(&self) -> Result<TraceLog, Refusal> {
        self.node.trace_log().map_err(|error| refusal(&error))
    }

    /// Removes the redirection from every pod. Returns what could not be undone.
    fn release_all(self) -> Result<Vec<String>, NodeError> {
        self.node.release_all()
    }
}

impl NodeWorker {
    fn add(&self, attachment: &Attachment) -> Result<Response, NodeError> {
        let result = self.node.add(attachment).map(|tier| Enrolled { tier });
        self.metrics
            .record_enrolment(result.as_ref().map_err(NodeError::reason));
        let enrolled = result?;
        tracing::info!(
            pod = %attachment.pod,
            tier = %enrolled.tier,
            netns = %attachment.netns.display(),
            "Enrolled"
        );
        Ok(Response::Added(enrolled))
    }

    /// Returns a status even on a broken node: parts that cannot be read become warnings.
    fn status(&self) -> NodeStatus {
        let mut status = self.status.clone();
        match self.node.pods_by_tier() {
            Ok(pods_by_tier) => status.pods = pods_by_tier,
            Err(error) => status.warnings.push(chain(&error)),
        }
        match self.node.programs() {
            Ok(programs) => status.programs = programs,
            Err(error) => status.warnings.push(chain(&error)),
        }
        match self.node.counters() {
            Ok(counters) => status.connections = connection_totals(&counters),
            Err(error) => status.warnings.push(chain(&error)),
        }
        self.shared_status.add_to(&mut status);
        status.repairs = self.repairs.last_day();
        status
    }

    /// Attaches programs again that another program or an administrator detached.
    fn reattach_programs(&self) {
        let Some(attached) = &self.attached else {
            return;
        };
        let before = attached.programs.attached().unwrap_or_default();
        match attached.reattach() {
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
                    "Attached kernel programs again that another program had detached or unpinned"
                );
                self.repairs.record(RepairKind::ProgramsDetached, &programs);
            }
            Ok(Loaded::Fresh) => {
                tracing::warn!(
                    "Loaded the kernel programs again, because their pins were deleted; every pod is redirected again"
                );
                let pins = self.status.pin_dir.display().to_string();
                self.repairs.record(RepairKind::PinsDeleted, &pins);
            }
            Err(error) => tracing::error!(
                error = chain(&error),
                "The kernel programs cannot be kept attached"
            ),
        }
    }

    fn log_report(&mut self, report: &ReconcileReport) {
        for (pod, found) in &report.repaired {
            tracing::warn!(%pod, found, "Repaired pod redirection");
            self.repairs
                .record(RepairKind::Incomplete, &format!("{pod}: {found}"));
        }
        for pod in &report.readdressed {
            tracing::info!(%pod, "Updated the redirection of a pod whose addresses changed");
        }
        for pod in &report.removed {
            tracing::info!(%pod, "Removed a pod that no longer exists");
        }
        // A lasting failure is logged once; `status` shows it for as long as it lasts.
        for failure in &report.failures {
            if !self.status.warnings.contains(failure) {
                tracing::error!("{failure}");
            }
        }
        self.status.warnings = [&self.startup_warnings[..], &report.failures].concat();
        self.metrics.record_reconcile(report);
    }

    fn update_metrics(&mut self) {
        match self.node.counters() {
            Ok(counters) => self.metrics.observe(&counters),
            Err(error) => tracing::warn!(error = chain(&error), "Cannot read the counters"),
        }
        match self.node.guard_counters() {
            Ok(counters) => {
                for pod in self.metrics.observe_guard(&counters) {
                    tracing::warn!(%pod, "Pod sent connection requests around its proxy");
                }
            }
            Err(error) => tracing::warn!(error = chain(&error), "Cannot read the guard's counters"),
        }
        match self.node.pods_by_tier() {
            Ok(pods_by_tier) => self.metrics.set_pods(&pods_by_tier),
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

pub(crate) fn not_a_single_response() -> Refusal {
    Refusal {
        reason: RefusalReason::Invalid,
        message: "a trace has no single response; request it over the agent's socket".to_owned(),
    }
}

fn no_units() -> Refusal {
    Refusal {
        reason: RefusalReason::Invalid,
        message:
            "this agent redirects pods; systemd units take an agent that runs as mesh-agent machine"
                .to_owned(),
    }
}

pub(crate) fn connection_totals(counters: &[PodCounters]) -> BTreeMap<String, u64> {
    let mut totals = BTreeMap::new();
    for (verdict, count) in counters.iter().flat_map(by_verdict) {
        *totals.entry(verdict).or_default() += count;
    }
    totals
}

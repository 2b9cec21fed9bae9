//! The thread "node" of an agent for systemd units: serves requests, reconciles, and updates logs
//! and metrics of both.

use mesh_core::machine::{MachineKey, UnitEnrolment, UnitRef};
use mesh_core::node::{
    Attachment, Enrolled, NodeStatus, PodRef, Refusal, RefusalReason, RepairKind, Request, Response,
};
use mesh_runtime::log::chain;

use crate::ebpf::{Loaded, TraceLog};
use crate::machine::{Machine, MachineError, MachineReport};
use crate::metrics::MachineMetrics;
use crate::node::NodeError;
use crate::node_handle::Worker;
use crate::node_worker::{connection_totals, not_a_single_response};
use crate::repairs::Repairs;

#[derive(Debug)]
pub(crate) struct MachineWorker {
    machine: Machine,
    metrics: MachineMetrics,
    /// The constant part of the status, with the failures of the last reconciliation as warnings.
    status: NodeStatus,
    repairs: Repairs,
}

impl MachineWorker {
    pub(crate) fn new(
        machine: Machine,
        metrics: MachineMetrics,
        status: NodeStatus,
        repairs: Repairs,
    ) -> Self {
        Self {
            machine,
            metrics,
            status,
            repairs,
        }
    }

    fn enrol(&mut self, enrolment: &UnitEnrolment) -> Result<Response, MachineError> {
        let result = self.machine.enrol(enrolment);
        self.metrics.record_enrolment(
            result
                .as_ref()
                .map(|status| status.state)
                .map_err(MachineError::reason),
        );
        let status = result?;
        tracing::info!(
            unit = status.unit,
            state = %status.state,
            inbound = status.ports.inbound,
            outbound = status.ports.outbound,
            "Enrolled"
        );
        Ok(Response::Unit(Box::new(status)))
    }

    fn withdraw(&mut self, unit: &UnitRef) -> Result<Response, MachineError> {
        // Removing the unit removes its counters, too.
        self.update_metrics();
        let was_enrolled = self.machine.withdraw(&unit.unit)?;
        if was_enrolled {
            tracing::info!(unit = unit.unit, "The unit is not redirected any more");
        }
        Ok(Response::Withdrawn)
    }

    fn leave(&mut self) -> Result<Response, MachineError> {
        self.update_metrics();
        let left = self.machine.leave()?;
        tracing::info!(
            machine = left.machine,
            units = left.units.join(" "),
            "The machine has left its mesh, and its key is deleted"
        );
        Ok(Response::Left(left))
    }

    fn membership(&self) -> Response {
        let membership = self.machine.membership();
        if let Some(message) = membership.problem() {
            let reason = RefusalReason::Failed;
            return Response::Refused(Refusal { reason, message });
        }
        Response::Membership(membership.status().map(Box::new))
    }

    fn key(&self) -> Result<Response, MachineError> {
        let sha256 = self.machine.membership().key()?;
        Ok(Response::MachineKey(MachineKey { sha256 }))
    }

    /// Returns a status even on a broken host: parts that cannot be read become warnings.
    fn status(&self) -> NodeStatus {
        let mut status = self.status.clone();
        match self.machine.attached_programs() {
            Ok(programs) => status.programs = programs.into_iter().map(str::to_owned).collect(),
            Err(error) => status.warnings.push(chain(&error)),
        }
        match self.machine.counters() {
            Ok(counters) => status.connections = connection_totals(&counters),
            Err(error) => status.warnings.push(chain(&error)),
        }
        match self.machine.units() {
            Ok(units) => {
                let warnings = units.into_iter().flat_map(|unit| {
                    let name = unit.unit;
                    let warnings = unit.warnings.into_iter();
                    warnings.map(move |warning| format!("{name}: {warning}"))
                });
                status.warnings.extend(warnings);
            }
            Err(error) => status.warnings.push(chain(&error)),
        }
        if let Some(failure) = self.machine.membership().failure() {
            let warning = format!("the certificate of the machine is not renewed: {failure}");
            status.warnings.push(warning);
        }
        status.repairs = self.repairs.last_day();
        status
    }

    fn log_report(&mut self, report: &MachineReport) {
        match report.loaded {
            Some(Loaded::Fresh) if report.was_loaded => {
                tracing::warn!(
                    "Loaded the kernel programs again, because their pins were deleted; every unit is redirected again"
                );
                let pins = self.status.pin_dir.display().to_string();
                self.repairs.record(RepairKind::PinsDeleted, &pins);
            }
            Some(Loaded::Replaced) if report.was_loaded => {
                tracing::warn!(
                    "Attached kernel programs again that another program had detached or unpinned"
                );
                self.repairs.record(RepairKind::ProgramsDetached, "units");
            }
            _ => {}
        }
        for unit in &report.activated {
            tracing::info!(unit, "The unit is redirected: its proxy listens");
        }
        for (unit, found) in &report.repaired {
            tracing::warn!(unit, found, "Repaired the redirection of a unit");
            self.repairs
                .record(RepairKind::Incomplete, &format!("{unit}: {found}"));
        }
        // A lasting failure is logged once; `status` shows it for as long as it lasts.
        for failure in &report.failures {
            if !self.status.warnings.contains(failure) {
                tracing::error!("{failure}");
            }
        }
        self.status.warnings.clone_from(&report.failures);
        self.metrics.record_reconcile(report);
    }

    fn update_metrics(&mut self) {
        match self.machine.counters() {
            Ok(counters) => self.metrics.observe(&counters),
            Err(error) => tracing::warn!(error = chain(&error), "Cannot read the counters"),
        }
        match self.machine.units() {
            Ok(units) => self.metrics.observe_units(&units),
            Err(error) => tracing::warn!(error = chain(&error), "Cannot list the units"),
        }
    }
}

impl Worker for MachineWorker {
    /// Adopts the units that are in the records, and those that an earlier agent redirected.
    fn adopt(&mut self) {
        self.reconcile();
        let loaded = self
            .machine
            .attached_programs()
            .map_or(0, |names| names.len());
        tracing::info!(programs = loaded, "Adopted the enrolled units");
    }

    fn reconcile(&mut self) {
        match self.machine.reconcile() {
            Ok(report) => self.log_report(&report),
            Err(error) => {
                let failures = vec![chain(&error)];
                self.log_report(&MachineReport {
                    failures,
                    ..MachineReport::default()
                });
            }
        }
        self.update_metrics();
    }

    fn handle(&mut self, request: &Request) -> Response {
        let response = match request {
            Request::EnrolUnit(enrolment) => self.enrol(enrolment),
            Request::WithdrawUnit(unit) => self.withdraw(unit),
            Request::Units => self.machine.units().map(Response::Units),
            Request::DecideUnit(connection) => {
                self.machine.decide(connection).map(Response::Decided)
            }
            Request::MachineKey => self.key(),
            Request::Membership => return self.membership(),
            Request::Leave => self.leave(),
            Request::Join(_) => return Response::Refused(not_on_this_thread()),
            Request::Status => Ok(Response::Status(Box::new(self.status()))),
            // There are none, which is what a client of the status wants to know.
            Request::Pods => Ok(Response::Pods(Vec::new())),
            Request::Add(_) | Request::Del(_) | Request::Check(_) | Request::Gc(_) => {
                return Response::Refused(no_pods());
            }
            Request::Trace(_) => return Response::Refused(not_a_single_response()),
        };
        self.update_metrics();
        response.unwrap_or_else(|error| {
            let refusal = Refusal {
                reason: error.reason(),
                message: chain(&error),
            };
            tracing::warn!("{}", refusal.message);
            Response::Refused(refusal)
        })
    }

    fn enrol_in_place(&mut self, _attachment: &Attachment) -> Result<Enrolled, Refusal> {
        Err(no_pods())
    }

    fn pod_to_trace(&self, _pod: &PodRef) -> Result<u64, Refusal> {
        Err(no_pods())
    }

    fn start_trace(&self, _cookie: u64) -> Result<(), Refusal> {
        Err(no_pods())
    }

    fn stop_trace(&self, _cookie: u64) {}

    fn trace_log(&self) -> Result<TraceLog, Refusal> {
        Err(no_pods())
    }

    /// Units stay redirected; only `mesh-agent uninstall` removes them.
    fn release_all(self) -> Result<Vec<String>, NodeError> {
        Ok(Vec::new())
    }
}

/// The server of the socket handles joins itself, because they wait for the network.
fn not_on_this_thread() -> Refusal {
    Refusal {
        reason: RefusalReason::Failed,
        message: "a machine joins over the agent's socket only".to_owned(),
    }
}

fn no_pods() -> Refusal {
    Refusal {
        reason: RefusalReason::Invalid,
        message: "this agent redirects systemd units; pods take an agent without machine"
            .to_owned(),
    }
}

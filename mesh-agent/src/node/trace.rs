//! Traces of pods: which can be traced, and whether the kernel programs report their decisions.

use mesh_core::node::PodRef;

use super::{Node, NodeError, namespace};
use crate::ebpf::{Programs, TraceLog};
use crate::registry::PodRecord;

impl Node {
    /// Returns the cookie of an enrolled pod that kernel programs redirect.
    pub fn pod_to_trace(&self, pod: &PodRef) -> Result<u64, NodeError> {
        let redirect = self.enrolled_record(pod)?.redirect;
        if redirect.tier.uses_ebpf() {
            Ok(redirect.cookie)
        } else {
            Err(NodeError::NothingToTrace {
                pod: pod.to_string(),
                tier: redirect.tier,
            })
        }
    }

    /// Has the kernel programs report their decisions about the pod's connections.
    pub fn start_trace(&self, cookie: u64) -> Result<(), NodeError> {
        Ok(self.programs_to_trace()?.start_trace(cookie)?)
    }

    pub fn stop_trace(&self, cookie: u64) -> Result<(), NodeError> {
        match &self.programs {
            Some(programs) => Ok(programs.stop_trace(cookie)?),
            None => Ok(()),
        }
    }

    /// Ends the traces of an earlier agent, which cannot be continued; returns how many pods had
    /// one.
    pub fn stop_all_traces(&self) -> Result<usize, NodeError> {
        match &self.programs {
            Some(programs) => Ok(programs.stop_all_traces()?),
            None => Ok(0),
        }
    }

    pub fn trace_log(&self) -> Result<TraceLog, NodeError> {
        Ok(self.programs_to_trace()?.trace_log()?)
    }

    fn programs_to_trace(&self) -> Result<&Programs, NodeError> {
        self.programs.as_ref().ok_or(NodeError::NoPrograms)
    }

    /// Returns the record of the pod of this name whose network namespace exists; its predecessor's
    /// record may still be there.
    fn enrolled_record(&self, pod: &PodRef) -> Result<PodRecord, NodeError> {
        let (records, _) = self.registry.records()?;
        let is_same = |found: &PodRef| {
            found.namespace == pod.namespace
                && found.name == pod.name
                && (pod.uid.is_empty() || found.uid == pod.uid)
        };
        records
            .into_iter()
            .filter(|record| is_same(&record.redirect.pod))
            .find(|record| !namespace::is_gone(&record.redirect.netns, record.redirect.cookie))
            .ok_or_else(|| NodeError::NotEnrolled {
                pod: pod.to_string(),
            })
    }
}

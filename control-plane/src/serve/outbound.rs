//! `OutboundPolicies`: the policies of pods' destinations.

use std::sync::Arc;

use mesh_api::mesh::service::outbound_policies_server::OutboundPolicies;
use mesh_api::outbound::{ExtendedPolicy, extended_to_proto, target};
use mesh_api::proto::outbound::TrafficSpec;
use mesh_core::policy::outbound::OutboundPolicy;
use mesh_runtime::drain;
use parking_lot::Mutex;
use tokio::sync::watch;
use tonic::{Request, Response, Status, async_trait};

use super::calls::{Calls, Method};
use super::{Step, Updates, updates};
use crate::index::{OutboundError, PolicyIndex};
use crate::model::WorkloadRef;

#[derive(Debug)]
pub struct OutboundService {
    // Locked while a value is looked up, never across an await.
    index: Arc<Mutex<PolicyIndex>>,
    drain: drain::Watch,
    get: Method,
    watch: Method,
}

impl OutboundService {
    pub fn new(index: Arc<Mutex<PolicyIndex>>, drain: drain::Watch, calls: &Calls) -> Self {
        let service = "io.linkerd.proxy.outbound.OutboundPolicies";
        Self {
            index,
            drain,
            get: calls.method(service, "Get"),
            watch: calls.method(service, "Watch"),
        }
    }

    fn values(
        &self,
        spec: TrafficSpec,
    ) -> Result<watch::Receiver<Arc<Option<OutboundPolicy>>>, Status> {
        let client = WorkloadRef::parse(&spec.source_workload)
            .map_err(|error| Status::invalid_argument(error.to_string()))?;
        let target =
            target(spec.target).map_err(|error| Status::invalid_argument(error.to_string()))?;
        let namespace = &client.name().namespace;
        Ok(self.index.lock().outbound(&target, namespace)?)
    }
}

#[async_trait]
impl OutboundPolicies for OutboundService {
    type WatchStream = Updates<ExtendedPolicy>;

    async fn get(&self, request: Request<TrafficSpec>) -> Result<Response<ExtendedPolicy>, Status> {
        let values = self.values(request.into_inner());
        let policy = values.and_then(|values| match &**values.borrow() {
            Some(policy) => Ok(extended_to_proto(policy)),
            None => Err(OutboundError::NoSuchService.into()),
        });
        self.get.count(policy).map(Response::new)
    }

    async fn watch(
        &self,
        request: Request<TrafficSpec>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        let opened = self.watch.open(&request);
        let opened = opened.and_then(|stream| Ok((stream, self.values(request.into_inner())?)));
        let (stream, values) = self.watch.count(opened)?;
        let step = |policy: &Arc<Option<OutboundPolicy>>| match &**policy {
            Some(policy) => Step::Send(vec![extended_to_proto(policy)]),
            None => Step::End,
        };
        Ok(Response::new(updates(
            values,
            self.drain.clone(),
            stream,
            step,
        )))
    }
}

impl From<OutboundError> for Status {
    fn from(error: OutboundError) -> Self {
        let message = error.to_string();
        match error {
            OutboundError::NoSuchService => Status::not_found(message),
            OutboundError::InvalidAuthority(_) => Status::invalid_argument(message),
        }
    }
}

//! `OutboundPolicies`: the policies of pods' destinations.

use std::sync::Arc;

use bytes::Bytes;
use mesh_api::mesh::service::outbound_policies_server::SERVICE_NAME;
use mesh_api::outbound::{ExtendedPolicy, extended_to_proto, target};
use mesh_api::proto::outbound::TrafficSpec;
use mesh_cluster::calls::{Calls, Method};
use mesh_core::policy::outbound::OutboundPolicy;
use mesh_objects::policy::outbound::OutboundError;
use mesh_runtime::drain;
use parking_lot::Mutex;
use tokio::sync::watch;
use tonic::body::Body;
use tonic::{Request, Status};

use super::grpc::{Methods, respond, respond_with_stream, unknown_method, whole};
use super::updates::{Step, Updates, updates};
use super::workload;
use crate::index::{PolicyIndex, Version};

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
        Self {
            index,
            drain,
            get: calls.method(SERVICE_NAME, "Get"),
            watch: calls.method(SERVICE_NAME, "Watch"),
        }
    }

    fn values(
        &self,
        spec: TrafficSpec,
    ) -> Result<watch::Receiver<Arc<Version<Option<OutboundPolicy>>>>, Status> {
        let client = workload::parse(&spec.source_workload)
            .map_err(|error| Status::invalid_argument(error.to_string()))?;
        let target =
            target(spec.target).map_err(|error| Status::invalid_argument(error.to_string()))?;
        let namespace = &client.name().namespace;
        let mut index = self.index.lock();
        index.outbound(&target, namespace).map_err(status)
    }

    fn policy(&self, spec: TrafficSpec) -> Result<ExtendedPolicy, Status> {
        match self.values(spec)?.borrow().value().as_ref() {
            Some(policy) => Ok(extended_to_proto(policy)),
            None => Err(status(OutboundError::NoSuchService)),
        }
    }

    fn policies(&self, request: Request<TrafficSpec>) -> Result<Updates<Bytes>, Status> {
        let pod = workload::pod_name(&request.get_ref().source_workload);
        let opened = self.watch.open(&request, &pod);
        let opened = opened.and_then(|stream| Ok((stream, self.values(request.into_inner())?)));
        let (stream, values) = self.watch.count(opened)?;
        let encoded = self.watch.encoded();
        let step =
            move |version: &Arc<Version<Option<OutboundPolicy>>>| match version.value().as_ref() {
                Some(policy) => whole(version, &encoded, || extended_to_proto(policy)),
                None => Step::End,
            };
        Ok(updates(values, self.drain.clone(), stream, step))
    }
}

impl Methods for OutboundService {
    const NAME: &'static str = SERVICE_NAME;

    async fn call(&self, method: &str, request: http::Request<Body>) -> http::Response<Body> {
        let get = |request: Request<_>| self.get.count(self.policy(request.into_inner()));
        match method {
            "Get" => respond(request, get).await,
            "Watch" => respond_with_stream(request, |request| self.policies(request)).await,
            _ => unknown_method(),
        }
    }
}

fn status(error: OutboundError) -> Status {
    let message = error.to_string();
    match error {
        OutboundError::NoSuchService => Status::not_found(message),
        OutboundError::InvalidAuthority(_) => Status::invalid_argument(message),
    }
}

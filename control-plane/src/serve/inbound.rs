//! `InboundServerPolicies`: the policies of workloads' ports.

use std::sync::Arc;

use mesh_api::inbound::to_proto;
use mesh_api::proto::inbound::inbound_server_policies_server::InboundServerPolicies;
use mesh_api::proto::inbound::{PortSpec, Server};
use mesh_cluster::calls::{Calls, Method};
use mesh_core::policy::inbound::ServerPolicy;
use mesh_runtime::drain;
use parking_lot::Mutex;
use tokio::sync::watch;
use tonic::{Request, Response, Status, async_trait};

use super::updates::{Step, Updates, updates};
use super::workload;
use crate::index::{InboundKey, PolicyIndex, Version};

#[derive(Debug)]
pub struct InboundService {
    // Locked while a value is looked up, never across an await.
    index: Arc<Mutex<PolicyIndex>>,
    drain: drain::Watch,
    get_port: Method,
    watch_port: Method,
}

impl InboundService {
    pub fn new(index: Arc<Mutex<PolicyIndex>>, drain: drain::Watch, calls: &Calls) -> Self {
        let service = "io.linkerd.proxy.inbound.InboundServerPolicies";
        Self {
            index,
            drain,
            get_port: calls.method(service, "GetPort"),
            watch_port: calls.method(service, "WatchPort"),
        }
    }

    fn values(
        &self,
        spec: &PortSpec,
    ) -> Result<watch::Receiver<Arc<Version<Option<ServerPolicy>>>>, Status> {
        let workload = workload::parse(&spec.workload)
            .map_err(|error| Status::invalid_argument(error.to_string()))?;
        let port = u16::try_from(spec.port)
            .ok()
            .filter(|port| *port > 0)
            .ok_or_else(|| Status::invalid_argument(format!("{} is not a port", spec.port)))?;
        let values = self.index.lock().inbound(InboundKey { workload, port });
        values.ok_or_else(|| Status::not_found("unknown server"))
    }
}

#[async_trait]
impl InboundServerPolicies for InboundService {
    type WatchPortStream = Updates<Result<Server, Status>>;

    async fn get_port(&self, request: Request<PortSpec>) -> Result<Response<Server>, Status> {
        let values = self.values(request.get_ref());
        let policy = values.and_then(|values| match values.borrow().value().as_ref() {
            Some(policy) => Ok(to_proto(policy)),
            None => Err(Status::not_found("unknown server")),
        });
        self.get_port.count(policy).map(Response::new)
    }

    async fn watch_port(
        &self,
        request: Request<PortSpec>,
    ) -> Result<Response<Self::WatchPortStream>, Status> {
        let pod = workload::pod_name(&request.get_ref().workload);
        let opened = self.watch_port.open(&request, &pod);
        let opened = opened.and_then(|stream| Ok((stream, self.values(request.get_ref())?)));
        let (stream, values) = self.watch_port.count(opened)?;
        let step = |version: &Arc<Version<Option<ServerPolicy>>>| match version.value().as_ref() {
            Some(policy) => Step::Send(vec![Ok(to_proto(policy))]),
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

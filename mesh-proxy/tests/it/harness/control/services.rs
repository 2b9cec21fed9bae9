//! The gRPC services, over what the control plane says.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use http::{Request, Response};
use hyper::body::Incoming;
use mesh_api::proto::destination::destination_server::{Destination, DestinationServer};
use mesh_api::proto::identity::identity_server::{Identity, IdentityServer};
use mesh_api::proto::identity::{CertifyRequest, CertifyResponse};
use mesh_api::proto::inbound::inbound_server_policies_server::{
    InboundServerPolicies, InboundServerPoliciesServer,
};
use mesh_api::proto::outbound::outbound_policies_server::{
    OutboundPolicies, OutboundPoliciesServer,
};
use mesh_core::profile::Profile;
use tokio::sync::mpsc;
use tokio_stream::Stream;
use tonic::Status;
use tonic::body::Body;

use super::{ControlPlane, Target, dst, endpoint_updates, inb, messages, out, policies};

/// All services of one connection.
#[derive(Clone)]
pub(super) struct Services(pub(super) ControlPlane);

/// A response stream.
pub(super) struct Messages<M>(pub(super) mpsc::UnboundedReceiver<Result<M, Status>>);

impl<M> Stream for Messages<M> {
    type Item = Result<M, Status>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.0.poll_recv(cx)
    }
}

impl Services {
    pub(super) async fn route(
        self,
        request: Request<Incoming>,
    ) -> Result<Response<Body>, Infallible> {
        use tower::Service as _;
        let path = request.uri().path();
        if path.starts_with("/io.linkerd.proxy.destination.") {
            DestinationServer::new(self).call(request).await
        } else if path.starts_with("/io.linkerd.proxy.outbound.") {
            OutboundPoliciesServer::new(self).call(request).await
        } else if path.starts_with("/io.linkerd.proxy.inbound.") {
            InboundServerPoliciesServer::new(self).call(request).await
        } else {
            IdentityServer::new(self).call(request).await
        }
    }
}

#[tonic::async_trait]
impl Destination for Services {
    type GetStream = Messages<dst::Update>;
    type GetProfileStream = Messages<dst::DestinationProfile>;

    async fn get(
        &self,
        request: tonic::Request<dst::GetDestination>,
    ) -> Result<tonic::Response<Self::GetStream>, Status> {
        let values = self.0.state.endpoints.follow(request.into_inner().path);
        let encode = |before: Option<&Vec<_>>, now: &Vec<_>| {
            endpoint_updates(before.map_or(&[], Vec::as_slice), now)
        };
        Ok(tonic::Response::new(messages(values, encode)))
    }

    async fn get_profile(
        &self,
        request: tonic::Request<dst::GetDestination>,
    ) -> Result<tonic::Response<Self::GetProfileStream>, Status> {
        let profiles = &self.0.state.profiles;
        let path = request.into_inner().path;
        if profiles.follow(path.clone()).borrow().is_none() {
            profiles.set(path.clone(), Profile::default());
        }
        let encode = |_: Option<&Profile>, profile: &Profile| {
            vec![mesh_api::destination::profile_to_proto(profile)]
        };
        Ok(tonic::Response::new(messages(
            profiles.follow(path),
            encode,
        )))
    }
}

#[tonic::async_trait]
impl OutboundPolicies for Services {
    type WatchStream = Messages<out::OutboundPolicy>;

    async fn get(
        &self,
        _request: tonic::Request<out::TrafficSpec>,
    ) -> Result<tonic::Response<out::OutboundPolicy>, Status> {
        Err(Status::unimplemented("proxies watch"))
    }

    async fn watch(
        &self,
        request: tonic::Request<out::TrafficSpec>,
    ) -> Result<tonic::Response<Self::WatchStream>, Status> {
        let target = mesh_api::outbound::target(request.into_inner().target)
            .map_err(|error| Status::invalid_argument(error.to_string()))?;
        let Target::Addr(addr) = target else {
            return Err(Status::not_found("only addresses are known"));
        };
        let values = self.0.state.outbound.follow(addr);
        if values.borrow().is_none() {
            return Err(Status::not_found("no such service"));
        }
        let encode = |_: Option<&_>, policy: &_| vec![mesh_api::outbound::to_proto(policy)];
        Ok(tonic::Response::new(messages(values, encode)))
    }
}

#[tonic::async_trait]
impl InboundServerPolicies for Services {
    type WatchPortStream = Messages<inb::Server>;

    async fn get_port(
        &self,
        _request: tonic::Request<inb::PortSpec>,
    ) -> Result<tonic::Response<inb::Server>, Status> {
        Err(Status::unimplemented("proxies watch"))
    }

    async fn watch_port(
        &self,
        request: tonic::Request<inb::PortSpec>,
    ) -> Result<tonic::Response<Self::WatchPortStream>, Status> {
        let inbound = &self.0.state.inbound;
        let spec = request.into_inner();
        let key = (spec.workload, spec.port.try_into().unwrap());
        if inbound.follow(key.clone()).borrow().is_none() {
            inbound.set(key.clone(), policies::open_server());
        }
        let encode = |_: Option<&_>, policy: &_| vec![mesh_api::inbound::to_proto(policy)];
        Ok(tonic::Response::new(messages(inbound.follow(key), encode)))
    }
}

#[tonic::async_trait]
impl Identity for Services {
    async fn certify(
        &self,
        request: tonic::Request<CertifyRequest>,
    ) -> Result<tonic::Response<CertifyResponse>, Status> {
        let request = request.into_inner();
        if request.token != b"the-token" {
            return Err(Status::unauthenticated("unknown token"));
        }
        let csr = &request.certificate_signing_request;
        let issued = self.0.state.authority.lock().sign(csr);
        Ok(tonic::Response::new(mesh_api::identity::to_proto(&issued)))
    }
}

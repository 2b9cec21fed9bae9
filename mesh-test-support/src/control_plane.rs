//! A control plane whose responses a test or a benchmark determines: the gRPC services of Linkerd's
//! proxy API over a [`Script`].

use std::convert::Infallible;
use std::pin::Pin;

use http::{Request, Response};
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::service::TowerToHyperService;
use mesh_api::mesh::identity::trust_anchors_server::{TrustAnchors, TrustAnchorsServer};
use mesh_api::mesh::identity::{TrustBundle, WatchRequest};
use mesh_api::mesh::service::outbound_policies_server::{OutboundPolicies, OutboundPoliciesServer};
use mesh_api::outbound::ExtendedPolicy;
use mesh_api::proto::destination::destination_server::{Destination, DestinationServer};
use mesh_api::proto::destination::{DestinationProfile, GetDestination, Update};
use mesh_api::proto::identity::identity_server::{Identity, IdentityServer};
use mesh_api::proto::identity::{CertifyRequest, CertifyResponse};
use mesh_api::proto::inbound::inbound_server_policies_server::{
    InboundServerPolicies, InboundServerPoliciesServer,
};
use mesh_api::proto::inbound::{PortSpec, Server};
use mesh_api::proto::outbound::TrafficSpec;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::mpsc;
use tokio_stream::{Stream, StreamExt as _};
use tonic::Status;
use tonic::body::Body;
use tower::Service as _;

/// The messages of a response stream, until the script or the client ends it.
pub type Messages<M> = Pin<Box<dyn Stream<Item = Result<M, Status>> + Send>>;

/// The sender of a stream of [`Messages`]. Dropping it ends the stream.
pub type MessageSender<M> = mpsc::UnboundedSender<Result<M, Status>>;

/// Responds to the calls of proxies. A clone serves each connection.
///
/// Every method returns the response stream, or the status that refuses the call.
#[tonic::async_trait]
pub trait Script: Clone + Send + Sync + 'static {
    /// `Destination.Get`.
    async fn endpoints(&self, request: GetDestination) -> Result<Messages<Update>, Status>;

    /// `Destination.GetProfile`.
    async fn profile(
        &self,
        request: GetDestination,
    ) -> Result<Messages<DestinationProfile>, Status>;

    /// `OutboundPolicies.Watch`.
    async fn outbound(&self, request: TrafficSpec) -> Result<Messages<ExtendedPolicy>, Status>;

    /// `InboundServerPolicies.WatchPort`.
    async fn inbound(&self, request: PortSpec) -> Result<Messages<Server>, Status>;

    /// `Identity.Certify`.
    async fn certify(&self, request: CertifyRequest) -> Result<CertifyResponse, Status>;

    /// `TrustAnchors.Watch`, which Linkerd's identity service does not have.
    async fn trust_bundles(&self) -> Result<Messages<TrustBundle>, Status> {
        Err(Status::unimplemented("no trust anchors"))
    }
}

/// Returns a stream with one message, which stays open as a control plane's does.
pub fn one_message<M: Send + 'static>(message: M) -> Messages<M> {
    Box::pin(tokio_stream::once(Ok(message)).chain(tokio_stream::pending()))
}

/// Returns a stream and its sender. The stream is not bounded: a script sends few messages, and a
/// benchmark measures clients that are behind.
pub fn channel<M: Send + 'static>() -> (MessageSender<M>, Messages<M>) {
    let (sender, receiver) = mpsc::unbounded_channel();
    let receiver = tokio_stream::wrappers::UnboundedReceiverStream::new(receiver);
    (sender, Box::pin(receiver))
}

/// Serves a connection until it ends. How it ends depends on the client, so that it is not an
/// error.
pub async fn serve_connection<S, I>(io: I, script: S)
where
    S: Script,
    I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let services = Services(script);
    let service = tower::service_fn(move |request| services.clone().route(request));
    let _end = http2::Builder::new(TokioExecutor::new())
        // The length of an encoded date depends on the date, and a simulation repeats lengths.
        .auto_date_header(false)
        .serve_connection(TokioIo::new(io), TowerToHyperService::new(service))
        .await;
}

/// The gRPC services of one connection.
#[derive(Clone)]
struct Services<S>(S);

impl<S: Script> Services<S> {
    async fn route(self, request: Request<Incoming>) -> Result<Response<Body>, Infallible> {
        let path = request.uri().path();
        if path.starts_with("/io.linkerd.proxy.destination.") {
            DestinationServer::new(self).call(request).await
        } else if path.starts_with("/io.linkerd.proxy.outbound.") {
            OutboundPoliciesServer::new(self).call(request).await
        } else if path.starts_with("/io.linkerd.proxy.inbound.") {
            InboundServerPoliciesServer::new(self).call(request).await
        } else if path.starts_with("/mesh.identity.") {
            TrustAnchorsServer::new(self).call(request).await
        } else {
            IdentityServer::new(self).call(request).await
        }
    }
}

#[tonic::async_trait]
impl<S: Script> Destination for Services<S> {
    type GetStream = Messages<Update>;
    type GetProfileStream = Messages<DestinationProfile>;

    async fn get(
        &self,
        request: tonic::Request<GetDestination>,
    ) -> Result<tonic::Response<Self::GetStream>, Status> {
        let stream = self.0.endpoints(request.into_inner()).await?;
        Ok(tonic::Response::new(stream))
    }

    async fn get_profile(
        &self,
        request: tonic::Request<GetDestination>,
    ) -> Result<tonic::Response<Self::GetProfileStream>, Status> {
        let stream = self.0.profile(request.into_inner()).await?;
        Ok(tonic::Response::new(stream))
    }
}

#[tonic::async_trait]
impl<S: Script> OutboundPolicies for Services<S> {
    type WatchStream = Messages<ExtendedPolicy>;

    async fn get(
        &self,
        _request: tonic::Request<TrafficSpec>,
    ) -> Result<tonic::Response<ExtendedPolicy>, Status> {
        Err(Status::unimplemented("proxies watch"))
    }

    async fn watch(
        &self,
        request: tonic::Request<TrafficSpec>,
    ) -> Result<tonic::Response<Self::WatchStream>, Status> {
        let stream = self.0.outbound(request.into_inner()).await?;
        Ok(tonic::Response::new(stream))
    }
}

#[tonic::async_trait]
impl<S: Script> InboundServerPolicies for Services<S> {
    type WatchPortStream = Messages<Server>;

    async fn get_port(
        &self,
        _request: tonic::Request<PortSpec>,
    ) -> Result<tonic::Response<Server>, Status> {
        Err(Status::unimplemented("proxies watch"))
    }

    async fn watch_port(
        &self,
        request: tonic::Request<PortSpec>,
    ) -> Result<tonic::Response<Self::WatchPortStream>, Status> {
        let stream = self.0.inbound(request.into_inner()).await?;
        Ok(tonic::Response::new(stream))
    }
}

#[tonic::async_trait]
impl<S: Script> Identity for Services<S> {
    async fn certify(
        &self,
        request: tonic::Request<CertifyRequest>,
    ) -> Result<tonic::Response<CertifyResponse>, Status> {
        let issued = self.0.certify(request.into_inner()).await?;
        Ok(tonic::Response::new(issued))
    }
}

#[tonic::async_trait]
impl<S: Script> TrustAnchors for Services<S> {
    type WatchStream = Messages<TrustBundle>;

    async fn watch(
        &self,
        _request: tonic::Request<WatchRequest>,
    ) -> Result<tonic::Response<Self::WatchStream>, Status> {
        self.0.trust_bundles().await.map(tonic::Response::new)
    }
}

//! A control plane for unit tests: gRPC services on a loopback port that pass each call to the test
//! for its response.

use std::net::{Ipv4Addr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;

use http::{Request, Response};
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::service::TowerToHyperService;
use mesh_api::proto::destination::destination_server::{Destination, DestinationServer};
use mesh_api::proto::destination::{DestinationProfile, GetDestination, Update};
use mesh_api::proto::identity::identity_server::{Identity, IdentityServer};
use mesh_api::proto::identity::{CertifyRequest, CertifyResponse};
use mesh_api::proto::inbound::inbound_server_policies_server::{
    InboundServerPolicies, InboundServerPoliciesServer,
};
use mesh_api::proto::inbound::{PortSpec, Server};
use mesh_api::proto::outbound::outbound_policies_server::{
    OutboundPolicies, OutboundPoliciesServer,
};
use mesh_api::proto::outbound::{OutboundPolicy, TrafficSpec};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio_stream::Stream;
use tonic::Status;
use tonic::body::Body;

use crate::tls::server::{ClientTlsInfo, terminate};
use crate::tls::{Credentials, Purpose};
use crate::transport::Io;

/// A call that waits for its response.
pub(crate) struct Call<Q, A> {
    pub(crate) request: Q,
    answer: oneshot::Sender<Result<A, Status>>,
}

/// A stream of messages whose sender the test owns. Dropping the sender ends the stream.
pub(crate) struct Messages<M>(mpsc::UnboundedReceiver<Result<M, Status>>);

type Tls = (Arc<Credentials>, mpsc::UnboundedSender<ClientTlsInfo>);

pub(crate) type MessageSender<M> = mpsc::UnboundedSender<Result<M, Status>>;
pub(crate) type Calls<Q, A> = mpsc::UnboundedReceiver<Call<Q, A>>;

/// The received calls, by method.
pub(crate) struct ControlPlane {
    pub(crate) addr: SocketAddr,
    pub(crate) endpoints: Calls<GetDestination, Messages<Update>>,
    pub(crate) profiles: Calls<GetDestination, Messages<DestinationProfile>>,
    pub(crate) outbound: Calls<TrafficSpec, Messages<OutboundPolicy>>,
    pub(crate) inbound: Calls<PortSpec, Messages<Server>>,
    pub(crate) certify: Calls<CertifyRequest, CertifyResponse>,
    serving: JoinHandle<()>,
}

#[derive(Clone)]
struct Services {
    endpoints: mpsc::UnboundedSender<Call<GetDestination, Messages<Update>>>,
    profiles: mpsc::UnboundedSender<Call<GetDestination, Messages<DestinationProfile>>>,
    outbound: mpsc::UnboundedSender<Call<TrafficSpec, Messages<OutboundPolicy>>>,
    inbound: mpsc::UnboundedSender<Call<PortSpec, Messages<Server>>>,
    certify: mpsc::UnboundedSender<Call<CertifyRequest, CertifyResponse>>,
}

impl ControlPlane {
    pub(crate) async fn start() -> Self {
        Self::start_at((Ipv4Addr::LOCALHOST, 0).into()).await
    }

    pub(crate) async fn start_at(addr: SocketAddr) -> Self {
        Self::serve_on(TcpListener::bind(addr).await.unwrap(), None)
    }

    /// Starts a control plane with mutual TLS. `clients` receives the properties of each client.
    pub(crate) async fn start_tls(
        credentials: Arc<Credentials>,
        clients: mpsc::UnboundedSender<ClientTlsInfo>,
    ) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        Self::serve_on(listener, Some((credentials, clients)))
    }

    fn serve_on(listener: TcpListener, tls: Option<Tls>) -> Self {
        let addr = listener.local_addr().unwrap();
        let (endpoints_tx, endpoints) = mpsc::unbounded_channel();
        let (profiles_tx, profiles) = mpsc::unbounded_channel();
        let (outbound_tx, outbound) = mpsc::unbounded_channel();
        let (inbound_tx, inbound) = mpsc::unbounded_channel();
        let (certify_tx, certify) = mpsc::unbounded_channel();
        let services = Services {
            endpoints: endpoints_tx,
            profiles: profiles_tx,
            outbound: outbound_tx,
            inbound: inbound_tx,
            certify: certify_tx,
        };
        let serving = tokio::spawn(serve(listener, services, tls));
        Self {
            addr,
            endpoints,
            profiles,
            outbound,
            inbound,
            certify,
            serving,
        }
    }
}

impl ControlPlane {
    /// Closes the port and all connections, and waits until they are closed.
    pub(crate) async fn stop(mut self) {
        self.serving.abort();
        // Returns that the task was cancelled.
        let _ = (&mut self.serving).await;
    }
}

impl Drop for ControlPlane {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

impl<Q, A> Call<Q, A> {
    pub(crate) fn answer(self, answer: A) {
        // The client may have cancelled the call.
        let _ = self.answer.send(Ok(answer));
    }

    pub(crate) fn refuse(self, status: Status) {
        let _ = self.answer.send(Err(status));
    }
}

impl<Q, M> Call<Q, Messages<M>> {
    /// Opens the stream.
    pub(crate) fn stream(self) -> MessageSender<M> {
        let (tx, rx) = mpsc::unbounded_channel();
        self.answer(Messages(rx));
        tx
    }
}

impl<M> Stream for Messages<M> {
    type Item = Result<M, Status>;

    fn poll_next(
        mut self: Pin<&mut Self>,
        cx: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Self::Item>> {
        self.0.poll_recv(cx)
    }
}

async fn serve(listener: TcpListener, services: Services, tls: Option<Tls>) {
    // Dropping the set closes all connections together with the listener.
    let mut connections = tokio::task::JoinSet::new();
    loop {
        let (tcp, _) = listener.accept().await.unwrap();
        let service = TowerToHyperService::new(tower::service_fn({
            let services = services.clone();
            move |request| services.clone().route(request)
        }));
        let tls = tls.clone();
        connections.spawn(async move {
            let Some(io) = secure(tcp, tls).await else {
                return;
            };
            // The result depends on how the client closes the connection.
            let _ = http2::Builder::new(TokioExecutor::new())
                .serve_connection(TokioIo::new(io), service)
                .await;
        });
    }
}

/// Performs the TLS handshake. `None` when the client rejects it.
async fn secure(tcp: TcpStream, tls: Option<Tls>) -> Option<Io> {
    let io = Io::plain(tcp);
    let Some((credentials, clients)) = tls else {
        return Some(io);
    };
    let (stream, client) = terminate(io, &credentials, false, Purpose::Control)
        .await
        .ok()?;
    clients.send(client).unwrap();
    Some(Io::tls(stream))
}

impl Services {
    async fn route(
        self,
        request: Request<Incoming>,
    ) -> Result<Response<Body>, std::convert::Infallible> {
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

async fn pass_to_test<Q, A>(
    to: &mpsc::UnboundedSender<Call<Q, A>>,
    request: tonic::Request<Q>,
) -> Result<tonic::Response<A>, Status> {
    let (answer, answered) = oneshot::channel();
    let call = Call {
        request: request.into_inner(),
        answer,
    };
    to.send(call)
        .map_err(|_ended| Status::unavailable("the test has ended"))?;
    match answered.await {
        Ok(answer) => answer.map(tonic::Response::new),
        Err(_dropped) => Err(Status::unavailable("the test dropped the call")),
    }
}

#[tonic::async_trait]
impl Destination for Services {
    type GetStream = Messages<Update>;
    type GetProfileStream = Messages<DestinationProfile>;

    async fn get(
        &self,
        request: tonic::Request<GetDestination>,
    ) -> Result<tonic::Response<Self::GetStream>, Status> {
        pass_to_test(&self.endpoints, request).await
    }

    async fn get_profile(
        &self,
        request: tonic::Request<GetDestination>,
    ) -> Result<tonic::Response<Self::GetProfileStream>, Status> {
        pass_to_test(&self.profiles, request).await
    }
}

#[tonic::async_trait]
impl OutboundPolicies for Services {
    type WatchStream = Messages<OutboundPolicy>;

    async fn get(
        &self,
        _request: tonic::Request<TrafficSpec>,
    ) -> Result<tonic::Response<OutboundPolicy>, Status> {
        Err(Status::unimplemented("proxies watch"))
    }

    async fn watch(
        &self,
        request: tonic::Request<TrafficSpec>,
    ) -> Result<tonic::Response<Self::WatchStream>, Status> {
        pass_to_test(&self.outbound, request).await
    }
}

#[tonic::async_trait]
impl InboundServerPolicies for Services {
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
        pass_to_test(&self.inbound, request).await
    }
}

#[tonic::async_trait]
impl Identity for Services {
    async fn certify(
        &self,
        request: tonic::Request<CertifyRequest>,
    ) -> Result<tonic::Response<CertifyResponse>, Status> {
        pass_to_test(&self.certify, request).await
    }
}

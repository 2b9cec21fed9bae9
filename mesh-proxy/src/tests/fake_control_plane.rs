//! A control plane for unit tests: gRPC services on a loopback port that pass each call to the test
//! for its response.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use mesh_api::outbound::ExtendedPolicy;
use mesh_api::proto::destination::{DestinationProfile, GetDestination, Update};
use mesh_api::proto::identity::{CertifyRequest, CertifyResponse};
use mesh_api::proto::inbound::{PortSpec, Server};
use mesh_api::proto::outbound::TrafficSpec;
use mesh_test_support::control_plane::{Messages, Script, channel, serve_connection};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tonic::Status;

use crate::tls::server::{ClientTlsInfo, terminate};
use crate::tls::{Credentials, Purpose};
use crate::transport::Io;

pub(crate) use mesh_test_support::control_plane::MessageSender;

/// A call that waits for its response.
pub(crate) struct Call<Q, A> {
    pub(crate) request: Q,
    answer: oneshot::Sender<Result<A, Status>>,
}

type Tls = (Arc<Credentials>, mpsc::UnboundedSender<ClientTlsInfo>);

pub(crate) type Calls<Q, A> = mpsc::UnboundedReceiver<Call<Q, A>>;

/// The received calls, by method.
pub(crate) struct ControlPlane {
    pub(crate) addr: SocketAddr,
    pub(crate) endpoints: Calls<GetDestination, Messages<Update>>,
    pub(crate) profiles: Calls<GetDestination, Messages<DestinationProfile>>,
    pub(crate) outbound: Calls<TrafficSpec, Messages<ExtendedPolicy>>,
    pub(crate) inbound: Calls<PortSpec, Messages<Server>>,
    pub(crate) certify: Calls<CertifyRequest, CertifyResponse>,
    serving: JoinHandle<()>,
}

#[derive(Clone)]
struct Services {
    endpoints: mpsc::UnboundedSender<Call<GetDestination, Messages<Update>>>,
    profiles: mpsc::UnboundedSender<Call<GetDestination, Messages<DestinationProfile>>>,
    outbound: mpsc::UnboundedSender<Call<TrafficSpec, Messages<ExtendedPolicy>>>,
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

impl<Q, M: Send + 'static> Call<Q, Messages<M>> {
    /// Opens the stream.
    pub(crate) fn stream(self) -> MessageSender<M> {
        let (sender, messages) = channel();
        self.answer(messages);
        sender
    }
}

async fn serve(listener: TcpListener, services: Services, tls: Option<Tls>) {
    // Dropping the set closes all connections together with the listener.
    let mut connections = tokio::task::JoinSet::new();
    loop {
        let (tcp, _) = listener.accept().await.unwrap();
        // As the control plane does: a second message would wait for a delayed acknowledgement,
        // which is real time.
        tcp.set_nodelay(true).unwrap();
        let services = services.clone();
        let tls = tls.clone();
        connections.spawn(async move {
            let Some(io) = secure(tcp, tls).await else {
                return;
            };
            serve_connection(io, services).await;
        });
    }
}

/// Performs the TLS handshake. `None` when the client rejects it.
async fn secure(tcp: TcpStream, tls: Option<Tls>) -> Option<Io> {
    let io = Io::plain(tcp);
    let Some((credentials, clients)) = tls else {
        return Some(io);
    };
    let (io, client) = terminate(io, &credentials, false, Purpose::Control)
        .await
        .ok()?;
    clients.send(client).unwrap();
    Some(io)
}

async fn pass_to_test<Q, A>(
    to: &mpsc::UnboundedSender<Call<Q, A>>,
    request: Q,
) -> Result<A, Status> {
    let (answer, answered) = oneshot::channel();
    let call = Call { request, answer };
    to.send(call)
        .map_err(|_ended| Status::unavailable("the test has ended"))?;
    match answered.await {
        Ok(answer) => answer,
        Err(_dropped) => Err(Status::unavailable("the test dropped the call")),
    }
}

#[tonic::async_trait]
impl Script for Services {
    async fn endpoints(&self, request: GetDestination) -> Result<Messages<Update>, Status> {
        pass_to_test(&self.endpoints, request).await
    }

    async fn profile(
        &self,
        request: GetDestination,
    ) -> Result<Messages<DestinationProfile>, Status> {
        pass_to_test(&self.profiles, request).await
    }

    async fn outbound(&self, request: TrafficSpec) -> Result<Messages<ExtendedPolicy>, Status> {
        pass_to_test(&self.outbound, request).await
    }

    async fn inbound(&self, request: PortSpec) -> Result<Messages<Server>, Status> {
        pass_to_test(&self.inbound, request).await
    }

    async fn certify(&self, request: CertifyRequest) -> Result<CertifyResponse, Status> {
        pass_to_test(&self.certify, request).await
    }
}

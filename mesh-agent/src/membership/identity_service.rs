//! Calls of the identity service: certificates, and the trust anchors that it sends.

use std::io;
use std::time::{Duration, SystemTime};

use hyper_util::rt::TokioIo;
use mesh_api::grpc::{Channel, Endpoint, TransportError};
use mesh_api::identity::{IssuedCertificate, certify_request, issued, trust_bundle};
use mesh_api::mesh::identity::trust_anchors_client::TrustAnchorsClient;
use mesh_api::mesh::identity::{TrustBundle as TrustBundleMessage, WatchRequest};
use mesh_api::proto::identity::identity_client::IdentityClient;
use mesh_core::machine::{MAX_MACHINE_CERTIFICATES, MeshSettings};
use mesh_core::trust_bundle::TrustBundle;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tonic::{Code, Status, Streaming};
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::{FromDer as _, X509Certificate};

use super::key::MachineKey;
use super::tls::{self, TlsError};
use super::{dns, time};

/// Why the identity service gave nothing.
#[derive(Debug, thiserror::Error)]
pub enum ServiceError {
    #[error(
        "the name in the address {address} of the identity service cannot be resolved; check DNS, or admit the machine again with --identity-addr"
    )]
    Resolve { address: String, source: io::Error },
    #[error("cannot connect to the identity service at {address}; check the route and firewalls")]
    Connect { address: String, source: io::Error },
    #[error("the identity service at {address} did not {what} within {} s", .after.as_secs())]
    TimedOut {
        address: String,
        what: &'static str,
        after: Duration,
    },
    #[error("no TLS connection with the identity service at {address}, as {name}")]
    Tls {
        address: String,
        name: String,
        source: TlsError,
    },
    #[error("no HTTP/2 connection with the identity service at {address}")]
    Transport {
        address: String,
        source: TransportError,
    },
    #[error("{message} ({code})")]
    Refused { code: Code, message: String },
    #[error("the call of the identity service failed")]
    Call(#[source] Box<Status>),
    #[error("invalid response of the identity service")]
    Response(#[source] mesh_api::InvalidField),
    #[error("the identity service issued a certificate that cannot be used: {0}")]
    Certificate(String),
}

/// A certificate of this machine, and the ones above it.
#[derive(Debug)]
pub(super) struct Certified {
    /// In DER, leaf first.
    pub(super) chain: Vec<Vec<u8>>,
    pub(super) expires: SystemTime,
}

/// A stream of numbered trust anchors.
pub(super) struct Bundles(Streaming<TrustBundleMessage>);

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// A round trip and a signature.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);
/// Signing takes milliseconds; a loaded control plane may take seconds.
const CALL_TIMEOUT: Duration = Duration::from_secs(15);
/// A certificate has about 600 bytes.
const MAX_CERTIFICATE: usize = 16 * 1024;
/// To notice that the connection of a stream is gone.
const KEEP_ALIVE: Duration = Duration::from_secs(30);

/// Requests a certificate of `identity`, the machine's own, for its key.
pub(super) async fn certify(
    mesh: &MeshSettings,
    key: &MachineKey,
    identity: &str,
    token: Vec<u8>,
    request: Vec<u8>,
) -> Result<Certified, ServiceError> {
    let mut client = IdentityClient::new(Box::pin(connect(mesh)).await?);
    let calling = client.certify(certify_request(identity, token, request));
    let response = timeout(CALL_TIMEOUT, calling)
        .await
        .map_err(|_elapsed| timed_out(mesh, "respond", CALL_TIMEOUT))?
        .map_err(refused)?;
    let issued = issued(response.into_inner()).map_err(ServiceError::Response)?;
    check(issued, key, identity, SystemTime::now()).map_err(ServiceError::Certificate)
}

/// Requests the trust anchors, and all that follow.
pub(super) async fn watch_anchors(mesh: &MeshSettings) -> Result<Bundles, ServiceError> {
    let mut client = TrustAnchorsClient::new(Box::pin(connect(mesh)).await?);
    let response = timeout(CALL_TIMEOUT, client.watch(WatchRequest {}))
        .await
        .map_err(|_elapsed| timed_out(mesh, "respond", CALL_TIMEOUT))?
        .map_err(refused)?;
    Ok(Bundles(response.into_inner()))
}

impl Bundles {
    /// Returns the next anchors; `None` when the service has ended the stream.
    pub(super) async fn next(&mut self) -> Result<Option<TrustBundle>, ServiceError> {
        let message = self.0.message().await.map_err(refused)?;
        let bundle = message.map(trust_bundle).transpose();
        bundle.map_err(ServiceError::Response)
    }
}

impl ServiceError {
    /// Whether another attempt soon after may succeed.
    pub(super) fn is_temporary(&self) -> bool {
        match self {
            Self::TimedOut { .. } => true,
            Self::Refused { code, .. } => {
                matches!(code, Code::ResourceExhausted | Code::Unavailable)
            }
            _ => false,
        }
    }
}

async fn connect(mesh: &MeshSettings) -> Result<Channel, ServiceError> {
    let address = &mesh.identity.address;
    let stream = timeout(CONNECT_TIMEOUT, dial(address))
        .await
        .map_err(|_elapsed| timed_out(mesh, "accept a connection", CONNECT_TIMEOUT))??;
    let name = &mesh.identity.name;
    let handshake = tls::connect(stream, name, &mesh.trust_anchors);
    let stream = timeout(HANDSHAKE_TIMEOUT, handshake)
        .await
        .map_err(|_elapsed| timed_out(mesh, "complete a TLS handshake", HANDSHAKE_TIMEOUT))?;
    let stream = stream.map_err(|source| ServiceError::Tls {
        address: address.clone(),
        name: name.clone(),
        source,
    })?;
    let transport = |source| ServiceError::Transport {
        address: address.clone(),
        source,
    };
    let mut io = Some(TokioIo::new(stream));
    let connector = tower::service_fn(move |_: http::Uri| {
        let io = io.take();
        async move { io.ok_or_else(|| io::Error::other("the connection closed")) }
    });
    let endpoint = Endpoint::new(name).map_err(transport)?;
    let endpoint = endpoint.keep_alive(KEEP_ALIVE, HANDSHAKE_TIMEOUT);
    let connecting = endpoint.connect_over(connector);
    timeout(CONNECT_TIMEOUT, connecting)
        .await
        .map_err(|_elapsed| timed_out(mesh, "open an HTTP/2 connection", CONNECT_TIMEOUT))?
        .map_err(transport)
}

async fn dial(address: &str) -> Result<TcpStream, ServiceError> {
    let resolve = |source| ServiceError::Resolve {
        address: address.to_owned(),
        source,
    };
    let addresses = dns::resolve(address).await.map_err(resolve)?;
    if addresses.is_empty() {
        return Err(resolve(io::ErrorKind::NotFound.into()));
    }
    let connected = TcpStream::connect(&*addresses).await;
    connected.map_err(|source| ServiceError::Connect {
        address: address.to_owned(),
        source,
    })
}

fn timed_out(mesh: &MeshSettings, what: &'static str, after: Duration) -> ServiceError {
    ServiceError::TimedOut {
        address: mesh.identity.address.clone(),
        what,
        after,
    }
}

/// Tells what the service has decided from what happened to the call.
fn refused(status: Status) -> ServiceError {
    if std::error::Error::source(&status).is_some() {
        return ServiceError::Call(Box::new(status));
    }
    // It ends on a terminal.
    let message = status.message().chars().filter(|c| !c.is_control());
    ServiceError::Refused {
        code: status.code(),
        message: message.collect(),
    }
}

/// Checks what the tokens of this machine need: its key, its name, and a validity that has begun.
pub(super) fn check(
    issued: IssuedCertificate,
    key: &MachineKey,
    identity: &str,
    now: SystemTime,
) -> Result<Certified, String> {
    let chain: Vec<Vec<u8>> = [issued.leaf]
        .into_iter()
        .chain(issued.intermediates)
        .collect();
    if chain.len() > MAX_MACHINE_CERTIFICATES || chain.iter().any(|der| der.len() > MAX_CERTIFICATE)
    {
        return Err(format!(
            "more than {MAX_MACHINE_CERTIFICATES} certificates, or one of more than {} KiB",
            MAX_CERTIFICATE / 1024
        ));
    }
    let (_, leaf) = X509Certificate::from_der(&chain[0])
        .map_err(|error| format!("it is unreadable: {error}"))?;
    if leaf.public_key().raw != key.public() {
        return Err("it is for another key".to_owned());
    }
    let names = leaf.subject_alternative_name().ok().flatten();
    let names = names.map(|names| &*names.value.general_names);
    if !matches!(names, Some([GeneralName::DNSName(name)]) if *name == identity) {
        return Err(format!("its name is not {identity}"));
    }
    let [begin, end] = [leaf.validity().not_before, leaf.validity().not_after]
        .map(|time| u64::try_from(time.timestamp()).unwrap_or_default())
        .map(|seconds| SystemTime::UNIX_EPOCH + Duration::from_secs(seconds));
    if now < begin {
        return Err(format!(
            "it is valid from {} on, and the clock of this machine says {}; set the clock",
            time::text(begin),
            time::text(now)
        ));
    }
    if end <= now {
        return Err(format!(
            "it has expired at {}, and the clock of this machine says {}; set the clock",
            time::text(end),
            time::text(now)
        ));
    }
    Ok(Certified {
        chain,
        expires: end,
    })
}

//! The call to the Workload API, over a connection of its own.
//!
//! There are no keep-alive pings: the kernel closes the socket of a process that ends, and servers
//! of gRPC end connections with more than one ping in five minutes.

use std::io;
use std::path::{Path, PathBuf};

use http::{HeaderValue, Uri};
use hyper::body::Incoming;
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use mesh_api::grpc::{self, Sanitized};
use mesh_api::spiffe::MAX_RESPONSE;
use mesh_api::spiffe::wire::{X509svidRequest, X509svidResponse};
use tonic::Status;

use crate::control::stream::{self, ResponseStream};
use crate::transport::unix;

/// The responses of the Workload API.
pub(super) type Svids = ResponseStream<X509svidResponse, Sanitized<Incoming>>;

/// Why the call could not be sent.
#[derive(Debug, thiserror::Error)]
enum FetchError {
    #[error("cannot connect to the socket {socket:?} (does the agent run, and may this user?)")]
    Connect { socket: PathBuf, source: io::Error },
    #[error("HTTP/2 handshake at the socket {socket:?} failed")]
    Http {
        socket: PathBuf,
        source: hyper::Error,
    },
    #[error("call at the socket {socket:?} failed")]
    Send {
        socket: PathBuf,
        source: hyper::Error,
    },
}

/// gRPC names every server at a Unix socket `localhost`.
const FETCH: &str = "http://localhost/SpiffeWorkloadAPI/FetchX509SVID";

/// The field that every call must have. A service that can be made to send requests for others
/// cannot be made to send it.
const SECURITY_FIELD: &str = "workload.spiffe.io";

/// Connects to the socket and calls `FetchX509SVID`. The connection ends with the stream.
pub(super) async fn fetch(socket: &Path) -> Result<Svids, Status> {
    let error = |error: FetchError| Status::from_error(Box::new(error));
    let path = || socket.to_owned();
    let io = unix::connect(socket).await.map_err(|source| {
        let socket = path();
        error(FetchError::Connect { socket, source })
    })?;
    let (mut sender, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(io))
        .await
        .map_err(|source| {
            let socket = path();
            error(FetchError::Http { socket, source })
        })?;
    tokio::spawn(async move {
        if let Err(error) = connection.await {
            tracing::debug!(%error, "Connection to the Workload API ended");
        }
    });
    let mut request = stream::request(Uri::from_static(FETCH), &X509svidRequest {});
    let headers = request.headers_mut();
    headers.insert(SECURITY_FIELD, HeaderValue::from_static("true"));
    let response = sender.send_request(request).await.map_err(|source| {
        let socket = path();
        error(FetchError::Send { socket, source })
    })?;
    ResponseStream::new(grpc::response(response), MAX_RESPONSE)
}

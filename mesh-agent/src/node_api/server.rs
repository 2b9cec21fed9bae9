//! Serves the socket; the thread that owns the node (module `daemon`) does the work.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use std::{fs, io};

use mesh_core::node::{Refusal, RefusalReason, Request, Response};
use mesh_runtime::file::{self, FileError};
use mesh_runtime::{drain, log};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::time::timeout;

use super::line::write_line;
use super::{MAX_REQUEST, trace};
use crate::membership::{Membership, joining};
use crate::node_handle::NodeHandle;
use crate::traces::Traces;

/// A client of this project writes its one line immediately.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);

#[derive(Debug, thiserror::Error)]
pub enum BindError {
    #[error("another mesh agent listens on {0}; only one can run on a node")]
    InUse(PathBuf),
    #[error(transparent)]
    Listen(#[from] FileError),
}

pub fn has_listener(path: &Path) -> bool {
    std::os::unix::net::UnixStream::connect(path).is_ok()
}

/// Binds the socket, replacing one of an agent that was killed.
pub fn bind(path: &Path) -> Result<UnixListener, BindError> {
    let failed = file::failed("cannot listen on", path);
    if has_listener(path) {
        return Err(BindError::InUse(path.to_owned()));
    }
    file::remove(path).map_err(&failed)?;
    // Bound under a temporary name and renamed once only root may connect, so that the socket never
    // has a wider mode under its own name.
    let draft = path.with_extension("new");
    let _ = fs::remove_file(&draft);
    let listener = UnixListener::bind(&draft).map_err(&failed)?;
    fs::set_permissions(&draft, fs::Permissions::from_mode(0o600)).map_err(&failed)?;
    fs::rename(&draft, path).map_err(failed)?;
    Ok(listener)
}

/// What responds to requests.
#[derive(Clone)]
pub(crate) struct Responders {
    node_handle: Arc<NodeHandle>,
    traces: Arc<Traces>,
    /// Of an agent that can join its machine to a mesh.
    membership: Option<Arc<Membership>>,
}

impl Responders {
    pub(crate) fn new(node_handle: Arc<NodeHandle>, membership: Option<Arc<Membership>>) -> Self {
        Self {
            traces: Arc::new(Traces::new(Arc::clone(&node_handle))),
            node_handle,
            membership,
        }
    }

    async fn respond(&self, request: Request) -> Response {
        let (file, membership) = match (request, &self.membership) {
            (Request::Join(file), Some(membership)) => (file, membership),
            (request, _) => return self.node_handle.call(request).await,
        };
        match joining::join(membership, *file).await {
            Ok(status) => Response::Joined(Box::new(status)),
            Err(error) => {
                let refusal = Refusal {
                    reason: error.reason(),
                    message: log::chain(&error),
                };
                tracing::warn!("{}", refusal.message);
                Response::Refused(refusal)
            }
        }
    }
}

/// Accepts until the drain begins. Requests that have been read get a response; traces end.
pub(crate) async fn serve(listener: UnixListener, responders: Responders, drain: drain::Watch) {
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = drain.draining() => return,
        };
        match accepted {
            Ok((stream, _)) => {
                let responders = responders.clone();
                // The drain waits until the task drops its watch, within the request timeout.
                let drain = drain.clone();
                tokio::spawn(async move {
                    let served = serve_connection(stream, &responders, &drain).await;
                    if let Err(error) = served {
                        tracing::debug!(%error, "Connection on the agent's socket failed");
                    }
                });
            }
            Err(error) => {
                // Usually out of descriptors. Without a pause this loop would occupy the processor.
                tracing::warn!(%error, "Cannot accept a connection on the agent's socket");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

async fn serve_connection(
    stream: UnixStream,
    responders: &Responders,
    drain: &drain::Watch,
) -> io::Result<()> {
    let peer = stream.peer_cred()?;
    if peer.uid() != 0 {
        tracing::warn!(
            uid = peer.uid(),
            pid = peer.pid(),
            "Refused a client that is not root"
        );
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    let mut stream = BufReader::new(stream);
    let mut line = Vec::new();
    timeout(
        REQUEST_TIMEOUT,
        (&mut stream).take(MAX_REQUEST).read_until(b'\n', &mut line),
    )
    .await??;
    let response = match serde_json::from_slice::<Request>(&line) {
        Ok(Request::Trace(pod)) => {
            return trace::serve(stream.into_inner(), pod, &responders.traces, drain).await;
        }
        Ok(request) => responders.respond(request).await,
        Err(error) => Response::Refused(Refusal {
            reason: RefusalReason::Invalid,
            message: format!("cannot parse the request: {error}"),
        }),
    };
    write_line(stream.get_mut(), &response).await?;
    stream.get_mut().shutdown().await
}

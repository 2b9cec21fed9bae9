//! The control socket of the daemon: a JSON line for the request and one for the response, as with
//! the agent.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::time::Duration;

use mesh_core::node::Tier;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;

use crate::file::{self, FileError};
use crate::manifest::{ObjectKey, Problem};
use crate::node_paths::NodePaths;
use crate::observer::Observer;
use crate::pod::status::Summary;

pub use super::publish::ServiceSummary;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "kebab-case")]
pub enum Request {
    Status,
    /// Reload and apply the manifests.
    Apply,
    /// Stop all pods, then the daemon.
    Stop,
    /// Return the named or the first container of a pod.
    Target {
        pod: ObjectKey,
        container: Option<String>,
    },
    /// Return a token that makes the client the observer of the node's proxies.
    Observer,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Response {
    Status(Box<NodeStatus>),
    Target(Box<Target>),
    Observer(Box<Observer>),
    Stopped,
    Refused(String),
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeStatus {
    pub name: String,
    pub manifests: PathBuf,
    pub mesh: bool,
    /// The redirection tier; `None` without a mesh.
    pub tier: Option<Tier>,
    /// All pods of the manifests run and are ready.
    pub ready: bool,
    pub pods: Vec<Summary>,
    pub services: Vec<ServiceSummary>,
    pub warnings: Vec<String>,
    pub problems: Vec<Problem>,
}

/// A running container.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Target {
    pub container: String,
    pub pid: u32,
    /// The file with the task that created the container.
    pub task: PathBuf,
}

/// The only user that the daemon serves.
const ROOT: u32 = 0;

/// Maximum number of queued requests; each command sends one at a time.
const REQUEST_QUEUE: usize = 16;

pub(super) type RequestReceiver = mpsc::Receiver<(Request, oneshot::Sender<Response>)>;

/// The task that serves the control socket.
pub(super) struct ControlServer(JoinHandle<()>);

/// Time limit for writing the last responses, which are one line each.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(1);

impl ControlServer {
    /// Waits until pending responses are written. No connections are accepted after the receiver
    /// has been dropped.
    pub(super) async fn finish(self) {
        // A client that connected without sending a request must not block the shutdown.
        let _ = tokio::time::timeout(RESPONSE_TIMEOUT, self.0).await;
    }
}

/// Opens the socket, which only root may use, and forwards requests to the returned channel.
pub(super) fn listen(paths: &NodePaths) -> Result<(RequestReceiver, ControlServer), FileError> {
    let path = paths.control_socket();
    let listen_error = file::failed("listen on", &path);
    file::remove(&path).map_err(&listen_error)?;
    let listener = UnixListener::bind(&path).map_err(&listen_error)?;
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).map_err(listen_error)?;
    let (sender, receiver) = mpsc::channel(REQUEST_QUEUE);
    let server = tokio::spawn(async move {
        let mut connections = tokio::task::JoinSet::new();
        loop {
            tokio::select! {
                accepted = listener.accept() => {
                    if let Ok((stream, _)) = accepted {
                        connections.spawn(serve(stream, sender.clone()));
                    }
                }
                Some(_) = connections.join_next() => {}
                () = sender.closed() => break,
            }
        }
        while connections.join_next().await.is_some() {}
    });
    Ok((receiver, ControlServer(server)))
}

/// Rejects requests while the node is starting, until it receives a stop request.
pub(super) async fn refuse_all(requests: &mut RequestReceiver) {
    while let Some((request, response)) = requests.recv().await {
        let stop = request == Request::Stop;
        let reply = if stop {
            Response::Stopped
        } else {
            Response::Refused("the node is starting".into())
        };
        let _ = response.send(reply);
        if stop {
            return;
        }
    }
}

async fn serve(stream: UnixStream, requests: mpsc::Sender<(Request, oneshot::Sender<Response>)>) {
    // The mode of the socket is set after it was created.
    if !stream.peer_cred().is_ok_and(|peer| peer.uid() == ROOT) {
        return;
    }
    let mut stream = BufReader::new(stream);
    let mut line = String::new();
    if stream.read_line(&mut line).await.is_err() {
        return;
    }
    let response = match serde_json::from_str(&line) {
        Err(error) => Response::Refused(format!("invalid request: {error}")),
        Ok(request) => {
            let (sender, receiver) = oneshot::channel();
            let stopping = || Response::Refused("the node is stopping".into());
            match requests.send((request, sender)).await {
                Ok(()) => receiver.await.unwrap_or_else(|_| stopping()),
                Err(_) => stopping(),
            }
        }
    };
    if let Ok(text) = serde_json::to_string(&response) {
        // The client may have disconnected.
        let _ = stream.write_all(format!("{text}\n").as_bytes()).await;
    }
}

//! The daemon's socket: one JSON request line, one JSON answer line, like the agent's.

use std::{fs, os::unix::fs::PermissionsExt as _, path::PathBuf, time::Duration};

use mesh_core::node::Tier;
use serde::{Deserialize, Serialize};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader},
    net::{UnixListener, UnixStream},
    sync::{mpsc, oneshot},
    task::JoinHandle,
};

use super::NodeError;
pub use super::publish::ServiceSummary;
use crate::{
    file,
    instance::Instance,
    manifest::{Key, Problem},
    pod::status::Summary,
};

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "kebab-case")]
pub enum Request {
    Status,
    /// Read the manifests again and make them so.
    Apply,
    /// End every pod, then the daemon.
    Stop,
    /// Where is the first, or the named, container of a pod?
    Target {
        pod: Key,
        container: Option<String>,
    },
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Answer {
    Status(Box<NodeStatus>),
    Target(Box<Target>),
    Stopped,
    Refused(String),
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeStatus {
    pub name: String,
    pub manifests: PathBuf,
    pub mesh: bool,
    /// How pods are redirected; absent without a mesh.
    pub tier: Option<Tier>,
    /// Does everything run that should, and is it ready?
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
    /// The task it was started with.
    pub task: PathBuf,
}

/// A command asks one thing at a time, and few people type at once.
const WAITING: usize = 16;

pub(super) type Incoming = mpsc::Receiver<(Request, oneshot::Sender<Answer>)>;

/// Answers that are still to be written when the daemon ends.
pub(super) struct Server(JoinHandle<()>);

/// The last answer is one line to a process that waits for it.
const LAST_WORDS: Duration = Duration::from_secs(1);

impl Server {
    /// Waits until those who asked have their answers. Nothing new is taken once the receiver is
    /// dropped.
    pub(super) async fn finish(self) {
        // Someone who connected and never asked is not waited for.
        let _ = tokio::time::timeout(LAST_WORDS, self.0).await;
    }
}

/// Opens the socket, for root only, and hands on what is asked.
pub(super) fn listen(instance: &Instance) -> Result<(Incoming, Server), NodeError> {
    let path = instance.control_socket();
    let listen_error = |source| NodeError::Listen {
        path: path.clone(),
        source,
    };
    file::remove(&path).map_err(listen_error)?;
    let listener = UnixListener::bind(&path).map_err(listen_error)?;
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).map_err(listen_error)?;
    let (sender, receiver) = mpsc::channel(WAITING);
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
    Ok((receiver, Server(server)))
}

/// Answers while the node is not yet able to, until it is told to stop.
pub(super) async fn refuse_all(requests: &mut Incoming) {
    while let Some((request, answer)) = requests.recv().await {
        let stop = request == Request::Stop;
        let reply = if stop {
            Answer::Stopped
        } else {
            Answer::Refused("the node is starting".into())
        };
        let _ = answer.send(reply);
        if stop {
            return;
        }
    }
}

async fn serve(stream: UnixStream, requests: mpsc::Sender<(Request, oneshot::Sender<Answer>)>) {
    let mut stream = BufReader::new(stream);
    let mut line = String::new();
    if stream.read_line(&mut line).await.is_err() {
        return;
    }
    let answer = match serde_json::from_str(&line) {
        Err(error) => Answer::Refused(format!("the request cannot be read: {error}")),
        Ok(request) => {
            let (sender, receiver) = oneshot::channel();
            let stopping = || Answer::Refused("the node is stopping".into());
            match requests.send((request, sender)).await {
                Ok(()) => receiver.await.unwrap_or_else(|_| stopping()),
                Err(_) => stopping(),
            }
        }
    };
    if let Ok(text) = serde_json::to_string(&answer) {
        // Whoever asked may have gone.
        let _ = stream.write_all(format!("{text}\n").as_bytes()).await;
    }
}

//! `mesh-agent dial`: a TCP connection from an enrolled pod, which the pod's redirection handles as
//! one of its applications, joined to standard input and output. `meshctl why` sends its request
//! over it. Called by `main`.
//!
//! The first line of output is `{"connected":{"local":"IP:PORT"}}`; everything after it is what the
//! peer sends. The end of standard input closes the sending half of the connection, and the end of
//! the peer's half closes standard output. The process ends after both.

mod cgroup;
mod tunnel;

use std::io::{self, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use mesh_core::node::{NodeStatus, PodRef, PodStatus, Request, Response};
use socket2::{Domain, Protocol, Socket, Type};

use crate::config::Dial;
use crate::node_api::client::{self, ClientError};
use crate::sys::netns::{self, NetnsError};
use cgroup::PodsCgroup;

pub use cgroup::CgroupError;

/// The agent answers within milliseconds, except while it enrols other pods.
const AGENT_TIMEOUT: Duration = Duration::from_secs(10);

#[derive(Debug, thiserror::Error)]
pub enum DialError {
    #[error(transparent)]
    Agent(#[from] ClientError),
    #[error("the mesh agent on {socket} refused to list its pods: {message}")]
    Refused { socket: PathBuf, message: String },
    #[error(
        "pod {pod} is not enrolled on this node; `mesh-agent dial` connects from meshed pods of its own node only"
    )]
    NotEnrolled { pod: PodRef },
    #[error("cannot connect from pod {pod}")]
    Namespace { pod: PodRef, source: NetnsError },
    #[error("cannot connect as an application of pod {pod}")]
    Cgroup { pod: PodRef, source: CgroupError },
    #[error("cannot connect from pod {pod} to {target}")]
    Connect {
        pod: PodRef,
        target: SocketAddr,
        source: io::Error,
    },
    #[error("cannot write to standard output")]
    Output(#[source] io::Error),
    #[error("the connection from pod {pod} to {target} failed")]
    Transfer {
        pod: PodRef,
        target: SocketAddr,
        source: io::Error,
    },
}

/// Connects and copies until both ends have closed. Must be called while the process has one
/// thread.
pub fn run(socket: &Path, dial: &Dial) -> Result<(), DialError> {
    let pod = find(socket, &dial.pod)?;
    let stream = connect(socket, &pod, dial)?;
    let local = stream
        .local_addr()
        .map_err(|source| transfer_error(dial, source))?;
    let connected = serde_json::json!({"connected": {"local": local.to_string()}});
    let mut stdout = io::stdout().lock();
    writeln!(stdout, "{connected}")
        .and_then(|()| stdout.flush())
        .map_err(DialError::Output)?;
    drop(stdout);
    tunnel::copy(stream).map_err(|source| transfer_error(dial, source))
}

fn transfer_error(dial: &Dial, source: io::Error) -> DialError {
    DialError::Transfer {
        pod: dial.pod.clone(),
        target: dial.target,
        source,
    }
}

/// Finds the pod among those that the agent has enrolled. One that ended without a CNI DEL may
/// still be recorded beside its successor of the same name, so the namespace decides.
fn find(socket: &Path, wanted: &PodRef) -> Result<PodStatus, DialError> {
    let pods = match client::call(socket, &Request::Pods, AGENT_TIMEOUT)? {
        Response::Pods(pods) => pods,
        other => return Err(refused(socket, &other)),
    };
    let exists = |pod: &PodStatus| {
        netns::cookie_of(&pod.netns).is_ok_and(|cookie| cookie == pod.netns_cookie)
    };
    pods.into_iter()
        .filter(|pod| pod.pod.namespace == wanted.namespace && pod.pod.name == wanted.name)
        .find(exists)
        .ok_or_else(|| DialError::NotEnrolled {
            pod: wanted.clone(),
        })
}

fn status(socket: &Path) -> Result<NodeStatus, DialError> {
    match client::call(socket, &Request::Status, AGENT_TIMEOUT)? {
        Response::Status(status) => Ok(*status),
        other => Err(refused(socket, &other)),
    }
}

fn refused(socket: &Path, response: &Response) -> DialError {
    DialError::Refused {
        socket: socket.to_owned(),
        message: match response {
            Response::Refused(refusal) => refusal.message.clone(),
            _ => "its response is of another version".to_owned(),
        },
    }
}

/// Connects in the pod's network namespace. The kernel programs are attached to the parent of the
/// pods' cgroups, so that a pod of an eBPF tier is only dialled from below it.
fn connect(socket: &Path, pod: &PodStatus, dial: &Dial) -> Result<TcpStream, DialError> {
    let _cgroup = if pod.tier.uses_ebpf() {
        let parent = status(socket)?.cgroup_root;
        let entered = PodsCgroup::enter(parent.as_deref());
        Some(entered.map_err(|source| DialError::Cgroup {
            pod: dial.pod.clone(),
            source,
        })?)
    } else {
        None
    };
    let timeout = Duration::from_secs(dial.timeout);
    let connected = netns::open(&pod.netns)
        .and_then(|namespace| netns::run_in(namespace, || open(dial.target, timeout)));
    connected
        .map_err(|source| DialError::Namespace {
            pod: dial.pod.clone(),
            source,
        })?
        .map_err(|source| DialError::Connect {
            pod: dial.pod.clone(),
            target: dial.target,
            source,
        })
}

fn open(target: SocketAddr, timeout: Duration) -> io::Result<TcpStream> {
    let domain = Domain::for_address(target);
    let socket = Socket::new(domain, Type::STREAM, Some(Protocol::TCP))?;
    socket.connect_timeout(&target.into(), timeout)?;
    Ok(socket.into())
}

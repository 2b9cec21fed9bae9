//! `mesh-agent trace`: prints the decisions of the kernel programs about a pod's connections, which
//! the running agent sends over its socket (module `traces`). Called by `main`.
//!
//! The first line of output is `{"tracing":"NAMESPACE/NAME"}`. From then on no decision is missed
//! without notice; each further line is a [`RedirectionEvent`](mesh_core::redirection). Standard
//! error reports the number of missing decisions and the reason for the end of the trace.

use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use mesh_core::node::{PodRef, Request, Response, TraceLine};
use serde::Serialize;

use crate::config::Trace;
use crate::node_api::client::{self, ClientError, ResponseStream};

/// The agent answers within milliseconds, except while it enrols other pods.
const AGENT_TIMEOUT: Duration = Duration::from_secs(10);

#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    #[error(transparent)]
    Agent(#[from] ClientError),
    #[error("{0}")]
    Refused(String),
    #[error("the mesh agent on {socket} does not trace: its response is of another version")]
    Response { socket: PathBuf },
    #[error("the trace of pod {pod} has ended: {reason}")]
    Ended { pod: PodRef, reason: String },
    #[error("cannot read standard input to its end")]
    Input(#[source] io::Error),
    #[error("cannot write to standard output")]
    Output(#[source] io::Error),
}

/// Prints until standard output or, if requested, standard input ends; an end by the agent is an
/// error.
pub fn run(socket: &Path, trace: &Trace) -> Result<(), TraceError> {
    let pod = &trace.pod;
    let mut stream = client::open(socket, &Request::Trace(pod.clone()), AGENT_TIMEOUT)?;
    match stream.read::<Response>()? {
        Some(Response::Tracing) => stream.wait_without_timeout()?,
        Some(Response::Refused(refusal)) => return Err(TraceError::Refused(refusal.message)),
        _ => {
            return Err(TraceError::Response {
                socket: socket.to_owned(),
            });
        }
    }
    print(&serde_json::json!({"tracing": pod.to_string()}))?;
    let input_ended = Arc::<AtomicBool>::default();
    if trace.stdin {
        end_with_stdin(&stream, Arc::clone(&input_ended))?;
    }
    print_events(&mut stream, pod, &input_ended)
}

fn print_events(
    stream: &mut ResponseStream,
    pod: &PodRef,
    input_ended: &AtomicBool,
) -> Result<(), TraceError> {
    let ended = |reason: String| TraceError::Ended {
        pod: pod.clone(),
        reason,
    };
    loop {
        match stream.read()? {
            Some(TraceLine::Event(event)) => print(&event)?,
            Some(TraceLine::Dropped(count)) => {
                // Without standard error there is no place for it.
                let _ = writeln!(
                    io::stderr(),
                    "{count} decisions are missing: pod {pod} made them faster than they could be reported"
                );
            }
            Some(TraceLine::Ended(reason)) => return Err(ended(reason)),
            None if input_ended.load(Ordering::Relaxed) => return Ok(()),
            None => return Err(ended("the mesh agent has stopped".to_owned())),
        }
    }
}

/// Closes the connection when standard input ends.
fn end_with_stdin(stream: &ResponseStream, input_ended: Arc<AtomicBool>) -> Result<(), TraceError> {
    let connection = stream.try_clone().map_err(TraceError::Input)?;
    thread::spawn(move || {
        let mut stdin = io::stdin().lock();
        let mut buffer = [0; 256];
        while stdin.read(&mut buffer).is_ok_and(|count| count > 0) {}
        input_ended.store(true, Ordering::Relaxed);
        // Fails when the agent has closed it.
        let _ = connection.shutdown(Shutdown::Both);
    });
    Ok(())
}

fn print(value: &impl Serialize) -> Result<(), TraceError> {
    let mut line = serde_json::to_vec(value)
        .map_err(io::Error::from)
        .map_err(TraceError::Output)?;
    line.push(b'\n');
    let mut stdout = io::stdout().lock();
    stdout
        .write_all(&line)
        .and_then(|()| stdout.flush())
        .map_err(TraceError::Output)
}

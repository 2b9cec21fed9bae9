//! Sends the agent one request, with a deadline for the whole exchange.

use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use mesh_core::node::{Request, Response};
use socket2::{Domain, SockAddr, Socket, Type};

use super::MAX_RESPONSE;

/// Why a request has no response. The plugin treats each of them as an absent agent.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    #[error("the mesh agent does not listen on {socket}")]
    Connect {
        socket: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("the mesh agent on {socket} did not respond within {timeout:?}")]
    TimedOut { socket: PathBuf, timeout: Duration },
    #[error("the connection to the mesh agent on {socket} failed")]
    Exchange {
        socket: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error(
        "the response of the mesh agent on {socket} cannot be parsed; agent and plugin may be of different versions"
    )]
    Decode {
        socket: PathBuf,
        #[source]
        source: serde_json::Error,
    },
}

pub fn call(socket: &Path, request: &Request, timeout: Duration) -> Result<Response, ClientError> {
    let deadline = Instant::now() + timeout;
    let connection = connect(socket, timeout).map_err(|source| ClientError::Connect {
        socket: socket.to_owned(),
        source,
    })?;
    let line = exchange(connection, request, deadline).map_err(|source| {
        if matches!(
            source.kind(),
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut
        ) {
            ClientError::TimedOut {
                socket: socket.to_owned(),
                timeout,
            }
        } else {
            ClientError::Exchange {
                socket: socket.to_owned(),
                source,
            }
        }
    })?;
    serde_json::from_slice(&line).map_err(|source| ClientError::Decode {
        socket: socket.to_owned(),
        source,
    })
}

fn connect(path: &Path, timeout: Duration) -> io::Result<Socket> {
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    socket.connect_timeout(&SockAddr::unix(path)?, timeout)?;
    Ok(socket)
}

fn exchange(mut socket: Socket, request: &Request, deadline: Instant) -> io::Result<Vec<u8>> {
    let mut line = serde_json::to_vec(request)?;
    line.push(b'\n');
    socket.set_write_timeout(Some(remaining(deadline)?))?;
    socket.write_all(&line)?;
    let mut response = Vec::new();
    let mut buffer = [0; 16 * 1024];
    while !response.ends_with(b"\n") {
        socket.set_read_timeout(Some(remaining(deadline)?))?;
        let count = socket.read(&mut buffer)?;
        if count == 0 || response.len() as u64 > MAX_RESPONSE {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        response.extend_from_slice(&buffer[..count]);
    }
    Ok(response)
}

/// Returns the time until the deadline, or the error of a read that timed out when none is left.
fn remaining(deadline: Instant) -> io::Result<Duration> {
    let remaining = deadline.saturating_duration_since(Instant::now());
    if remaining.is_zero() {
        Err(io::ErrorKind::TimedOut.into())
    } else {
        Ok(remaining)
    }
}

//! Asks the agent one question, with a deadline for the whole exchange.

use std::{
    io::{self, Read, Write},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use mesh_core::node::{Answer, Request};
use socket2::{Domain, SockAddr, Socket, Type};

use super::MAX_ANSWER;

/// Why there is no answer. To the plugin all of them mean that the agent is away.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    #[error("the mesh agent does not listen on {socket}")]
    Connect {
        socket: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("the mesh agent on {socket} did not answer within {timeout:?}")]
    TooLate { socket: PathBuf, timeout: Duration },
    #[error("the connection to the mesh agent on {socket} broke")]
    Broken {
        socket: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error(
        "the mesh agent on {socket} gave an answer that cannot be read; is it of another version?"
    )]
    Unreadable {
        socket: PathBuf,
        #[source]
        source: serde_json::Error,
    },
}

/// Sends the request and waits for the answer.
pub fn ask(socket: &Path, request: &Request, timeout: Duration) -> Result<Answer, ClientError> {
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
            ClientError::TooLate {
                socket: socket.to_owned(),
                timeout,
            }
        } else {
            ClientError::Broken {
                socket: socket.to_owned(),
                source,
            }
        }
    })?;
    serde_json::from_slice(&line).map_err(|source| ClientError::Unreadable {
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
    socket.set_write_timeout(Some(left(deadline)?))?;
    socket.write_all(&line)?;
    let mut answer = Vec::new();
    let mut buffer = [0; 16 * 1024];
    while !answer.ends_with(b"\n") {
        socket.set_read_timeout(Some(left(deadline)?))?;
        let count = socket.read(&mut buffer)?;
        if count == 0 || answer.len() as u64 > MAX_ANSWER {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        answer.extend_from_slice(&buffer[..count]);
    }
    Ok(answer)
}

/// The time until the deadline; none left is the error of a read that timed out.
fn left(deadline: Instant) -> io::Result<Duration> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() {
        Err(io::ErrorKind::TimedOut.into())
    } else {
        Ok(left)
    }
}

//! Sends the agent one request: [`call`], with a deadline for the whole exchange, or [`open`],
//! whose response is followed by further lines.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use mesh_core::node::{Request, Response};
use serde::de::DeserializeOwned;
use socket2::{Domain, SockAddr, Socket, Type};

use super::MAX_RESPONSE;

/// Why a request has no response. The plugin treats each of them as an absent agent.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    #[error("the mesh agent does not listen on {socket}")]
    Connect { socket: PathBuf, source: io::Error },
    #[error("the mesh agent on {socket} did not respond within {timeout:?}")]
    TimedOut { socket: PathBuf, timeout: Duration },
    #[error("the connection to the mesh agent on {socket} failed")]
    Exchange { socket: PathBuf, source: io::Error },
    #[error(
        "the response of the mesh agent on {socket} cannot be parsed; agent and plugin may be of different versions"
    )]
    Decode {
        socket: PathBuf,
        source: serde_json::Error,
    },
}

/// The lines that the agent sends in response to one request.
#[derive(Debug)]
pub struct ResponseStream {
    reader: BufReader<Socket>,
    socket: PathBuf,
    timeout: Duration,
}

pub fn call(socket: &Path, request: &Request, timeout: Duration) -> Result<Response, ClientError> {
    let deadline = Instant::now() + timeout;
    let connection = connect(socket, timeout)?;
    let line = exchange(connection, request, deadline)
        .map_err(|source| exchange_error(socket, timeout, source))?;
    decode(socket, &line)
}

/// Sends a request. Each line of the response must follow within the timeout, until
/// [`ResponseStream::wait_without_timeout`].
pub fn open(
    socket: &Path,
    request: &Request,
    timeout: Duration,
) -> Result<ResponseStream, ClientError> {
    let mut connection = connect(socket, timeout)?;
    let mut send = || {
        connection.set_write_timeout(Some(timeout))?;
        connection.set_read_timeout(Some(timeout))?;
        connection.write_all(&line_of(request)?)
    };
    send().map_err(|source| exchange_error(socket, timeout, source))?;
    Ok(ResponseStream {
        reader: BufReader::new(connection),
        socket: socket.to_owned(),
        timeout,
    })
}

impl ResponseStream {
    /// Returns the next line; `None` after the last.
    pub fn read<T: DeserializeOwned>(&mut self) -> Result<Option<T>, ClientError> {
        let mut line = Vec::new();
        let mut bounded = (&mut self.reader).take(MAX_RESPONSE);
        bounded
            .read_until(b'\n', &mut line)
            .map_err(|source| exchange_error(&self.socket, self.timeout, source))?;
        if line.is_empty() {
            return Ok(None);
        }
        decode(&self.socket, &line).map(Some)
    }

    pub fn wait_without_timeout(&self) -> Result<(), ClientError> {
        let connection = self.reader.get_ref();
        connection
            .set_read_timeout(None)
            .map_err(|source| exchange_error(&self.socket, self.timeout, source))
    }

    /// Returns another handle of the connection, to end it.
    pub fn try_clone(&self) -> io::Result<Socket> {
        self.reader.get_ref().try_clone()
    }
}

fn connect(path: &Path, timeout: Duration) -> Result<Socket, ClientError> {
    let connect = || {
        let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
        socket.connect_timeout(&SockAddr::unix(path)?, timeout)?;
        Ok(socket)
    };
    connect().map_err(|source| ClientError::Connect {
        socket: path.to_owned(),
        source,
    })
}

fn exchange_error(socket: &Path, timeout: Duration, source: io::Error) -> ClientError {
    let socket = socket.to_owned();
    match source.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
            ClientError::TimedOut { socket, timeout }
        }
        _ => ClientError::Exchange { socket, source },
    }
}

fn decode<T: DeserializeOwned>(socket: &Path, line: &[u8]) -> Result<T, ClientError> {
    serde_json::from_slice(line).map_err(|source| ClientError::Decode {
        socket: socket.to_owned(),
        source,
    })
}

fn line_of(request: &Request) -> io::Result<Vec<u8>> {
    let mut line = serde_json::to_vec(request)?;
    line.push(b'\n');
    Ok(line)
}

fn exchange(mut socket: Socket, request: &Request, deadline: Instant) -> io::Result<Vec<u8>> {
    socket.set_write_timeout(Some(remaining(deadline)?))?;
    socket.write_all(&line_of(request)?)?;
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

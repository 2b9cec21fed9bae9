//! Detection of server-first protocols (MySQL, SMTP, SSH, NATS, …) without waiting for the
//! detection timeout.
//!
//! While the client is silent, the proxy connects to the server. If the server sends first, the
//! connection cannot be HTTP or TLS and is opaque. If the client does, protocol detection continues
//! and the connection to the server is closed unused. If the server closes its connection, no
//! protocol matters: the connection is opaque, and its end is passed on.

use std::io;
use std::time::Duration;

use mesh_runtime::bounded_buffer::Fill;
use tokio::time::{Instant, sleep_until, timeout_at};

use super::read_more;
use crate::transport::{Io, Scratch};

/// The peer that sent first. The bytes are in the replay of its connection. `C` is a connection to
/// the server, boxed so that only connections that dial use memory for it.
#[derive(Debug)]
pub(crate) enum FirstSpeaker<C> {
    /// The client has sent bytes or closed its direction.
    Client,
    /// The server has sent bytes on this connection.
    Server(Box<C>),
    /// The server has closed this connection without a byte, or has reset it. It remains to be
    /// told to the client.
    ServerClosed(Box<C>),
    /// The client has closed its sending half without a byte, and may wait for the server. Contains
    /// the connection to the server if there is one.
    ClientFinished(Option<Box<C>>),
    /// Neither has, within the limit. Contains the connection to the server if there is one.
    Neither(Option<Box<C>>),
}

/// How long the proxy waits for the client before it connects to the server. A client that sends
/// first does so within one round trip.
pub(crate) const SERVER_DIAL_DELAY: Duration = Duration::from_millis(200);

/// Waits for the first byte from either peer. After `dial_delay`, `dial` connects to the server, or
/// returns `None` when it must not or cannot. Its future is boxed, so that only connections that
/// dial use memory for it.
pub(crate) async fn first_speaker<C: AsMut<Io>>(
    client: &mut Io,
    scratch: &Scratch,
    dial_delay: Duration,
    limit: Duration,
    dial: impl AsyncFnOnce() -> Option<C>,
) -> io::Result<FirstSpeaker<C>> {
    if !client.replay().is_empty() {
        return Ok(FirstSpeaker::Client);
    }
    let start = Instant::now();
    let deadline = start + limit;
    let dial_at = deadline.min(start + dial_delay);
    if let Ok(read) = timeout_at(dial_at, read_more(client, scratch)).await {
        return read.map(|fill| by_client(fill, None));
    }
    let server = tokio::select! {
        biased;
        read = read_more(client, scratch) => return read.map(|fill| by_client(fill, None)),
        server = Box::pin(dial()) => server.map(Box::new),
        () = sleep_until(deadline) => None,
    };
    if let Some(mut server) = server {
        tokio::select! {
            biased;
            read = read_more(client, scratch) => {
                if read.is_err() {
                    // After a mere close the server would have an empty stream that looks complete.
                    let io: &mut Io = (*server).as_mut();
                    io.reset_on_close();
                }
                return read.map(|fill| by_client(fill, Some(server)));
            }
            read = read_more((*server).as_mut(), scratch) => {
                return Ok(match read {
                    Ok(Fill::Read(_)) => FirstSpeaker::Server(server),
                    Ok(_) | Err(_) => FirstSpeaker::ServerClosed(server),
                });
            }
            () = sleep_until(deadline) => return Ok(FirstSpeaker::Neither(Some(server))),
        }
    }
    match timeout_at(deadline, read_more(client, scratch)).await {
        Ok(read) => read.map(|fill| by_client(fill, None)),
        Err(_elapsed) => Ok(FirstSpeaker::Neither(None)),
    }
}

fn by_client<C>(fill: Fill, server: Option<Box<C>>) -> FirstSpeaker<C> {
    match fill {
        Fill::End => FirstSpeaker::ClientFinished(server),
        Fill::Read(_) | Fill::Full => FirstSpeaker::Client,
    }
}

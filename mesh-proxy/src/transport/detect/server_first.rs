//! Detection of server-first protocols (MySQL, SMTP, SSH, NATS, …) without waiting for the
//! detection timeout.
//!
//! While the client is silent, the proxy connects to the server. If the server sends first, the
//! connection cannot be HTTP or TLS and is opaque. If the client does, protocol detection
//! continues: an opaque connection continues on the one to the server, which is closed unused if
//! requests follow, since each selects its endpoint. If the server refuses or closes its
//! connection, no protocol matters: the connection is opaque, and its end is passed on.

use std::io;
use std::time::Duration;

use mesh_planted::Bug;
use mesh_runtime::bounded_buffer::Fill;
use tokio::time::{Instant, sleep_until, timeout_at};

use super::{http, read_more};
use crate::transport::{Io, Scratch};

/// The peer that sent first. The bytes are in the replay of its connection. `C` is a connection to
/// the server and `E` why there is none, boxed so that only connections that dial use memory for
/// them.
#[derive(Debug)]
pub(crate) enum FirstSpeaker<C, E> {
    /// The client has sent bytes. Contains the connection to the server if there is one, for a
    /// protocol that turns out to be opaque.
    Client(Option<Box<C>>),
    /// The server has sent bytes on this connection.
    Server(Box<C>),
    /// The server has closed this connection without a byte, or has reset it. It remains to be
    /// told to the client.
    ServerClosed(Box<C>),
    /// The server cannot be connected to. It remains to be told to the client.
    Unreachable(Box<E>),
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
/// returns `None` when only the client's bytes can decide whether it may. Its future is boxed, so
/// that only connections that dial use memory for it.
pub(crate) async fn first_speaker<C: AsMut<Io>, E>(
    client: &mut Io,
    scratch: &Scratch,
    dial_delay: Duration,
    limit: Duration,
    dial: impl AsyncFnOnce() -> Option<Result<C, E>>,
) -> io::Result<FirstSpeaker<C, E>> {
    if !client.replay().is_empty() {
        return Ok(FirstSpeaker::Client(None));
    }
    let start = Instant::now();
    let deadline = start + limit;
    let dial_at = deadline.min(start + dial_delay);
    if let Ok(read) = timeout_at(dial_at, read_more(client, scratch)).await {
        return read.map(|fill| by_client(fill, None));
    }
    let mut dialling = Box::pin(dial());
    let server = tokio::select! {
        biased;
        read = read_more(client, scratch) => {
            let fill = read?;
            let is_opaque = !matches!(fill, Fill::End) && !http::may_begin(client.replay());
            // The server sees the connection that it has accepted, and no other one.
            let server = if is_opaque {
                timeout_at(deadline, dialling).await.unwrap_or_default()
            } else {
                None
            };
            return Ok(by_client(fill, server.and_then(Result::ok).map(Box::new)));
        }
        server = &mut dialling => server,
        () = sleep_until(deadline) => None,
    };
    if let Some(server) = server {
        let mut server = match server {
            Ok(server) => Box::new(server),
            Err(error) => return Ok(FirstSpeaker::Unreachable(Box::new(error))),
        };
        // Should the client fail or the proxy end here, the server must not have an empty stream
        // that looks complete.
        (*server).as_mut().reset_on_close();
        tokio::select! {
            biased;
            read = read_more(client, scratch) => {
                return read.map(|fill| by_client(fill, Some(server)));
            }
            read = read_more((*server).as_mut(), scratch) => {
                if Bug::ServerFirstBytesLost.is_planted() {
                    let io: &mut Io = (*server).as_mut();
                    io.consume_replay(io.replay().len());
                }
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

fn by_client<C, E>(fill: Fill, server: Option<Box<C>>) -> FirstSpeaker<C, E> {
    match fill {
        Fill::End => FirstSpeaker::ClientFinished(server),
        Fill::Read(_) | Fill::Full => FirstSpeaker::Client(server),
    }
}

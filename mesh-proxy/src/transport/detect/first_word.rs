//! Who speaks first? Tells protocols in which the server greets (MySQL, SMTP, SSH, NATS, …) from
//! those in which the client asks, without waiting for a detection timeout.
//!
//! A client that has said nothing for a moment gets its server dialled. If the server then speaks,
//! the connection cannot be HTTP or TLS and is opaque; if the client does, detection goes on as if
//! nothing had happened and the connection to the server is dropped unused.

use std::io;
use std::time::Duration;

use futures_util::future::LocalBoxFuture;
use tokio::time::{Instant, sleep_until, timeout_at};

use super::read_more;
use crate::transport::{Io, Scratch};

/// The outcome; what was said is in the speaker's replay.
#[derive(Debug)]
pub enum FirstWord {
    /// The client has spoken, or has closed its side.
    Client,
    /// The server has spoken on this connection.
    Server(Io),
    /// Nobody has, within the limit. Holds the connection to the server if there is one.
    Nobody(Option<Io>),
}

/// How long a client may be silent before its server is dialled. Clients that speak first do so
/// within one round trip of their connection being made.
pub const PATIENCE: Duration = Duration::from_millis(200);

/// Waits for the first byte from either side. `dial` makes the connection to the server, or returns
/// `None` when that must not or cannot be done. Its future is boxed, so that only a connection that
/// dials holds memory for dialling.
pub async fn first_word<'a>(
    client: &mut Io,
    scratch: &Scratch,
    patience: Duration,
    limit: Duration,
    dial: impl FnOnce() -> LocalBoxFuture<'a, Option<Io>>,
) -> io::Result<FirstWord> {
    if !client.replay().is_empty() {
        return Ok(FirstWord::Client);
    }
    let start = Instant::now();
    let deadline = start + limit;
    if let Ok(read) = timeout_at(deadline.min(start + patience), read_more(client, scratch)).await {
        return read.map(|_| FirstWord::Client);
    }
    let server = tokio::select! {
        biased;
        read = read_more(client, scratch) => return read.map(|_| FirstWord::Client),
        server = dial() => server,
        () = sleep_until(deadline) => None,
    };
    if let Some(mut server) = server {
        tokio::select! {
            biased;
            read = read_more(client, scratch) => return read.map(|_| FirstWord::Client),
            read = read_more(&mut server, scratch) => {
                // A server that closes or fails has said nothing about its protocol.
                if matches!(read, Ok(1..)) {
                    return Ok(FirstWord::Server(server));
                }
            }
            () = sleep_until(deadline) => return Ok(FirstWord::Nobody(Some(server))),
        }
    }
    match timeout_at(deadline, read_more(client, scratch)).await {
        Ok(read) => read.map(|_| FirstWord::Client),
        Err(_elapsed) => Ok(FirstWord::Nobody(None)),
    }
}

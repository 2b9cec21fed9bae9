//! Copying between real sockets: bytes arrive, half-closes are forwarded, errors and drains end it.

use std::pin::pin;
use std::rc::Rc;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use super::*;
use crate::transport::scratch::SCRATCH_SIZE;

/// Returns the client's and the server's socket of a connection.
async fn pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let dial = TcpStream::connect(listener.local_addr().unwrap());
    let (dialled, accepted) = tokio::join!(dial, listener.accept());
    (dialled.unwrap(), accepted.unwrap().0)
}

/// A client and a server with a copying proxy between them.
struct Copied {
    client: TcpStream,
    server: TcpStream,
    scratch: Rc<Scratch>,
    copying: tokio::task::JoinHandle<Result<(), CopyError>>,
    drain: drain::Drain,
}

async fn copied() -> Copied {
    let (client, accepted) = pair().await;
    let (opened, server) = pair().await;
    let (drain, watch) = drain::channel();
    let scratch = Rc::new(Scratch::new());
    let shared = scratch.clone();
    let copying = tokio::task::spawn_local(async move {
        duplex(Io::plain(accepted), Io::plain(opened), &shared, &watch).await
    });
    Copied {
        client,
        server,
        scratch,
        copying,
        drain,
    }
}

/// Bytes that do not repeat within any buffer size.
fn noise(len: usize) -> Vec<u8> {
    let mut state = 0x9E37_79B9_7F4A_7C15_u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    };
    let mut bytes: Vec<u8> = (0..len / 8 + 1).flat_map(|_| next()).collect();
    bytes.truncate(len);
    bytes
}

async fn send(mut half: tokio::net::tcp::OwnedWriteHalf, bytes: &[u8]) {
    half.write_all(bytes).await.unwrap();
    half.shutdown().await.unwrap();
}

async fn receive(mut half: tokio::net::tcp::OwnedReadHalf) -> Vec<u8> {
    let mut bytes = Vec::new();
    half.read_to_end(&mut bytes).await.unwrap();
    bytes
}

fn local<F: Future>(test: F) -> F::Output {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    tokio::task::LocalSet::new().block_on(&runtime, test)
}

#[test]
fn every_byte_arrives_in_both_directions() {
    local(async {
        // From a few bytes to several times the socket buffers, so that reads fill the scratch
        // buffer and splice is used.
        for len in [0, 1, SCRATCH_SIZE - 1, 32 << 20] {
            let Copied {
                client,
                server,
                scratch,
                copying,
                drain: _drain,
            } = copied().await;
            let (up, down) = (noise(len), noise(len / 2));
            let (client_reads, client_writes) = client.into_split();
            let (server_reads, server_writes) = server.into_split();
            let ((), (), got_down, got_up) = tokio::join!(
                send(client_writes, &up),
                send(server_writes, &down),
                receive(client_reads),
                receive(server_reads),
            );
            assert!(got_up == up, "{len} bytes up");
            assert!(got_down == down, "{} bytes down", len / 2);
            copying.await.unwrap().unwrap();
            let spliced = scratch.idle_pipes() > 0;
            assert_eq!(
                spliced,
                len > 1 << 20,
                "only bulk transfers use splice: {len}"
            );
        }
    });
}

#[test]
fn half_closed_connection_carries_the_other_direction() {
    local(async {
        let Copied {
            client,
            mut server,
            copying,
            drain: _drain,
            ..
        } = copied().await;
        let (client_reads, client_writes) = client.into_split();
        send(client_writes, b"request").await;
        let mut request = Vec::new();
        server.read_to_end(&mut request).await.unwrap();
        assert_eq!(request, b"request");
        assert!(!copying.is_finished());
        server.write_all(b"response").await.unwrap();
        server.shutdown().await.unwrap();
        assert_eq!(receive(client_reads).await, b"response");
        copying.await.unwrap().unwrap();
    });
}

#[test]
fn reader_that_stops_blocks_the_writer() {
    local(async {
        let Copied {
            mut client,
            server,
            copying: _copying,
            drain: _drain,
            ..
        } = copied().await;
        // The server does not read: the socket buffers fill up and the proxy stops reading.
        let bytes = noise(1 << 20);
        let mut sent = 0;
        loop {
            let write = client.write(&bytes);
            match tokio::time::timeout(Duration::from_millis(300), write).await {
                Ok(n) => sent += n.unwrap(),
                Err(_stalled) => break,
            }
            assert!(sent < 1 << 30, "the proxy buffers without limit");
        }
        let (mut server_reads, _writes) = server.into_split();
        let mut buffer = vec![0; 1 << 20];
        let mut received = 0;
        while received < sent {
            received += server_reads.read(&mut buffer).await.unwrap();
        }
    });
}

#[test]
fn reset_is_an_error_of_its_connection() {
    local(async {
        let Copied {
            client,
            server: _server,
            copying,
            drain: _drain,
            ..
        } = copied().await;
        socket2::SockRef::from(&client)
            .set_linger(Some(Duration::ZERO))
            .unwrap();
        drop(client);
        let error = copying.await.unwrap().unwrap_err();
        assert!(
            matches!(
                error,
                CopyError::Read {
                    side: Side::Client,
                    ..
                }
            ),
            "{error:?}"
        );
    });
}

#[test]
fn drain_closes_only_idle_half_closed_connections() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .start_paused(true)
        .build()
        .unwrap();
    tokio::task::LocalSet::new().block_on(&runtime, async {
        let mut open = copied().await;
        let mut half = copied().await;
        half.client.shutdown().await.unwrap();
        let mut end = Vec::new();
        half.server.read_to_end(&mut end).await.unwrap();
        tokio::join!(
            open.drain.drain(Duration::from_secs(60)),
            half.drain.drain(Duration::from_secs(60)),
        );
        half.copying.await.unwrap().unwrap();
        assert!(
            !open.copying.is_finished(),
            "an open connection is waited for"
        );
        open.client.shutdown().await.unwrap();
        open.server.shutdown().await.unwrap();
        let copying = pin!(open.copying);
        copying.await.unwrap().unwrap();
    });
}

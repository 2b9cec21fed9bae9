//! Copying between real sockets: bytes arrive, half-closes are forwarded, errors and drains end it.

use std::pin::pin;
use std::rc::Rc;

use mesh_runtime::tcp_info::is_acknowledged;
use mesh_test_support::eventually::eventually_async;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use super::*;
use crate::transport::scratch::SCRATCH_SIZE;

const HALF_CLOSED_IDLE: Duration = Duration::from_secs(3600);

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
    let (opened, server) = pair().await;
    copied_to(opened, server).await
}

async fn copied_to(opened: TcpStream, server: TcpStream) -> Copied {
    let (client, accepted) = pair().await;
    let (drain, watch) = drain::channel();
    let scratch = Rc::new(Scratch::new());
    let shared = scratch.clone();
    let copying = tokio::task::spawn_local(async move {
        let (client, server) = (Io::plain(accepted), Io::plain(opened));
        duplex(client, server, &shared, HALF_CLOSED_IDLE, &watch).await
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

/// The end of a client that has sent bytes behind an urgent one, before the proxy reads any.
#[derive(Clone, Copy, Debug)]
enum Then {
    StaysOpen,
    Closes,
    Resets,
}

/// The urgent byte itself is not passed on.
#[test]
fn bytes_after_an_urgent_one_are_passed_on_from_spliced_connection() {
    for then in [Then::StaysOpen, Then::Closes, Then::Resets] {
        local(async {
            let Copied {
                mut client,
                mut server,
                scratch,
                copying: _copying,
                drain: _drain,
            } = copied().await;
            // The kernel enlarges the buffers of both sockets meanwhile.
            let bulk = noise(32 << 20);
            let mut got = vec![0; bulk.len()];
            let (sent, read) = tokio::join!(client.write_all(&bulk), server.read_exact(&mut got));
            sent.unwrap();
            read.unwrap();
            assert!(scratch.idle_pipes() > 0, "splice is used");
            // All of this is received before the copying task runs again.
            let (before, after) = (noise(4 * SCRATCH_SIZE), noise(1000));
            assert_eq!(client.try_write(&before).unwrap(), before.len());
            let urgent = socket2::SockRef::from(&client).send_out_of_band(b"!");
            assert_eq!(urgent.unwrap(), 1);
            assert_eq!(client.try_write(&after).unwrap(), after.len());
            let client = match then {
                Then::StaysOpen => Some(client),
                Then::Closes => {
                    client.shutdown().await.unwrap();
                    Some(client)
                }
                Then::Resets => {
                    reset(client);
                    None
                }
            };
            let expected = [before, after].concat();
            let mut got = vec![0; expected.len()];
            let reading = timeout(Duration::from_secs(60), server.read_exact(&mut got));
            let read = reading.await.expect("the direction has stopped");
            read.unwrap_or_else(|error| panic!("{then:?}: {error}"));
            assert!(got == expected, "{then:?}");
            drop(client);
        });
    }
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
            match timeout(Duration::from_millis(300), write).await {
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

/// Makes `socket` send RST instead of FIN, and closes it.
fn reset(socket: TcpStream) {
    socket2::SockRef::from(&socket)
        .set_linger(Some(Duration::ZERO))
        .unwrap();
    drop(socket);
}

/// Reads until the peer's end: the bytes, and whether it was a reset.
async fn read_to_end(socket: &mut TcpStream) -> (Vec<u8>, bool) {
    let mut bytes = Vec::new();
    match socket.read_to_end(&mut bytes).await {
        Ok(_) => (bytes, false),
        Err(error) => {
            assert_eq!(error.kind(), io::ErrorKind::ConnectionReset, "{error}");
            (bytes, true)
        }
    }
}

/// Tells a story about the first peer, which ends a connection, without and with a proxy in
/// between. Compares the bytes that the second peer has read, and whether it saw a reset.
fn same_as_without_a_proxy(story: impl AsyncFn(TcpStream, TcpStream) -> (Vec<u8>, bool)) {
    local(async {
        let (client, server) = pair().await;
        let expected = story(client, server).await;
        let proxied = copied().await;
        assert_eq!(story(proxied.client, proxied.server).await, expected);
        let proxied = copied().await;
        let reversed = story(proxied.server, proxied.client).await;
        assert_eq!(reversed, expected, "reversed");
    });
}

#[test]
fn reset_is_passed_on_after_the_bytes_before_it() {
    same_as_without_a_proxy(async |mut ending, mut other| {
        ending.write_all(b"half a file").await.unwrap();
        // Without a proxy a reset may overtake bytes in the sender's queue, so they are read first.
        let mut start = [0; 11];
        other.read_exact(&mut start).await.unwrap();
        reset(ending);
        read_to_end(&mut other).await
    });
}

#[test]
fn bytes_that_a_slow_reader_has_not_read_precede_the_reset() {
    local(async {
        let Copied {
            mut client,
            mut server,
            copying: _copying,
            drain: _drain,
            ..
        } = copied().await;
        let bytes = noise(300_000);
        client.write_all(&bytes).await.unwrap();
        // The proxy has read them all: its kernel keeps what the server has not room for.
        eventually_async("the bytes are acknowledged", async || {
            tokio::task::yield_now().await;
            is_acknowledged(&client)
        })
        .await;
        reset(client);
        assert_eq!(read_to_end(&mut server).await, (bytes, true));
    });
}

#[test]
fn reset_overtakes_bytes_that_are_not_read_for_five_seconds() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .start_paused(true)
        .build()
        .unwrap();
    tokio::task::LocalSet::new().block_on(&runtime, async {
        // The server's kernel takes few bytes, and the proxy's keeps the rest for it.
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let buffer = socket2::SockRef::from(&listener).set_recv_buffer_size(2048);
        buffer.unwrap();
        let dial = TcpStream::connect(listener.local_addr().unwrap());
        let (opened, server) = tokio::join!(dial, listener.accept());
        let mut copied = copied_to(opened.unwrap(), server.unwrap().0).await;
        copied.client.write_all(&noise(8 * 1024)).await.unwrap();
        eventually_async("the bytes are acknowledged", async || {
            tokio::task::yield_now().await;
            is_acknowledged(&copied.client)
        })
        .await;
        let begin = Instant::now();
        reset(copied.client);
        copied.copying.await.unwrap().unwrap_err();
        let waited = begin.elapsed();
        assert!((RESET_TIME..2 * RESET_TIME).contains(&waited), "{waited:?}");
    });
}

#[test]
fn reset_after_the_other_fin_is_passed_on() {
    same_as_without_a_proxy(async |mut ending, mut other| {
        other.shutdown().await.unwrap();
        let mut end = Vec::new();
        ending.read_to_end(&mut end).await.unwrap();
        reset(ending);
        read_to_end(&mut other).await
    });
}

/// The FIN arrives first: the reader has a complete stream.
#[test]
fn reset_after_the_own_fin_fails_only_writes() {
    same_as_without_a_proxy(async |mut ending, mut other| {
        ending.write_all(b"all").await.unwrap();
        ending.shutdown().await.unwrap();
        let read = read_to_end(&mut other).await;
        drop(ending);
        eventually_async("writes fail", async || {
            other.write_all(b"discarded").await.is_err()
        })
        .await;
        read
    });
}

/// Whichever operation of the proxy learns of the reset.
#[test]
fn reset_while_the_other_peer_writes_is_passed_on_after_the_bytes_before_it() {
    same_as_without_a_proxy(async |mut ending, mut other| {
        ending.write_all(b"half a file").await.unwrap();
        let mut start = [0; 11];
        other.read_exact(&mut start).await.unwrap();
        other.write_all(b"unread").await.unwrap();
        // Bytes are unread, so that this sends RST.
        ending.peek(&mut start).await.unwrap();
        drop(ending);
        read_to_end(&mut other).await
    });
}

/// The kernel's clock does not follow tokio's, so that bytes arrive while no time passes.
#[test]
fn half_closed_connection_is_reset_an_hour_after_its_last_byte() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .start_paused(true)
        .build()
        .unwrap();
    tokio::task::LocalSet::new().block_on(&runtime, async {
        let open = copied().await;
        let mut half = copied().await;
        half.client.shutdown().await.unwrap();
        assert_eq!(read_to_end(&mut half.server).await, (Vec::new(), false));
        let begin = Instant::now();
        tokio::time::sleep(HALF_CLOSED_IDLE / 2).await;
        half.server.write_all(b"x").await.unwrap();
        assert_eq!(half.client.read_u8().await.unwrap(), b'x');
        half.copying.await.unwrap().unwrap();
        let expected = HALF_CLOSED_IDLE * 3 / 2;
        let error = begin.elapsed().abs_diff(expected);
        assert!(error < Duration::from_secs(60), "{error:?}");
        // The client waits for a response that it must not take for complete.
        assert_eq!(read_to_end(&mut half.client).await, (Vec::new(), true));
        assert!(!open.copying.is_finished(), "it is not half-closed");
    });
}

#[test]
fn tunnel_that_is_dropped_resets_both_peers() {
    local(async {
        let mut copied = copied().await;
        copied.client.write_all(b"x").await.unwrap();
        copied.server.read_u8().await.unwrap();
        copied.copying.abort();
        for side in [&mut copied.client, &mut copied.server] {
            assert_eq!(read_to_end(side).await, (Vec::new(), true));
        }
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

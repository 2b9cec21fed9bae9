//! Streams over sockets: with rustls in both roles, through tunnels, with key updates under load
//! and with an attacker on the path.

use std::net::{Ipv4Addr, Shutdown};
use std::rc::Rc;
use std::time::Duration;

use mesh_runtime::drain;
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

use super::{Server, TestCa, peer};
use crate::tls::Purpose::{self, Control, Traffic};
use crate::tls::client;
use crate::tls::server::terminate;
use crate::transport::copy::{self, CopyError};
use crate::transport::tls::RustlsStream;
use crate::transport::{Io, Scratch};

const HOUR: Duration = Duration::from_secs(3600);

pub(super) fn local<F: Future>(test: F) -> F::Output {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    tokio::task::LocalSet::new().block_on(&runtime, async {
        tokio::time::timeout(Duration::from_secs(60), test)
            .await
            .expect("the test hangs")
    })
}

/// Returns the client's and the server's stream of a TLS connection.
async fn pair(purposes: [Purpose; 2]) -> (Io, Io) {
    let ca = TestCa::new();
    let server = Server::new(ca.credentials("server.test")).await;
    let client = ca.credentials("client.test");
    let (dialled, accepted) = server
        .accept_for(&client, &peer("server.test"), false, purposes)
        .await;
    (dialled.unwrap().0, accepted.unwrap().0)
}

async fn plain_pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let dial = TcpStream::connect(listener.local_addr().unwrap());
    let (dialled, accepted) = tokio::join!(dial, listener.accept());
    (dialled.unwrap(), accepted.unwrap().0)
}

/// Returns pseudo-random bytes that depend on the seed only.
pub(super) fn noise(seed: u64, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    StdRng::seed_from_u64(seed).fill(&mut bytes[..]);
    bytes
}

/// Writes `noise(seed, length)` in pieces of random length and closes.
async fn send(mut to: impl AsyncWrite + Unpin, seed: u64, length: usize) {
    let bytes = noise(seed, length);
    let mut sizes = StdRng::seed_from_u64(seed + 1);
    let mut rest = &bytes[..];
    while !rest.is_empty() {
        // Mostly short, sometimes longer than all slots.
        let size = 1_usize << sizes.random_range(0..20);
        let size = sizes.random_range(1..=size).min(rest.len());
        to.write_all(&rest[..size]).await.unwrap();
        to.flush().await.unwrap();
        rest = &rest[size..];
    }
    to.shutdown().await.unwrap();
}

/// Reads to the end in pieces of random length and compares with `noise(seed, length)`.
async fn receive(mut from: impl AsyncRead + Unpin, seed: u64, length: usize) {
    let mut sizes = StdRng::seed_from_u64(seed + 2);
    let mut received = Vec::new();
    loop {
        let size = 1_usize << sizes.random_range(0..18);
        let start = received.len();
        received.resize(start + size, 0);
        let n = from.read(&mut received[start..]).await.unwrap();
        received.truncate(start + n);
        if n == 0 {
            break;
        }
    }
    assert_eq!(received.len(), length);
    assert!(received == noise(seed, length));
}

fn set_record_limit(io: &mut Io, limit: u64) {
    if let Some(records) = io.sealable() {
        records.set_record_limit(limit);
    }
}

#[test]
fn random_writes_arrive_in_both_directions() {
    const LENGTH: usize = 6 << 20;
    for purposes in [[Traffic, Control], [Control, Traffic], [Traffic, Traffic]] {
        for limit in [None, Some(50)] {
            local(async {
                let (mut client, mut server) = pair(purposes).await;
                if let Some(limit) = limit {
                    set_record_limit(&mut client, limit);
                    set_record_limit(&mut server, limit);
                }
                let (client_reads, client_writes) = tokio::io::split(client);
                let (server_reads, server_writes) = tokio::io::split(server);
                tokio::join!(
                    send(client_writes, 1, LENGTH),
                    send(server_writes, 2, LENGTH),
                    receive(server_reads, 1, LENGTH),
                    receive(client_reads, 2, LENGTH),
                );
            });
        }
    }
}

#[test]
fn rustls_key_updates_under_load_are_followed_and_answered() {
    async fn echo(mut stream: Io) {
        let mut bytes = vec![0; 40_000];
        loop {
            let n = stream.read(&mut bytes).await.unwrap();
            if n == 0 {
                return stream.shutdown().await.unwrap();
            }
            stream.write_all(&bytes[..n]).await.unwrap();
            stream.flush().await.unwrap();
        }
    }
    async fn update_keys(mut stream: Io) {
        for round in 0..200 {
            let bytes = noise(round, 1 + round as usize * 331);
            let updated = match stream.rustls_stream().expect("rustls handles the records") {
                RustlsStream::Client(tls) => tls.get_mut().1.refresh_traffic_keys(),
                RustlsStream::Server(tls) => tls.get_mut().1.refresh_traffic_keys(),
            };
            updated.unwrap();
            stream.write_all(&bytes).await.unwrap();
            stream.flush().await.unwrap();
            let mut back = vec![0; bytes.len()];
            stream.read_exact(&mut back).await.unwrap();
            assert!(back == bytes);
        }
        stream.shutdown().await.unwrap();
        assert_eq!(stream.read(&mut [0]).await.unwrap(), 0);
    }
    local(async {
        let (client, server) = pair([Control, Traffic]).await;
        tokio::join!(update_keys(client), echo(server));
        let (client, server) = pair([Traffic, Control]).await;
        tokio::join!(update_keys(server), echo(client));
    });
}

/// Client application, outbound tunnel, TLS, inbound tunnel, server application.
struct Tunnels {
    client_app: TcpStream,
    server_app: TcpStream,
    tunnels: [JoinHandle<Result<(), CopyError>>; 2],
    _drain: drain::Drain,
}

async fn tunnels(purposes: [Purpose; 2], limit: u64) -> Tunnels {
    let (mut client, mut server) = pair(purposes).await;
    set_record_limit(&mut client, limit);
    set_record_limit(&mut server, limit);
    let (client_app, outbound) = plain_pair().await;
    let (inbound, server_app) = plain_pair().await;
    let (drain, watch) = drain::channel();
    let scratch = Rc::new(Scratch::new());
    let tunnel = |client, server| {
        let (scratch, watch) = (scratch.clone(), watch.clone());
        tokio::task::spawn_local(async move {
            copy::duplex(client, server, &scratch, HOUR, &watch).await
        })
    };
    Tunnels {
        client_app,
        server_app,
        tunnels: [
            tunnel(Io::plain(outbound), client),
            tunnel(server, Io::plain(inbound)),
        ],
        _drain: drain,
    }
}

#[test]
fn tunnels_carry_every_byte_in_both_directions() {
    const LENGTH: usize = 24 << 20;
    for purposes in [[Traffic, Traffic], [Traffic, Control], [Control, Traffic]] {
        for limit in [u64::MAX, 100] {
            local(async {
                let Tunnels {
                    client_app,
                    server_app,
                    tunnels,
                    ..
                } = tunnels(purposes, limit).await;
                let (client_reads, client_writes) = client_app.into_split();
                let (server_reads, server_writes) = server_app.into_split();
                tokio::join!(
                    send(client_writes, 1, LENGTH),
                    send(server_writes, 2, LENGTH),
                    receive(server_reads, 1, LENGTH),
                    receive(client_reads, 2, LENGTH),
                );
                for tunnel in tunnels {
                    tunnel.await.unwrap().unwrap();
                }
            });
        }
    }
}

#[test]
fn half_closed_tunnel_carries_the_other_direction() {
    for purposes in [[Traffic, Traffic], [Traffic, Control], [Control, Traffic]] {
        local(async {
            let Tunnels {
                mut client_app,
                mut server_app,
                tunnels,
                ..
            } = tunnels(purposes, u64::MAX).await;
            client_app.write_all(b"request").await.unwrap();
            client_app.shutdown().await.unwrap();
            let mut request = Vec::new();
            server_app.read_to_end(&mut request).await.unwrap();
            assert_eq!(request, b"request");
            let response = noise(3, 3 << 20);
            let (sent, received) = tokio::join!(
                async {
                    server_app.write_all(&response).await.unwrap();
                    server_app.shutdown().await
                },
                async {
                    let mut received = Vec::new();
                    client_app.read_to_end(&mut received).await.unwrap();
                    received
                }
            );
            sent.unwrap();
            assert!(received == response);
            for tunnel in tunnels {
                tunnel.await.unwrap().unwrap();
            }
        });
    }
}

#[test]
fn reader_that_stops_blocks_the_writer() {
    local(async {
        let Tunnels {
            mut client_app,
            mut server_app,
            tunnels: _tunnels,
            _drain,
        } = tunnels([Traffic, Traffic], u64::MAX).await;
        let bytes = noise(4, 1 << 20);
        let limit = Duration::from_millis(300);
        let mut sent = Vec::new();
        while let Ok(n) = tokio::time::timeout(limit, client_app.write(&bytes)).await {
            sent.extend_from_slice(&bytes[..n.unwrap()]);
            assert!(sent.len() < 256 << 20, "the tunnels buffer without limit");
        }
        drop(client_app);
        let mut received = Vec::new();
        server_app.read_to_end(&mut received).await.unwrap();
        assert!(received == sent);
    });
}

#[test]
fn stream_without_close_notify_ends_with_an_error() {
    for client_purpose in [Traffic, Control] {
        for is_truncated in [false, true] {
            local(async {
                let (mut client, mut server) = pair([client_purpose, Traffic]).await;
                client.write_all(b"half a").await.unwrap();
                client.flush().await.unwrap();
                if is_truncated {
                    let socket = SockRef::from(client.tcp().kernel().unwrap());
                    socket.shutdown(Shutdown::Write).unwrap();
                } else {
                    client.shutdown().await.unwrap();
                }
                let mut received = Vec::new();
                let end = server.read_to_end(&mut received).await;
                assert_eq!(received, b"half a");
                if is_truncated {
                    let error = end.unwrap_err();
                    assert_eq!(error.kind(), std::io::ErrorKind::UnexpectedEof);
                    assert!(error.to_string().contains("close_notify"), "{error}");
                } else {
                    assert_eq!(end.unwrap(), 6);
                }
            });
        }
    }
}

#[test]
fn tampered_record_is_rejected_with_alert() {
    for is_reordered in [false, true] {
        local(async {
            let ca = TestCa::new();
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
            let addr = listener.local_addr().unwrap();
            let own = ca.credentials("server.test");
            let dialler = ca.credentials("client.test");
            let target = peer("server.test");
            let (client, attacker) = plain_pair().await;
            let dial = client::connect(Io::plain(client), &dialler, &target, false, Control);
            let accept = async {
                let (tcp, _) = listener.accept().await.unwrap();
                terminate(Io::plain(tcp), &own, false, Traffic).await
            };
            let (mut from_client, mut to_client) = attacker.into_split();
            let attacker = TcpStream::connect(addr).await.unwrap();
            let (mut from_server, mut to_server) = attacker.into_split();
            tokio::task::spawn_local(async move {
                let _ = tokio::io::copy(&mut from_server, &mut to_client).await;
            });
            let (begin, begun) = tokio::sync::oneshot::channel::<()>();
            tokio::task::spawn_local(async move {
                let mut begun = std::pin::pin!(begun);
                let mut bytes = vec![0; 1 << 16];
                loop {
                    tokio::select! {
                        biased;
                        _ = &mut begun => break,
                        n = from_client.read(&mut bytes) => {
                            to_server.write_all(&bytes[..n.unwrap()]).await.unwrap();
                        }
                    }
                }
                let mut records = Vec::new();
                for _ in 0..3 {
                    let mut record = vec![0; 5];
                    from_client.read_exact(&mut record).await.unwrap();
                    let length = usize::from(u16::from_be_bytes([record[3], record[4]]));
                    record.resize(5 + length, 0);
                    from_client.read_exact(&mut record[5..]).await.unwrap();
                    records.push(record);
                }
                if is_reordered {
                    records.swap(1, 2);
                } else {
                    records[1][9] ^= 0x10;
                }
                to_server.write_all(&records.concat()).await.unwrap();
                // Keeps the connection open, so that only the record causes an error.
                std::future::pending::<()>().await;
            });
            let (client, server) = tokio::join!(dial, accept);
            let (mut client, mut server) = (client.unwrap().0, server.unwrap().0);
            begin.send(()).unwrap();
            for word in ["one", "two", "three"] {
                client.write_all(word.as_bytes()).await.unwrap();
                client.flush().await.unwrap();
            }
            let mut received = Vec::new();
            let error = server.read_to_end(&mut received).await.unwrap_err();
            assert_eq!(received, b"one", "earlier records are delivered");
            assert!(error.to_string().contains("authenticate"), "{error}");
            assert!(server.write_all(b"more").await.is_err());
            let alert = client.read(&mut [0]).await.unwrap_err().to_string();
            assert!(alert.contains("BadRecordMac"), "{alert}");
        });
    }
}

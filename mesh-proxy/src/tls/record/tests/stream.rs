//! Streams over sockets: against the library in both roles, through tunnels, with keys that change
//! under load, and with somebody who meddles in between.

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

use crate::tls::Purpose::{self, Control, Traffic};
use crate::tls::client;
use crate::tls::server::terminate;
use crate::tls::tests::{Server, authority, peer};
use crate::transport::copy::{self, CopyError};
use crate::transport::tls::TlsStream;
use crate::transport::{Io, Scratch};

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

/// Both ends of a TLS connection.
async fn pair(purposes: [Purpose; 2]) -> (TlsStream, TlsStream) {
    let ca = authority();
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

/// Bytes that anybody can make again.
pub(super) fn noise(seed: u64, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    StdRng::seed_from_u64(seed).fill(&mut bytes[..]);
    bytes
}

/// Writes all of `noise(seed, length)` in pieces of random length, and ends.
async fn send(mut to: impl AsyncWrite + Unpin, seed: u64, length: usize) {
    let bytes = noise(seed, length);
    let mut sizes = StdRng::seed_from_u64(seed + 1);
    let mut rest = &bytes[..];
    while !rest.is_empty() {
        // Mostly small, at times larger than all slots.
        let size = 1_usize << sizes.random_range(0..20);
        let size = sizes.random_range(1..=size).min(rest.len());
        to.write_all(&rest[..size]).await.unwrap();
        to.flush().await.unwrap();
        rest = &rest[size..];
    }
    to.shutdown().await.unwrap();
}

/// Reads to the end in pieces of random length; the bytes must be those of `noise(seed, length)`.
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

/// Makes our own end's keys wear out after as many records.
fn wear_out(stream: &mut TlsStream, records: u64) {
    if let TlsStream::Own(stream) = stream {
        stream.limit_records(records);
    }
}

#[test]
fn random_writes_arrive_in_both_directions_at_once() {
    const LENGTH: usize = 6 << 20;
    for purposes in [[Traffic, Control], [Control, Traffic], [Traffic, Traffic]] {
        for limit in [None, Some(50)] {
            local(async {
                let (mut client, mut server) = pair(purposes).await;
                if let Some(limit) = limit {
                    wear_out(&mut client, limit);
                    wear_out(&mut server, limit);
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

/// The library's end changes its keys every few writes and asks for ours.
#[test]
fn the_library_may_change_its_keys_under_load() {
    async fn echo(mut stream: TlsStream) {
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
    async fn ask(stream: TlsStream) {
        let TlsStream::Library(mut stream) = stream else {
            panic!("the library's end");
        };
        for round in 0..200 {
            let bytes = noise(round, 1 + round as usize * 331);
            match &mut *stream {
                tokio_rustls::TlsStream::Client(stream) => {
                    stream.get_mut().1.refresh_traffic_keys().unwrap();
                }
                tokio_rustls::TlsStream::Server(stream) => {
                    stream.get_mut().1.refresh_traffic_keys().unwrap();
                }
            }
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
        tokio::join!(ask(client), echo(server));
        let (client, server) = pair([Traffic, Control]).await;
        tokio::join!(ask(server), echo(client));
    });
}

/// `near` application, tunnel, TLS, tunnel, `far` application.
struct Tunnelled {
    near: TcpStream,
    far: TcpStream,
    tunnels: [JoinHandle<Result<(), CopyError>>; 2],
    _drain: drain::Drain,
}

async fn tunnelled(purposes: [Purpose; 2], limit: u64) -> Tunnelled {
    let (mut client, mut server) = pair(purposes).await;
    wear_out(&mut client, limit);
    wear_out(&mut server, limit);
    let (near, outbound) = plain_pair().await;
    let (inbound, far) = plain_pair().await;
    let (drain, watch) = drain::channel();
    let scratch = Rc::new(Scratch::new());
    let tunnel = |client, server| {
        let (scratch, watch) = (scratch.clone(), watch.clone());
        tokio::task::spawn_local(
            async move { copy::duplex(client, server, &scratch, &watch).await },
        )
    };
    Tunnelled {
        near,
        far,
        tunnels: [
            tunnel(Io::plain(outbound), Io::tls(client)),
            tunnel(Io::tls(server), Io::plain(inbound)),
        ],
        _drain: drain,
    }
}

#[test]
fn tunnels_carry_every_byte_in_both_directions_at_once() {
    const LENGTH: usize = 24 << 20;
    for purposes in [[Traffic, Traffic], [Traffic, Control], [Control, Traffic]] {
        for limit in [u64::MAX, 100] {
            local(async {
                let Tunnelled {
                    near, far, tunnels, ..
                } = tunnelled(purposes, limit).await;
                let (near_reads, near_writes) = near.into_split();
                let (far_reads, far_writes) = far.into_split();
                tokio::join!(
                    send(near_writes, 1, LENGTH),
                    send(far_writes, 2, LENGTH),
                    receive(far_reads, 1, LENGTH),
                    receive(near_reads, 2, LENGTH),
                );
                for tunnel in tunnels {
                    tunnel.await.unwrap().unwrap();
                }
            });
        }
    }
}

#[test]
fn one_side_of_a_tunnel_may_end_while_the_other_goes_on() {
    for purposes in [[Traffic, Traffic], [Traffic, Control], [Control, Traffic]] {
        local(async {
            let Tunnelled {
                mut near,
                mut far,
                tunnels,
                ..
            } = tunnelled(purposes, u64::MAX).await;
            near.write_all(b"question").await.unwrap();
            near.shutdown().await.unwrap();
            let mut question = Vec::new();
            far.read_to_end(&mut question).await.unwrap();
            assert_eq!(question, b"question");
            let answer = noise(3, 3 << 20);
            let (sent, got) = tokio::join!(
                async {
                    far.write_all(&answer).await.unwrap();
                    far.shutdown().await
                },
                async {
                    let mut got = Vec::new();
                    near.read_to_end(&mut got).await.unwrap();
                    got
                }
            );
            sent.unwrap();
            assert!(got == answer);
            for tunnel in tunnels {
                tunnel.await.unwrap().unwrap();
            }
        });
    }
}

#[test]
fn a_reader_that_stops_stops_the_writer() {
    local(async {
        let Tunnelled {
            mut near,
            mut far,
            tunnels: _tunnels,
            _drain,
        } = tunnelled([Traffic, Traffic], u64::MAX).await;
        let bytes = noise(4, 1 << 20);
        let mut sent = Vec::new();
        while let Ok(n) = tokio::time::timeout(Duration::from_millis(300), near.write(&bytes)).await
        {
            sent.extend_from_slice(&bytes[..n.unwrap()]);
            assert!(sent.len() < 256 << 20, "the tunnels swallow without bound");
        }
        drop(near);
        let mut received = Vec::new();
        far.read_to_end(&mut received).await.unwrap();
        assert!(received == sent);
    });
}

#[test]
fn a_stream_that_is_cut_is_no_stream_that_ended() {
    for library in [Traffic, Control] {
        for cut in [false, true] {
            local(async {
                let (mut client, mut server) = pair([library, Traffic]).await;
                client.write_all(b"half a").await.unwrap();
                client.flush().await.unwrap();
                match cut {
                    true => SockRef::from(client.tcp())
                        .shutdown(Shutdown::Write)
                        .unwrap(),
                    false => client.shutdown().await.unwrap(),
                }
                let mut received = Vec::new();
                let end = server.read_to_end(&mut received).await;
                assert_eq!(received, b"half a");
                match cut {
                    true => {
                        let error = end.unwrap_err();
                        assert_eq!(error.kind(), std::io::ErrorKind::UnexpectedEof);
                        assert!(error.to_string().contains("close_notify"), "{error}");
                    }
                    false => assert_eq!(end.unwrap(), 6),
                }
            });
        }
    }
}

#[test]
fn who_meddles_is_found_and_told() {
    // Which record of the client's data is tampered with, and how.
    for reorder in [false, true] {
        local(async {
            let ca = authority();
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
            let addr = listener.local_addr().unwrap();
            let own = ca.credentials("server.test");
            let dialler = ca.credentials("client.test");
            let target = peer("server.test");
            let (client, meddler) = plain_pair().await;
            let dial = client::connect(Io::plain(client), &dialler, &target, false, Control);
            let accept = async {
                let (tcp, _) = listener.accept().await.unwrap();
                terminate(Io::plain(tcp), &own, false, Traffic).await
            };
            let (mut from_client, mut to_client) = meddler.into_split();
            let onward = TcpStream::connect(addr).await.unwrap();
            let (mut from_server, mut to_server) = onward.into_split();
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
                match reorder {
                    true => records.swap(1, 2),
                    false => records[1][9] ^= 0x10,
                }
                to_server.write_all(&records.concat()).await.unwrap();
                // Left open, so that nothing but the record says that something is wrong.
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
            assert_eq!(received, b"one", "what came before is good");
            assert!(error.to_string().contains("authenticate"), "{error}");
            assert!(server.write_all(b"more").await.is_err());
            let told = client.read(&mut [0]).await.unwrap_err().to_string();
            assert!(told.contains("BadRecordMac"), "{told}");
        });
    }
}

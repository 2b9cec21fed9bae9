//! Handshakes with a peer that cuts and pads its records as it likes.

use std::net::Ipv4Addr;
use std::pin::pin;

use tokio::net::{TcpListener, TcpStream};

use super::*;
use crate::tls::server::terminate;
use crate::tls::tests::attacker::{Attacker, DATA, DATA_KEY, HANDSHAKE, HANDSHAKE_KEY};
use crate::tls::tests::{authority, peer};
use crate::tls::{Purpose, TlsError, client};
use crate::transport::tls::TlsStream;

/// Which side the proxy is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    Client,
    Server,
}

const ROLES: [Role; 2] = [Role::Client, Role::Server];

/// The longest padding that a record with one byte of content can have.
const MOST_PADDING: usize = 16_384 - 1;

/// What a peer sends when it may use its handshake key, given the handshake messages that it ought
/// to send.
type Attack = fn(&Attacker, &[u8]) -> Vec<Vec<u8>>;

/// Performs the handshake up to the messages that the peer has to encrypt, which `attack` replaces.
/// The bytes that the proxy received afterwards, or why it ended the connection.
async fn attacked(role: Role, attack: Attack) -> Result<Vec<u8>, String> {
    let ca = authority();
    let own = ca.credentials("proxy.test");
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let dial = TcpStream::connect(listener.local_addr().unwrap());
    let (dialled, accepted) = tokio::join!(dial, listener.accept());
    let (tcp, of_attacker) = (Io::plain(dialled.unwrap()), accepted.unwrap().0);
    let proxy = async {
        let mut stream = match role {
            Role::Server => terminate(tcp, &own, false, Purpose::Traffic).await?.0,
            Role::Client => {
                client::connect(tcp, &own, &peer("server.test"), false, Purpose::Traffic)
                    .await?
                    .0
            }
        };
        let TlsStream::Own(_) = &stream else {
            panic!("records of rustls")
        };
        let mut received = Vec::new();
        stream.read_to_end(&mut received).await?;
        Ok::<_, TlsError>(received)
    };
    let attacker = async {
        let mut attacker = match role {
            Role::Server => Attacker::client(of_attacker),
            Role::Client => Attacker::server(of_attacker, &ca, "server.test"),
        };
        attacker.send_pending().await?;
        attacker.receive().await?;
        let mut messages = Vec::new();
        for record in attacker.pending() {
            match record.key {
                Some(HANDSHAKE_KEY) => messages.extend(record.content),
                Some(_) => {}
                None => {
                    let bytes = attacker.encode(&record);
                    attacker.send(&bytes).await?;
                }
            }
        }
        for bytes in attack(&attacker, &messages) {
            attacker.send(&bytes).await?;
        }
        // Kept open, and its receive buffer emptied, so that nothing but the proxy ends the
        // connection.
        attacker.drain().await
    };
    let mut proxy = pin!(proxy);
    let outcome = tokio::select! {
        outcome = &mut proxy => outcome,
        _ended = attacker => proxy.await,
    };
    outcome.map_err(|error| match std::error::Error::source(&error) {
        Some(source) => format!("{error}: {source}"),
        None => error.to_string(),
    })
}

/// The header of a Certificate message that is announced to be as long as rustls takes any.
const LONG_CERTIFICATE: [u8; 4] = [11, 0, 0xff, 0xff];

fn one_by_one(attacker: &Attacker, content: &[u8], padding: usize) -> Vec<Vec<u8>> {
    content
        .iter()
        .map(|byte| attacker.seal(HANDSHAKE_KEY, HANDSHAKE, &[*byte], padding))
        .collect()
}

fn data(attacker: &Attacker, length: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    for part in vec![7; length].chunks(1000) {
        bytes.extend(attacker.seal(DATA_KEY, DATA, part, 0));
    }
    // A close_notify.
    bytes.extend(attacker.seal(DATA_KEY, 21, &[1, 0], 0));
    bytes
}

#[tokio::test]
async fn padded_handshake_records_beyond_the_limit_end_the_connection() {
    for role in ROLES {
        // 16 MiB of records for a kilobyte of handshake.
        let error = attacked(role, |attacker, _| {
            let message = [&LONG_CERTIFICATE[..], &[0; 1020]].concat();
            one_by_one(attacker, &message, MOST_PADDING)
        })
        .await
        .unwrap_err();
        assert!(error.contains("65535 bytes"), "{role:?}: {error}");
    }
}

#[tokio::test]
async fn fragmented_finished_with_data_behind_it_does_not_panic() {
    for role in ROLES {
        // In one piece, so that one read may find all of it.
        let error = attacked(role, |attacker, messages| {
            let mut bytes = one_by_one(attacker, messages, MOST_PADDING).concat();
            bytes.extend(data(attacker, 600_000));
            vec![bytes]
        })
        .await
        .unwrap_err();
        assert!(error.contains("65535 bytes"), "{role:?}: {error}");
    }
}

#[tokio::test]
async fn fragmented_handshake_is_accepted_with_everything_behind_it() {
    for role in ROLES {
        let received = attacked(role, |attacker, messages| {
            let mut bytes = one_by_one(attacker, messages, 0).concat();
            bytes.extend(data(attacker, 600_000));
            vec![bytes]
        })
        .await
        .unwrap();
        assert!(received == vec![7; 600_000], "{role:?}");
    }
}

#[tokio::test]
async fn long_messages_beyond_the_limit_of_a_handshake_end_the_connection() {
    // Each may be as long as that; together they may not.
    let error = attacked(Role::Client, |attacker, messages| {
        let encrypted_extensions = &messages[..4 + usize::from(messages[3])];
        let request = message(13, &[&[0][..], &extensions()].concat());
        let entry = [&list24(&[7; 60_000]), &[0, 0][..]].concat();
        let certificate = message(11, &[&[0][..], &list24(&entry)].concat());
        let mut records = Vec::new();
        // No record holds parts of two messages, so that each message is let go of at its end.
        for message in [encrypted_extensions, &request, &certificate] {
            for part in message.chunks(16_000) {
                records.push(attacker.seal(HANDSHAKE_KEY, HANDSHAKE, part, 0));
            }
        }
        let verify = [15, 0, 0, 74, 4, 3, 0, 70];
        records.extend(one_by_one(attacker, &verify, MOST_PADDING));
        records
    })
    .await
    .unwrap_err();
    assert!(error.contains("131070 bytes"), "{error}");
}

fn message(kind: u8, body: &[u8]) -> Vec<u8> {
    [&[kind][..], &list24(body)].concat()
}

fn list24(content: &[u8]) -> Vec<u8> {
    [&(content.len() as u32).to_be_bytes()[1..], content].concat()
}

fn list16(content: &[u8]) -> Vec<u8> {
    [&(content.len() as u16).to_be_bytes()[..], content].concat()
}

/// Those of a CertificateRequest that asks for a signature by P-256, and for certificates of one
/// issuer with a very long name.
fn extensions() -> Vec<u8> {
    let signatures = [&[0, 13][..], &list16(&list16(&[4, 3]))].concat();
    let authorities = [&[0, 47][..], &list16(&list16(&list16(&[7; 60_000])))].concat();
    list16(&[signatures, authorities].concat())
}

#[tokio::test]
async fn changed_handshake_record_is_refused() {
    for role in ROLES {
        let error = attacked(role, |attacker, messages| {
            let mut record = attacker.seal(HANDSHAKE_KEY, HANDSHAKE, messages, 0);
            record[20] ^= 1;
            vec![record]
        })
        .await
        .unwrap_err();
        assert!(error.contains("decrypt"), "{role:?}: {error}");
    }
}

#[test]
fn handshake_holds_no_more_than_its_limit() {
    let ca = authority();
    let own = ca.credentials("proxy.test");
    let server = UnbufferedServerConnection::new(own.server(false)).unwrap();
    let mut handshake = Handshake::new(server);
    // A hello whose length is announced as the longest, one byte in a record.
    let mut message = [1, 0, 0xff, 0xff].into_iter().chain(std::iter::repeat(0));
    let mut held = 0;
    let error = loop {
        let record = [HANDSHAKE, 3, 1, 0, 1, message.next().unwrap()];
        let mut rest = &record[..];
        while !rest.is_empty() {
            let Ok(taken) = handshake.receive(rest) else {
                break;
            };
            rest = &rest[taken..];
        }
        held = held.max(handshake.received.capacity());
        if let Err(error) = handshake.capacity() {
            break error.to_string();
        }
        assert_eq!(handshake.advance(), Ok(Progress::More));
    };
    assert!(error.contains("65535 bytes"), "{error}");
    assert!(held <= MAX_HELD, "{held} bytes");
}

//! Handshakes with a peer that fragments and pads its records arbitrarily.

use std::net::Ipv4Addr;
use std::pin::pin;
use std::sync::Arc;

use futures_util::FutureExt as _;
use rustls::crypto::CryptoProvider;
use rustls::{ClientConfig, SupportedCipherSuite};
use rustls_pki_types::ServerName;
use tokio::io::AsyncReadExt as _;
use tokio::net::{TcpListener, TcpStream};

use super::*;
use crate::tls::server::terminate;
use crate::tls::tests::attacker::{Attacker, DATA, DATA_KEY, HANDSHAKE, HANDSHAKE_KEY};
use crate::tls::tests::{TestCa, identity, peer};
use crate::tls::verify::ServerVerifier;
use crate::tls::{Credentials, Purpose, TlsError, client, crypto};

/// Performs a handshake with this suite in memory, in chunks of `chunk` bytes. Returns the client
/// and the server.
pub(crate) fn establish(
    ca: &TestCa,
    credentials: &Credentials,
    suite: SupportedCipherSuite,
    chunk: usize,
) -> (Established, Established) {
    let provider = CryptoProvider {
        cipher_suites: vec![suite],
        ..CryptoProvider::clone(&crypto::provider())
    };
    let verifier = ServerVerifier::new(identity("server.test"), &ca.anchors(), Arc::default());
    let mut config = ClientConfig::builder_with_provider(Arc::new(provider))
        .with_protocol_versions(crypto::VERSIONS)
        .unwrap()
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier))
        .with_no_client_auth();
    config.enable_secret_extraction = true;
    let name = ServerName::try_from("server.test").unwrap();
    let client = UnbufferedClientConnection::new(Arc::new(config), name).unwrap();
    let server = UnbufferedServerConnection::new(credentials.server_config(false)).unwrap();
    let (mut client, mut server) = (Handshake::new(client), Handshake::new(server));
    let mut progress = (Progress::NeedsInput, Progress::NeedsInput);
    while progress != (Progress::Complete, Progress::Complete) {
        progress.0 = client.advance().unwrap();
        for bytes in client.take_outgoing().chunks(chunk) {
            receive(&mut server, bytes);
            progress.1 = server.advance().unwrap();
        }
        for bytes in server.take_outgoing().chunks(chunk) {
            receive(&mut client, bytes);
            if progress.0 == Progress::NeedsInput {
                progress.0 = client.advance().unwrap();
            }
        }
    }
    (client.finish().unwrap(), server.finish().unwrap())
}

fn receive(handshake: &mut Handshake<impl UnbufferedConnection>, mut bytes: &[u8]) {
    while !bytes.is_empty() {
        let received = handshake.receive_from(&mut bytes).now_or_never();
        assert_ne!(received.unwrap().unwrap(), 0);
    }
}

/// The proxy's role.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    Client,
    Server,
}

const ROLES: [Role; 2] = [Role::Client, Role::Server];

/// The longest padding of a record with one byte of content.
const MAX_PADDING: usize = 16_384 - 1;

/// Returns what a peer sends with its handshake key instead of the given, valid messages.
type Attack = fn(&Attacker, &[u8]) -> Vec<Vec<u8>>;

/// Performs the handshake up to the messages that the peer encrypts, which `attack` replaces.
/// Returns the bytes that the proxy received afterwards, or why it closed the connection.
async fn run_attack(role: Role, attack: Attack) -> Result<Vec<u8>, String> {
    let ca = TestCa::new();
    let own = ca.credentials("proxy.test");
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let dial = TcpStream::connect(listener.local_addr().unwrap());
    let (dialled, accepted) = tokio::join!(dial, listener.accept());
    let (tcp, attacker_tcp) = (Io::plain(dialled.unwrap()), accepted.unwrap().0);
    let proxy = async {
        let mut stream = match role {
            Role::Server => terminate(tcp, &own, false, Purpose::Traffic).await?.0,
            Role::Client => {
                client::connect(tcp, &own, &peer("server.test"), false, Purpose::Traffic)
                    .await?
                    .0
            }
        };
        assert!(stream.sealable().is_some(), "rustls handles the records");
        let mut received = Vec::new();
        stream.read_to_end(&mut received).await?;
        Ok::<_, TlsError>(received)
    };
    let attacker = async {
        let mut attacker = match role {
            Role::Server => Attacker::client(attacker_tcp),
            Role::Client => Attacker::server(attacker_tcp, &ca, "server.test"),
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
        // Keeps the connection open and reads, so that only the proxy closes it.
        attacker.discard_input().await
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

/// The header of a Certificate message that declares the longest length that rustls accepts.
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
async fn padded_handshake_records_beyond_the_limit_close_the_connection() {
    for role in ROLES {
        // 16 MiB of records for a kilobyte of handshake.
        let error = run_attack(role, |attacker, _| {
            let message = [&LONG_CERTIFICATE[..], &[0; 1020]].concat();
            one_by_one(attacker, &message, MAX_PADDING)
        })
        .await
        .unwrap_err();
        assert!(error.contains("65535 bytes"), "{role:?}: {error}");
    }
}

#[tokio::test]
async fn fragmented_finished_followed_by_data_does_not_panic() {
    for role in ROLES {
        // Sent in one write, so that one read may return all of it.
        let error = run_attack(role, |attacker, messages| {
            let mut bytes = one_by_one(attacker, messages, MAX_PADDING).concat();
            bytes.extend(data(attacker, 600_000));
            vec![bytes]
        })
        .await
        .unwrap_err();
        assert!(error.contains("65535 bytes"), "{role:?}: {error}");
    }
}

#[tokio::test]
async fn fragmented_handshake_followed_by_data_is_accepted() {
    for role in ROLES {
        let received = run_attack(role, |attacker, messages| {
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
async fn messages_longer_in_total_than_the_handshake_limit_close_the_connection() {
    // Each message alone is within the limit.
    let error = run_attack(Role::Client, |attacker, messages| {
        let encrypted_extensions = &messages[..4 + usize::from(messages[3])];
        let request = message(13, &[&[0][..], &extensions()].concat());
        let entry = [&list24(&[7; 60_000]), &[0, 0][..]].concat();
        let certificate = message(11, &[&[0][..], &list24(&entry)].concat());
        let mut records = Vec::new();
        // No record contains parts of two messages, so each message is released at its end.
        for message in [encrypted_extensions, &request, &certificate] {
            for part in message.chunks(16_000) {
                records.push(attacker.seal(HANDSHAKE_KEY, HANDSHAKE, part, 0));
            }
        }
        let verify = [15, 0, 0, 74, 4, 3, 0, 70];
        records.extend(one_by_one(attacker, &verify, MAX_PADDING));
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

/// The extensions of a CertificateRequest for P-256 signatures and an issuer with a very long name.
fn extensions() -> Vec<u8> {
    let signatures = [&[0, 13][..], &list16(&list16(&[4, 3]))].concat();
    let authorities = [&[0, 47][..], &list16(&list16(&list16(&[7; 60_000])))].concat();
    list16(&[signatures, authorities].concat())
}

#[tokio::test]
async fn modified_handshake_record_is_rejected() {
    for role in ROLES {
        let error = run_attack(role, |attacker, messages| {
            let mut record = attacker.seal(HANDSHAKE_KEY, HANDSHAKE, messages, 0);
            record[20] ^= 1;
            vec![record]
        })
        .await
        .unwrap_err();
        assert!(error.contains("decrypt"), "{role:?}: {error}");
    }
}

#[tokio::test]
async fn handshake_buffers_at_most_its_limit() {
    let ca = TestCa::new();
    let own = ca.credentials("proxy.test");
    let server = UnbufferedServerConnection::new(own.server_config(false)).unwrap();
    let mut handshake = Handshake::new(server);
    // A ClientHello that declares the longest length, one byte per record.
    let mut message = [1, 0, 0xff, 0xff].into_iter().chain(std::iter::repeat(0));
    let mut allocated = 0;
    let error = 'received: loop {
        let mut record = &[HANDSHAKE, 3, 1, 0, 1, message.next().unwrap()][..];
        while !record.is_empty() {
            if let Err(error) = handshake.receive_from(&mut record).await {
                break 'received error.to_string();
            }
        }
        allocated = allocated.max(handshake.received.allocated());
        assert_eq!(handshake.advance(), Ok(Progress::NeedsInput));
    };
    assert!(error.contains("65535 bytes"), "{error}");
    assert!(allocated <= MAX_BUFFERED / 2 * 3, "{allocated} bytes");
    // rustls moves the bytes of a message together; the proxy itself copies each at most twice.
    let work = handshake.received.work();
    assert!(work <= 4 * MAX_BUFFERED as u32, "{work}");
}

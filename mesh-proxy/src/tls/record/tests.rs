//! Sessions between ourselves, in memory: every suite, every split, keys that change.

use std::sync::Arc;
use std::task::Poll;

use proptest::prelude::*;
use rustls::client::UnbufferedClientConnection;
use rustls::crypto::CryptoProvider;
use rustls::crypto::aws_lc_rs::cipher_suite;
use rustls::server::UnbufferedServerConnection;
use rustls::{AlertDescription, ClientConfig, SupportedCipherSuite};
use rustls_pki_types::ServerName;

use super::error::RecordError;
use super::session::Content;
use super::slots::{self, Opened, SLOT, SLOTS};
use super::*;
use crate::tls::handshake::{Established, Handshake, Progress};
use crate::tls::tests::{Authority, authority, identity};
use crate::tls::verify::ServerVerifier;
use crate::tls::{Credentials, crypto};

mod openssl;
mod refused;
mod stream;

const SUITES: [SupportedCipherSuite; 3] = [
    cipher_suite::TLS13_AES_128_GCM_SHA256,
    cipher_suite::TLS13_AES_256_GCM_SHA384,
    cipher_suite::TLS13_CHACHA20_POLY1305_SHA256,
];

const UPDATE_REQUESTED: u8 = 1;

/// A client and a server with one suite.
struct Ends {
    client: Session,
    server: Session,
}

fn ends(suite: SupportedCipherSuite) -> Ends {
    let ca = authority();
    let credentials = ca.credentials("server.test");
    ends_of(&ca, &credentials, suite, 4096)
}

/// The handshake's bytes arrive `chunk` by `chunk`.
fn ends_of(
    ca: &Authority,
    credentials: &Credentials,
    suite: SupportedCipherSuite,
    chunk: usize,
) -> Ends {
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
    let server = UnbufferedServerConnection::new(credentials.server(false)).unwrap();
    let (mut client, mut server) = (Handshake::new(client), Handshake::new(server));
    let mut progress = (Progress::More, Progress::More);
    while progress != (Progress::Done, Progress::Done) {
        progress.0 = client.advance().unwrap();
        for bytes in client.take_outgoing().chunks(chunk) {
            assert_eq!(server.receive(bytes), Ok(bytes.len()));
            progress.1 = server.advance().unwrap();
        }
        for bytes in server.take_outgoing().chunks(chunk) {
            assert_eq!(client.receive(bytes), Ok(bytes.len()));
            if progress.0 == Progress::More {
                progress.0 = client.advance().unwrap();
            }
        }
    }
    let Established {
        session: mut client,
        received: mut tickets,
    } = client.finish().unwrap();
    let server = server.finish().unwrap();
    assert!(server.received.is_empty());
    assert!(!tickets.is_empty(), "the server's ticket is left to us");
    let Opened {
        consumed, ended, ..
    } = slots::open(&mut client, &mut tickets);
    assert_eq!((consumed, ended), (tickets.len(), Ok(false)));
    Ends {
        client,
        server: server.session,
    }
}

fn data(length: usize) -> Vec<u8> {
    (0..length).map(|n| (n % 251) as u8).collect()
}

/// Puts `content` into slots and seals it.
fn seal(session: &mut Session, content: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; SLOT * SLOTS];
    for (room, part) in slots::contents(&mut bytes)
        .iter_mut()
        .zip(content.chunks(MAX_CONTENT))
    {
        room[..part.len()].copy_from_slice(part);
    }
    let sealed = session.seal(&mut bytes, content.len()).unwrap();
    bytes.truncate(sealed);
    bytes
}

/// Content of all whole records, how much of `bytes` that was, and whether the stream has ended.
fn open(session: &mut Session, bytes: &[u8]) -> (Vec<u8>, usize, Result<bool, RecordError>) {
    let mut bytes = bytes.to_vec();
    let opened = slots::open(session, &mut bytes);
    let content = opened
        .pieces
        .iter()
        .flat_map(|piece| bytes[piece].to_vec())
        .collect();
    (content, opened.consumed, opened.ended)
}

/// One record of any kind.
fn record(session: &mut Session, content: &[u8], content_type: u8) -> Vec<u8> {
    let mut bytes = Vec::new();
    session.append(&mut bytes, content, content_type).unwrap();
    bytes
}

#[test]
fn every_suite_carries_every_length_both_ways() {
    for suite in SUITES {
        let Ends { client, server } = ends(suite);
        for (mut from, mut to) in [(client, server)] {
            for length in [
                0,
                1,
                MAX_CONTENT - 1,
                MAX_CONTENT,
                MAX_CONTENT + 1,
                MAX_CONTENT * SLOTS,
            ] {
                for _ in 0..2 {
                    let records = seal(&mut from, &data(length));
                    let full = length / MAX_CONTENT;
                    let part = usize::from(!length.is_multiple_of(MAX_CONTENT));
                    assert_eq!(records.len(), length + (full + part) * OVERHEAD);
                    let (content, consumed, ended) = open(&mut to, &records);
                    assert!(content == data(length), "{suite:?}: {length} bytes");
                    assert_eq!((consumed, ended), (records.len(), Ok(false)));
                    std::mem::swap(&mut from, &mut to);
                }
            }
        }
    }
}

#[test]
fn a_handshake_may_come_in_pieces_of_any_length() {
    let ca = authority();
    let credentials = ca.credentials("server.test");
    for chunk in [1, 2, 5, 6, 100, 1000] {
        let Ends {
            mut client,
            mut server,
        } = ends_of(&ca, &credentials, SUITES[0], chunk);
        let records = seal(&mut client, b"hello");
        assert_eq!(open(&mut server, &records).0, b"hello");
    }
}

#[test]
fn small_records_are_gathered() {
    let Ends {
        mut client,
        mut server,
    } = ends(SUITES[0]);
    let mut records = Vec::new();
    let mut sent = Vec::new();
    for n in 0..5000 {
        let content = data(n % 37 + 1);
        records.extend(record(&mut client, &content, DATA));
        sent.extend(content);
    }
    let opened = slots::open(&mut server, &mut records);
    assert_eq!(opened.pieces.iter().count(), 1);
    let piece = opened.pieces.iter().next().unwrap();
    assert!(records[piece] == sent);
    // Long ones stay where they are, as many as one call writes, and what comes behind those is
    // moved up.
    let mut records = Vec::new();
    let mut sent = Vec::new();
    for _ in 0..slots::Pieces::MAX + 9 {
        records.extend(record(&mut client, &data(5000), DATA));
        sent.extend(data(5000));
    }
    assert!(open(&mut server, &records).0 == sent);
}

#[test]
fn received_bytes_beyond_the_buffers_are_opened_in_parts() {
    for limit in [4 * SLOT, SLOT * SLOTS] {
        let Ends {
            mut client,
            mut server,
        } = ends(SUITES[0]);
        let sent = data(600_000);
        let mut records = Vec::new();
        for part in sent.chunks(3000) {
            records.extend(record(&mut client, part, DATA));
        }
        let last = records.split_off(records.len() - 100);
        let mut received = ReceivedBytes::new(records);
        let mut buffer = vec![0; limit];
        let mut content = Vec::new();
        let mut reads = vec![last].into_iter();
        loop {
            let opened = received.poll_open(&mut server, &mut buffer, |room| match reads.next() {
                Some(bytes) => {
                    room[..bytes.len()].copy_from_slice(&bytes);
                    Poll::Ready(Ok(bytes.len()))
                }
                None => Poll::Pending,
            });
            let Poll::Ready(opened) = opened else { break };
            let opened = opened.unwrap();
            assert_eq!(opened.ended, Ok(false));
            for piece in opened.pieces.iter() {
                content.extend_from_slice(&buffer[piece]);
            }
        }
        assert!(content == sent);
    }
}

/// Everything a peer may send, with what its data comes to.
fn lively(session: &mut Session) -> (Vec<u8>, Vec<u8>) {
    let mut bytes = seal(session, &data(20_000));
    session.update_keys(&mut bytes).unwrap();
    bytes.extend(record(session, b"", DATA));
    bytes.extend(seal(session, &data(300)));
    // A key update that asks for ours, in two fragments: the second is still under the old key.
    bytes.extend(record(session, &[24, 0], HANDSHAKE));
    bytes.extend(record(session, &[0, 1, UPDATE_REQUESTED], HANDSHAKE));
    session.take_next_key().unwrap();
    // Padded: the type is followed by zeros.
    let mut padded = b"padded".to_vec();
    padded.push(DATA);
    padded.extend([0; 500]);
    bytes.extend(record(session, &padded, 0));
    session
        .alert(&mut bytes, AlertDescription::UserCanceled)
        .unwrap();
    session
        .alert(&mut bytes, AlertDescription::CloseNotify)
        .unwrap();
    let content = [data(20_000), data(300), b"padded".to_vec()].concat();
    (bytes, content)
}

/// Feeds `parts` one by one, as a socket would give them.
fn open_parts(session: &mut Session, parts: &[&[u8]]) -> (Vec<u8>, Result<bool, RecordError>) {
    let (mut waiting, mut content) = (Vec::new(), Vec::new());
    for part in parts {
        waiting.extend_from_slice(part);
        let (more, consumed, ended) = open(session, &waiting);
        content.extend(more);
        waiting.drain(..consumed);
        if ended != Ok(false) {
            return (content, ended);
        }
    }
    (content, Ok(false))
}

#[test]
fn records_may_be_split_at_every_byte() {
    let Ends {
        mut client,
        mut server,
    } = ends(SUITES[0]);
    // Keys move on with each record, so each split has a stream of its own; not to make 20,000, one
    // has many splits.
    let (bytes, content) = lively(&mut client);
    let single: Vec<&[u8]> = bytes.chunks(1).collect();
    let expected = (content, Ok(true));
    assert!(open_parts(&mut server, &single) == expected);
    assert!(server.is_update_due());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn splits_do_not_matter(cuts in prop::collection::vec(0..21_000usize, 0..8), suite in 0..3usize) {
        let Ends { mut client, mut server } = ends(SUITES[suite]);
        let (bytes, content) = lively(&mut server);
        let mut cuts: Vec<_> = cuts.into_iter().map(|cut| cut.min(bytes.len())).collect();
        cuts.extend([0, bytes.len()]);
        cuts.sort_unstable();
        let parts: Vec<_> = cuts.windows(2).map(|cut| &bytes[cut[0]..cut[1]]).collect();
        prop_assert!(open_parts(&mut client, &parts) == (content, Ok(true)));
    }

    #[test]
    fn noise_is_refused_or_waited_for(mut bytes in prop::collection::vec(any::<u8>(), 0..600), is_record: bool) {
        let Ends { mut server, .. } = ends(SUITES[0]);
        if is_record && bytes.len() >= HEADER {
            let body = (bytes.len() - HEADER) as u16;
            bytes[..3].copy_from_slice(&[DATA, 3, 3]);
            bytes[3..HEADER].copy_from_slice(&body.to_be_bytes());
        }
        let (content, _, ended) = open(&mut server, &bytes);
        prop_assert!(content.is_empty());
        prop_assert!(!is_record || bytes.len() < HEADER || ended == Err(RecordError::Forged));
    }

    #[test]
    fn handshake_noise_never_passes(message in prop::collection::vec(any::<u8>(), 0..300), as_client: bool) {
        let Ends { mut client, mut server } = ends(SUITES[0]);
        let (from, to) = match as_client {
            true => (&mut server, &mut client),
            false => (&mut client, &mut server),
        };
        let bytes = record(from, &message, HANDSHAKE);
        let (_, _, ended) = open(to, &bytes);
        let may_wait = message.len() < 4 || matches!(message[0], 4 | 24);
        prop_assert!(ended.is_err() || (!message.is_empty() && may_wait));
    }
}

#[test]
fn records_are_counted() {
    let refused = |order: &[usize]| {
        let Ends {
            mut client,
            mut server,
        } = ends(SUITES[0]);
        let records: Vec<_> = (0..3).map(|n| seal(&mut client, &[n])).collect();
        let bytes: Vec<u8> = order.iter().flat_map(|n| records[*n].clone()).collect();
        open(&mut server, &bytes)
    };
    assert_eq!(refused(&[0, 1, 2]).0, [0, 1, 2]);
    // Left out, out of order, repeated: what came before stays good.
    for (order, before) in [
        (vec![1], vec![]),
        (vec![0, 2], vec![0]),
        (vec![1, 0], vec![]),
        (vec![0, 0], vec![0]),
        (vec![0, 1, 2, 1], vec![0, 1, 2]),
    ] {
        let (content, _, ended) = refused(&order);
        assert_eq!((content, ended), (before, Err(RecordError::Forged)));
    }
}

/// Content and type of each.
type Records<'a> = &'a [(&'a [u8], u8)];

#[test]
fn keys_are_changed_before_they_wear_out() {
    for suite in SUITES {
        let Ends {
            mut client,
            mut server,
        } = ends(suite);
        let limit = 3 * SLOTS as u64;
        client.limit_records(limit);
        let mut changes = 0;
        for _ in 0..40 {
            let mut bytes = Vec::new();
            if client.is_update_due() {
                client.update_keys(&mut bytes).unwrap();
                changes += 1;
                assert_eq!(client.sent(), 0);
                assert!(!client.is_update_due());
            }
            let sent = data(SLOTS * 100);
            for part in sent.chunks(100) {
                bytes.extend(seal(&mut client, part));
            }
            assert!(client.sent() <= limit);
            let (content, _, ended) = open(&mut server, &bytes);
            assert!(content == sent);
            assert_eq!(ended, Ok(false));
        }
        assert!(changes >= 10, "{changes}");
        assert!(!server.is_update_due(), "nobody asked for the server's");
    }
}

#[test]
fn a_request_for_new_keys_is_answered_once() {
    let Ends {
        mut client,
        mut server,
    } = ends(SUITES[1]);
    for _ in 0..2 {
        let asked = record(&mut client, &[24, 0, 0, 1, UPDATE_REQUESTED], HANDSHAKE);
        client.take_next_key().unwrap();
        assert_eq!(open(&mut server, &asked).2, Ok(false));
    }
    assert!(server.is_update_due());
    let mut answer = Vec::new();
    server.update_keys(&mut answer).unwrap();
    assert!(!server.is_update_due());
    answer.extend(seal(&mut server, b"new"));
    assert_eq!(open(&mut client, &answer).0, b"new");
    assert!(!client.is_update_due(), "the answer asks for nothing");
}

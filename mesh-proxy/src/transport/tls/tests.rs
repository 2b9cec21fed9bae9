//! Pairs of sessions in memory: all suites, all ways to split the bytes, key updates.

use std::task::Poll;

use proptest::prelude::*;
use rustls::crypto::aws_lc_rs::cipher_suite;
use rustls::crypto::cipher::{AeadKey, Iv};
use rustls::{AlertDescription, ConnectionTrafficSecrets, SupportedCipherSuite};

use super::buffers::{self, SLOT_COUNT, SLOT_LEN};
use super::error::RecordError;
use super::protection::RecordProtection;
use super::received::{self, Opened, ReceivedBytes};
use super::session::Content;
use super::*;
use crate::tls::Credentials;
use crate::tls::handshake::tests::establish;
use crate::tls::tests::TestCa;

mod rejected;

const SUITES: [SupportedCipherSuite; 3] = [
    cipher_suite::TLS13_AES_128_GCM_SHA256,
    cipher_suite::TLS13_AES_256_GCM_SHA384,
    cipher_suite::TLS13_CHACHA20_POLY1305_SHA256,
];

const UPDATE_REQUESTED: u8 = 1;

/// A client and a server that have negotiated a suite.
struct SessionPair {
    client: Session,
    server: Session,
}

fn session_pair(suite: SupportedCipherSuite) -> SessionPair {
    let ca = TestCa::new();
    let credentials = ca.credentials("server.test");
    session_pair_with(&ca, &credentials, suite, 4096)
}

/// Performs the handshake in chunks of `chunk` bytes.
fn session_pair_with(
    ca: &TestCa,
    credentials: &Credentials,
    suite: SupportedCipherSuite,
    chunk: usize,
) -> SessionPair {
    let (mut client, server) = establish(ca, credentials, suite, chunk);
    assert!(server.received.is_empty());
    assert!(
        !client.received.is_empty(),
        "the server's ticket is not processed"
    );
    let Opened {
        consumed, closed, ..
    } = received::open(&mut client.session, &mut client.received);
    assert_eq!((consumed, closed), (client.received.len(), Ok(false)));
    SessionPair {
        client: client.session,
        server: server.session,
    }
}

fn data(length: usize) -> Vec<u8> {
    (0..length).map(|n| (n % 251) as u8).collect()
}

/// Seals `content` in slots.
fn seal(session: &mut Session, content: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; SLOT_LEN * SLOT_COUNT];
    for (slot, part) in buffers::contents(&mut bytes)
        .iter_mut()
        .zip(content.chunks(MAX_CONTENT))
    {
        slot[..part.len()].copy_from_slice(part);
    }
    let sealed = session.seal(&mut bytes, content.len()).unwrap();
    bytes.truncate(sealed);
    bytes
}

/// Opens complete records. Returns their content, their length and whether the peer has closed.
fn open(session: &mut Session, bytes: &[u8]) -> (Vec<u8>, usize, Result<bool, RecordError>) {
    let mut bytes = bytes.to_vec();
    let opened = received::open(session, &mut bytes);
    let content = opened
        .pieces
        .iter()
        .flat_map(|piece| bytes[piece].to_vec())
        .collect();
    (content, opened.consumed, opened.closed)
}

/// Seals a record of any type.
fn record(session: &mut Session, content: &[u8], content_type: u8) -> Vec<u8> {
    let mut bytes = Vec::new();
    session.append(&mut bytes, content, content_type).unwrap();
    bytes
}

#[test]
fn content_of_any_length_is_carried_by_every_suite() {
    for suite in SUITES {
        let SessionPair { client, server } = session_pair(suite);
        for (mut from, mut to) in [(client, server)] {
            for length in [
                0,
                1,
                MAX_CONTENT - 1,
                MAX_CONTENT,
                MAX_CONTENT + 1,
                MAX_CONTENT * SLOT_COUNT,
            ] {
                for _ in 0..2 {
                    let records = seal(&mut from, &data(length));
                    let full = length / MAX_CONTENT;
                    let part = usize::from(!length.is_multiple_of(MAX_CONTENT));
                    assert_eq!(records.len(), length + (full + part) * OVERHEAD);
                    let (content, consumed, closed) = open(&mut to, &records);
                    assert!(content == data(length), "{suite:?}: {length} bytes");
                    assert_eq!((consumed, closed), (records.len(), Ok(false)));
                    std::mem::swap(&mut from, &mut to);
                }
            }
        }
    }
}

#[test]
fn handshake_succeeds_with_chunks_of_any_length() {
    let ca = TestCa::new();
    let credentials = ca.credentials("server.test");
    for chunk in [1, 2, 5, 6, 100, 1000] {
        let SessionPair {
            mut client,
            mut server,
        } = session_pair_with(&ca, &credentials, SUITES[0], chunk);
        let records = seal(&mut client, b"hello");
        assert_eq!(open(&mut server, &records).0, b"hello");
    }
}

#[test]
fn short_records_are_merged_into_one_piece() {
    let SessionPair {
        mut client,
        mut server,
    } = session_pair(SUITES[0]);
    let mut records = Vec::new();
    let mut sent = Vec::new();
    for n in 0..5000 {
        let content = data(n % 37 + 1);
        records.extend(record(&mut client, &content, DATA));
        sent.extend(content);
    }
    let opened = received::open(&mut server, &mut records);
    assert_eq!(opened.pieces.iter().count(), 1);
    let piece = opened.pieces.iter().next().unwrap();
    assert!(records[piece] == sent);
    // Long ones stay in place, up to the number that one call writes; the rest are merged.
    let mut records = Vec::new();
    let mut sent = Vec::new();
    for _ in 0..buffers::Pieces::MAX + 9 {
        records.extend(record(&mut client, &data(5000), DATA));
        sent.extend(data(5000));
    }
    assert!(open(&mut server, &records).0 == sent);
}

#[test]
fn more_received_bytes_than_the_buffer_are_opened_in_parts() {
    for limit in [4 * SLOT_LEN, SLOT_LEN * SLOT_COUNT] {
        let SessionPair {
            mut client,
            mut server,
        } = session_pair(SUITES[0]);
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
            let opened = received.poll_open(&mut server, &mut buffer, |free| match reads.next() {
                Some(bytes) => {
                    free[..bytes.len()].copy_from_slice(&bytes);
                    Poll::Ready(Ok(bytes.len()))
                }
                None => Poll::Pending,
            });
            let Poll::Ready(opened) = opened else { break };
            let opened = opened.unwrap();
            assert_eq!(opened.closed, Ok(false));
            for piece in opened.pieces.iter() {
                content.extend_from_slice(&buffer[piece]);
            }
        }
        assert!(content == sent);
    }
}

/// Returns all kinds of records that a peer may send, and their application data.
fn all_records(session: &mut Session) -> (Vec<u8>, Vec<u8>) {
    let mut bytes = seal(session, &data(20_000));
    session.update_keys(&mut bytes).unwrap();
    bytes.extend(record(session, b"", DATA));
    bytes.extend(seal(session, &data(300)));
    // A KeyUpdate that requests one, in two fragments, both sealed with the old key.
    bytes.extend(record(session, &[24, 0], HANDSHAKE));
    bytes.extend(record(session, &[0, 1, UPDATE_REQUESTED], HANDSHAKE));
    session.advance_send_key().unwrap();
    // Padding: zeros after the content type.
    let mut padded = b"padded".to_vec();
    padded.push(DATA);
    padded.extend([0; 500]);
    bytes.extend(record(session, &padded, 0));
    session
        .append_alert(&mut bytes, AlertDescription::UserCanceled)
        .unwrap();
    session
        .append_alert(&mut bytes, AlertDescription::CloseNotify)
        .unwrap();
    let content = [data(20_000), data(300), b"padded".to_vec()].concat();
    (bytes, content)
}

/// Opens `parts` one by one, as a socket would return them.
fn open_parts(session: &mut Session, parts: &[&[u8]]) -> (Vec<u8>, Result<bool, RecordError>) {
    let (mut received, mut content) = (Vec::new(), Vec::new());
    for part in parts {
        received.extend_from_slice(part);
        let (more, consumed, closed) = open(session, &received);
        content.extend(more);
        received.drain(..consumed);
        if closed != Ok(false) {
            return (content, closed);
        }
    }
    (content, Ok(false))
}

#[test]
fn records_split_at_every_byte_are_opened() {
    let SessionPair {
        mut client,
        mut server,
    } = session_pair(SUITES[0]);
    // One stream with all splits: each stream needs its own session, and 20,000 would be too many.
    let (bytes, content) = all_records(&mut client);
    let single: Vec<&[u8]> = bytes.chunks(1).collect();
    let expected = (content, Ok(true));
    assert!(open_parts(&mut server, &single) == expected);
    assert!(server.is_update_due());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn records_split_anywhere_are_opened(cuts in prop::collection::vec(0..21_000usize, 0..8), suite in 0..3usize) {
        let SessionPair { mut client, mut server } = session_pair(SUITES[suite]);
        let (bytes, content) = all_records(&mut server);
        let mut cuts: Vec<_> = cuts.into_iter().map(|cut| cut.min(bytes.len())).collect();
        cuts.extend([0, bytes.len()]);
        cuts.sort_unstable();
        let parts: Vec<_> = cuts.windows(2).map(|cut| &bytes[cut[0]..cut[1]]).collect();
        prop_assert!(open_parts(&mut client, &parts) == (content, Ok(true)));
    }

    #[test]
    fn random_bytes_are_rejected_or_incomplete(mut bytes in prop::collection::vec(any::<u8>(), 0..600), is_record: bool) {
        let SessionPair { mut server, .. } = session_pair(SUITES[0]);
        if is_record && bytes.len() >= HEADER_LEN {
            let body = (bytes.len() - HEADER_LEN) as u16;
            bytes[..3].copy_from_slice(&[DATA, 3, 3]);
            bytes[3..HEADER_LEN].copy_from_slice(&body.to_be_bytes());
        }
        let (content, _, closed) = open(&mut server, &bytes);
        prop_assert!(content.is_empty());
        prop_assert!(!is_record || bytes.len() < HEADER_LEN || closed == Err(RecordError::BadMac));
    }

    #[test]
    fn random_handshake_messages_are_rejected_or_incomplete(message in prop::collection::vec(any::<u8>(), 0..300), as_client: bool) {
        let SessionPair { mut client, mut server } = session_pair(SUITES[0]);
        let (from, to) = if as_client {
            (&mut server, &mut client)
        } else {
            (&mut client, &mut server)
        };
        let bytes = record(from, &message, HANDSHAKE);
        let (_, _, closed) = open(to, &bytes);
        let may_be_incomplete = message.len() < 4 || matches!(message[0], 4 | 24);
        prop_assert!(closed.is_err() || (!message.is_empty() && may_be_incomplete));
    }
}

#[test]
fn omitted_reordered_and_repeated_records_are_rejected() {
    let open_in = |order: &[usize]| {
        let SessionPair {
            mut client,
            mut server,
        } = session_pair(SUITES[0]);
        let records: Vec<_> = (0..3).map(|n| seal(&mut client, &[n])).collect();
        let bytes: Vec<u8> = order.iter().flat_map(|n| records[*n].clone()).collect();
        open(&mut server, &bytes)
    };
    assert_eq!(open_in(&[0, 1, 2]).0, [0, 1, 2]);
    for (order, before) in [
        (vec![1], vec![]),
        (vec![0, 2], vec![0]),
        (vec![1, 0], vec![]),
        (vec![0, 0], vec![0]),
        (vec![0, 1, 2, 1], vec![0, 1, 2]),
    ] {
        let (content, _, closed) = open_in(&order);
        assert_eq!((content, closed), (before, Err(RecordError::BadMac)));
    }
}

/// Contents and content types.
type Records<'a> = &'a [(&'a [u8], u8)];

#[test]
fn keys_are_updated_before_record_limit() {
    for suite in SUITES {
        let SessionPair {
            mut client,
            mut server,
        } = session_pair(suite);
        let limit = 3 * SLOT_COUNT as u64;
        client.set_record_limit(limit);
        let mut updates = 0;
        for _ in 0..40 {
            let mut bytes = Vec::new();
            if client.is_update_due() {
                client.update_keys(&mut bytes).unwrap();
                updates += 1;
                assert_eq!(client.records_sent(), 0);
                assert!(!client.is_update_due());
            }
            let sent = data(SLOT_COUNT * 100);
            for part in sent.chunks(100) {
                bytes.extend(seal(&mut client, part));
            }
            assert!(client.records_sent() <= limit);
            let (content, _, closed) = open(&mut server, &bytes);
            assert!(content == sent);
            assert_eq!(closed, Ok(false));
        }
        assert!(updates >= 10, "{updates}");
        assert!(!server.is_update_due(), "the client requests no update");
    }
}

#[test]
fn record_with_the_next_key_before_a_key_update_is_rejected() {
    let SessionPair {
        mut client,
        mut server,
    } = session_pair(SUITES[0]);
    client.advance_send_key().unwrap();
    let bytes = seal(&mut client, b"early");
    assert_eq!(open(&mut server, &bytes).2, Err(RecordError::BadMac));
}

/// RFC 8446, section 6: only close_notify is a warning.
#[test]
fn error_alerts_are_sent_as_fatal() {
    let SessionPair {
        mut client,
        mut server,
    } = session_pair(SUITES[0]);
    for (alert, level) in [
        (AlertDescription::BadRecordMac, 2),
        (AlertDescription::UnexpectedMessage, 2),
        (AlertDescription::CloseNotify, 1),
    ] {
        let mut bytes = Vec::new();
        client.append_alert(&mut bytes, alert).unwrap();
        let opened = server.open_only(&mut bytes).unwrap();
        assert_eq!(opened, (ALERT, vec![level, alert.into()]));
    }
}

#[test]
fn sequence_numbers_do_not_wrap() {
    let secrets = ConnectionTrafficSecrets::Aes256Gcm {
        key: AeadKey::from([1; 32]),
        iv: Iv::from([2; 12]),
    };
    let mut record = [0; 1 + OVERHEAD];
    for (number, is_last) in [(u64::MAX - 1, false), (u64::MAX, true)] {
        let protection = || RecordProtection::new(number, &secrets).unwrap();
        let sealed = protection().seal(&mut record, 1, DATA);
        assert_eq!(sealed == Err(RecordError::KeyExhausted), is_last);
        let opened = protection().open(&mut record);
        assert_eq!(opened == Err(RecordError::KeyExhausted), is_last);
    }
}

#[test]
fn repeated_key_update_requests_are_answered_once() {
    let SessionPair {
        mut client,
        mut server,
    } = session_pair(SUITES[1]);
    for _ in 0..2 {
        let request = record(&mut client, &[24, 0, 0, 1, UPDATE_REQUESTED], HANDSHAKE);
        client.advance_send_key().unwrap();
        assert_eq!(open(&mut server, &request).2, Ok(false));
    }
    assert!(server.is_update_due());
    let mut response = Vec::new();
    server.update_keys(&mut response).unwrap();
    assert!(!server.is_update_due());
    response.extend(seal(&mut server, b"new"));
    assert_eq!(open(&mut client, &response).0, b"new");
    assert!(!client.is_update_due(), "the response requests no update");
}

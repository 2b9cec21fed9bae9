//! Records that are rejected, with their alerts.

use super::*;

#[test]
fn record_with_any_flipped_bit_is_rejected() {
    let SessionPair {
        mut client,
        mut server,
    } = session_pair(SUITES[0]);
    let good = seal(&mut client, b"attack at dawn");
    // Opening a record increments the sequence number, so each bit needs its own session.
    for bit in 0..good.len() * 8 {
        let mut pair = session_pair(SUITES[0]);
        let mut bad = seal(&mut pair.client, b"attack at dawn");
        bad[bit / 8] ^= 1 << (bit % 8);
        let (content, _, closed) = open(&mut pair.server, &bad);
        assert!(content.is_empty());
        match (bit / 8, closed) {
            (0, Err(RecordError::Unencrypted(_))) => {}
            // A longer declared length is incomplete or exceeds the limit.
            (3 | 4, Ok(false) | Err(RecordError::TooLong | RecordError::BadMac)) => {}
            (1 | 2 | 5.., Err(RecordError::BadMac)) => {}
            (byte, other) => panic!("bit {bit} in byte {byte}: {other:?}"),
        }
    }
    assert_eq!(open(&mut server, &good).0, b"attack at dawn");
}

#[test]
fn invalid_records_after_the_handshake_cause_alerts() {
    use AlertDescription as Alert;
    let message = |kind: u8, body: &[u8]| [&[kind, 0, 0, body.len() as u8], body].concat();
    let update = message(24, &[0]);
    let beyond = |length: usize| {
        let mut inner = vec![1; length];
        inner.push(DATA);
        inner
    };
    let cases: &[(Records<'_>, Option<Alert>, &str)] = &[
        (
            &[(&[1], 20)],
            Some(Alert::UnexpectedMessage),
            "encrypted change of cipher",
        ),
        (&[(&[1], 24)], Some(Alert::UnexpectedMessage), "heartbeat"),
        (
            &[(&[], 0)],
            Some(Alert::UnexpectedMessage),
            "no content type",
        ),
        (
            &[(&[0; 100], 0)],
            Some(Alert::UnexpectedMessage),
            "only padding",
        ),
        (
            &[(&beyond(MAX_CONTENT), 0)],
            Some(Alert::RecordOverflow),
            "content and padding of 2^14 + 1",
        ),
        (
            &[(&[1; MAX_CONTENT + 1], DATA)],
            Some(Alert::RecordOverflow),
            "content of 2^14 + 1",
        ),
        (
            &[(&[], HANDSHAKE)],
            Some(Alert::UnexpectedMessage),
            "empty handshake record",
        ),
        (
            &[(&[], ALERT)],
            Some(Alert::UnexpectedMessage),
            "empty alert",
        ),
        (&[(&[2], ALERT)], Some(Alert::DecodeError), "half an alert"),
        (
            &[(&[1, 0, 0], ALERT)],
            Some(Alert::DecodeError),
            "alert with a third byte",
        ),
        (
            &[(&message(1, b"hello"), HANDSHAKE)],
            Some(Alert::UnexpectedMessage),
            "client hello",
        ),
        (
            &[(&message(13, b""), HANDSHAKE)],
            Some(Alert::UnexpectedMessage),
            "certificate request",
        ),
        (
            &[(&message(20, &[0; 32]), HANDSHAKE)],
            Some(Alert::UnexpectedMessage),
            "finished",
        ),
        (
            &[(&[24, 1, 0, 0], HANDSHAKE)],
            Some(Alert::DecodeError),
            "message of 64 KiB",
        ),
        (
            &[(&message(24, &[]), HANDSHAKE)],
            Some(Alert::DecodeError),
            "empty key update",
        ),
        (
            &[(&message(24, &[0, 0]), HANDSHAKE)],
            Some(Alert::DecodeError),
            "long key update",
        ),
        (
            &[(&message(24, &[2]), HANDSHAKE)],
            Some(Alert::IllegalParameter),
            "unknown key update",
        ),
        (
            &[(&[update.clone(), update.clone()].concat(), HANDSHAKE)],
            Some(Alert::UnexpectedMessage),
            "two key updates in a record",
        ),
        (
            &[(&[update.clone(), vec![4]].concat(), HANDSHAKE)],
            Some(Alert::UnexpectedMessage),
            "key update before a message",
        ),
        (
            &[(&[24, 0], HANDSHAKE), (b"x", DATA)],
            Some(Alert::UnexpectedMessage),
            "data within a message",
        ),
        (
            &[(&[24, 0], HANDSHAKE), (&[1, 0], ALERT)],
            Some(Alert::UnexpectedMessage),
            "end within a message",
        ),
        (
            &[(&[24, 0], HANDSHAKE), (&[1, 90], ALERT)],
            Some(Alert::UnexpectedMessage),
            "warning within a message",
        ),
        (&[(&[2, 40], ALERT)], None, "fatal alert"),
        (&[(&[1, 40], ALERT)], None, "fatal alert with level warning"),
        (&[(&[2, 255], ALERT)], None, "unknown alert"),
    ];
    for (records, alert, what) in cases {
        for to_client in [false, true] {
            let SessionPair { client, server } = session_pair(SUITES[0]);
            let (mut from, mut to) = if to_client {
                (server, client)
            } else {
                (client, server)
            };
            let (last, first) = records.split_last().unwrap();
            for (content, kind) in first {
                assert_eq!(
                    open(&mut to, &record(&mut from, content, *kind)).2,
                    Ok(false),
                    "{what}"
                );
            }
            let (content, _, closed) = open(&mut to, &record(&mut from, last.0, last.1));
            assert!(content.is_empty(), "{what}");
            assert_eq!(closed.expect_err(what).alert(), *alert, "{what}");
        }
    }
    // Only servers send tickets, and these must be valid.
    let SessionPair {
        mut client,
        mut server,
    } = session_pair(SUITES[0]);
    let ticket = message(4, &[0; 20]);
    let error = open(&mut server, &record(&mut client, &ticket, HANDSHAKE)).2;
    assert_eq!(error, Err(RecordError::UnexpectedMessage(4)));
    let error = open(&mut client, &record(&mut server, &ticket, HANDSHAKE)).2;
    assert_eq!(error.unwrap_err().alert(), Some(Alert::DecodeError));
}

#[test]
fn consecutive_records_without_data_are_limited() {
    for (content, kind) in [
        (&b""[..], DATA),
        (&[1, 90], ALERT),
        (&[24, 0, 0, 1, 0], HANDSHAKE),
    ] {
        let SessionPair {
            mut client,
            mut server,
        } = session_pair(SUITES[0]);
        let mut send = |content: &[u8], kind| {
            let bytes = record(&mut client, content, kind);
            if kind == HANDSHAKE {
                client.advance_send_key().unwrap();
            }
            open(&mut server, &bytes).2
        };
        // Data resets the count.
        for _ in 0..3 {
            for _ in 0..32 {
                assert_eq!(send(content, kind), Ok(false));
            }
            assert_eq!(send(b"data", DATA), Ok(false));
        }
        for _ in 0..32 {
            assert_eq!(send(content, kind), Ok(false));
        }
        assert_eq!(
            send(content, kind),
            Err(RecordError::TooManyWithoutData(33))
        );
    }
}

#[test]
fn records_beyond_the_maximum_length_are_rejected() {
    let SessionPair {
        mut client,
        mut server,
    } = session_pair(SUITES[0]);
    // Padding counts towards the limit of 2^14 bytes and a content type.
    let mut padded = vec![7; 100];
    padded.push(DATA);
    padded.resize(MAX_CONTENT, 0);
    let bytes = record(&mut client, &padded, 0);
    assert_eq!(open(&mut server, &bytes).0, vec![7; 100]);
    for (body, expected) in [
        (MAX_CIPHERTEXT, Ok(false)),
        (MAX_CIPHERTEXT + 1, Err(RecordError::TooLong)),
        (0xffff, Err(RecordError::TooLong)),
    ] {
        let [high, low] = (body as u16).to_be_bytes();
        let header = [DATA, 3, 3, high, low];
        assert_eq!(
            open(&mut server, &header).2,
            expected,
            "rejected by the header"
        );
    }
    for kind in (0..=255).filter(|kind| *kind != DATA) {
        let plain = [kind, 3, 3, 0, 2, 1, 0];
        let error = open(&mut server, &plain).2;
        assert_eq!(
            error,
            Err(RecordError::Unencrypted(kind)),
            "alerts must be encrypted too"
        );
    }
    for body in 0..TAG_LEN as u8 {
        let SessionPair { mut server, .. } = session_pair(SUITES[0]);
        let short = [vec![DATA, 3, 3, 0, body], vec![0; body.into()]].concat();
        assert_eq!(open(&mut server, &short).2, Err(RecordError::BadMac));
    }
}

#[test]
fn records_after_close_notify_are_ignored() {
    let SessionPair {
        mut client,
        mut server,
    } = session_pair(SUITES[0]);
    let mut bytes = seal(&mut client, b"last words");
    client
        .append_alert(&mut bytes, AlertDescription::CloseNotify)
        .unwrap();
    let end = bytes.len();
    bytes.extend(seal(&mut client, b"and more"));
    assert_eq!(
        open(&mut server, &bytes),
        (b"last words".to_vec(), end, Ok(true))
    );
    // The other direction stays open.
    let bytes = seal(&mut server, b"answer");
    assert_eq!(
        client.open(&mut bytes.clone()),
        Ok(Content::Data(HEADER_LEN..HEADER_LEN + 6))
    );
}

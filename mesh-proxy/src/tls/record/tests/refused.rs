//! What a peer may not send.

use super::*;

#[test]
fn a_changed_bit_is_found_wherever_it_is() {
    let Ends {
        mut client,
        mut server,
    } = ends(SUITES[0]);
    let good = seal(&mut client, b"attack at dawn");
    // The number moves on with each attempt, so each bit has a record of its own.
    for bit in 0..good.len() * 8 {
        let mut ends = ends(SUITES[0]);
        let mut bad = seal(&mut ends.client, b"attack at dawn");
        bad[bit / 8] ^= 1 << (bit % 8);
        let (content, _, ended) = open(&mut ends.server, &bad);
        assert!(content.is_empty());
        match (bit / 8, ended) {
            (0, Err(RecordError::Unprotected(_))) => {}
            // Longer than it is: the rest is waited for. So much longer that it cannot be: refused.
            (3 | 4, Ok(false) | Err(RecordError::TooLong | RecordError::Forged)) => {}
            (1 | 2 | 5.., Err(RecordError::Forged)) => {}
            (byte, other) => panic!("bit {bit} in byte {byte}: {other:?}"),
        }
    }
    assert_eq!(open(&mut server, &good).0, b"attack at dawn");
}

#[test]
fn what_may_not_follow_a_handshake() {
    use AlertDescription as Say;
    let message = |kind: u8, body: &[u8]| [&[kind, 0, 0, body.len() as u8], body].concat();
    let update = message(24, &[0]);
    let beyond = |length: usize| {
        let mut inner = vec![1; length];
        inner.push(DATA);
        inner
    };
    let cases: &[(Records<'_>, Option<Say>, &str)] = &[
        (
            &[(&[1], 20)],
            Some(Say::UnexpectedMessage),
            "encrypted change of cipher",
        ),
        (&[(&[1], 24)], Some(Say::UnexpectedMessage), "heartbeat"),
        (&[(&[], 0)], Some(Say::UnexpectedMessage), "no content type"),
        (
            &[(&[0; 100], 0)],
            Some(Say::UnexpectedMessage),
            "only padding",
        ),
        (
            &[(&beyond(MAX_CONTENT), 0)],
            Some(Say::RecordOverflow),
            "content and padding of 2^14 + 1",
        ),
        (
            &[(&[1; MAX_CONTENT + 1], DATA)],
            Some(Say::RecordOverflow),
            "content of 2^14 + 1",
        ),
        (
            &[(&[], HANDSHAKE)],
            Some(Say::UnexpectedMessage),
            "empty handshake record",
        ),
        (&[(&[], ALERT)], Some(Say::UnexpectedMessage), "empty alert"),
        (&[(&[2], ALERT)], Some(Say::DecodeError), "half an alert"),
        (
            &[(&[1, 0, 0], ALERT)],
            Some(Say::DecodeError),
            "an alert and a half",
        ),
        (
            &[(&message(1, b"hello"), HANDSHAKE)],
            Some(Say::UnexpectedMessage),
            "client hello",
        ),
        (
            &[(&message(13, b""), HANDSHAKE)],
            Some(Say::UnexpectedMessage),
            "certificate request",
        ),
        (
            &[(&message(20, &[0; 32]), HANDSHAKE)],
            Some(Say::UnexpectedMessage),
            "finished",
        ),
        (
            &[(&[24, 1, 0, 0], HANDSHAKE)],
            Some(Say::DecodeError),
            "message of 64 KiB",
        ),
        (
            &[(&message(24, &[]), HANDSHAKE)],
            Some(Say::DecodeError),
            "empty key update",
        ),
        (
            &[(&message(24, &[0, 0]), HANDSHAKE)],
            Some(Say::DecodeError),
            "long key update",
        ),
        (
            &[(&message(24, &[2]), HANDSHAKE)],
            Some(Say::IllegalParameter),
            "unknown key update",
        ),
        (
            &[(&[update.clone(), update.clone()].concat(), HANDSHAKE)],
            Some(Say::UnexpectedMessage),
            "two key updates in a record",
        ),
        (
            &[(&[update.clone(), vec![4]].concat(), HANDSHAKE)],
            Some(Say::UnexpectedMessage),
            "key update before a message",
        ),
        (
            &[(&[24, 0], HANDSHAKE), (b"x", DATA)],
            Some(Say::UnexpectedMessage),
            "data within a message",
        ),
        (
            &[(&[24, 0], HANDSHAKE), (&[1, 0], ALERT)],
            Some(Say::UnexpectedMessage),
            "end within a message",
        ),
        (
            &[(&[24, 0], HANDSHAKE), (&[1, 90], ALERT)],
            Some(Say::UnexpectedMessage),
            "warning within a message",
        ),
        (&[(&[2, 40], ALERT)], None, "fatal alert"),
        (
            &[(&[1, 40], ALERT)],
            None,
            "fatal alert that calls itself a warning",
        ),
        (&[(&[2, 255], ALERT)], None, "unknown alert"),
    ];
    for (records, say, what) in cases {
        for to_client in [false, true] {
            let Ends { client, server } = ends(SUITES[0]);
            let (mut from, mut to) = match to_client {
                true => (server, client),
                false => (client, server),
            };
            let (last, first) = records.split_last().unwrap();
            for (content, kind) in first {
                assert_eq!(
                    open(&mut to, &record(&mut from, content, *kind)).2,
                    Ok(false),
                    "{what}"
                );
            }
            let (content, _, ended) = open(&mut to, &record(&mut from, last.0, last.1));
            assert!(content.is_empty(), "{what}");
            assert_eq!(ended.expect_err(what).alert(), *say, "{what}");
        }
    }
    // Tickets come from servers, and must be such.
    let Ends {
        mut client,
        mut server,
    } = ends(SUITES[0]);
    let ticket = message(4, &[0; 20]);
    let error = open(&mut server, &record(&mut client, &ticket, HANDSHAKE)).2;
    assert_eq!(error, Err(RecordError::Message(4)));
    let error = open(&mut client, &record(&mut server, &ticket, HANDSHAKE)).2;
    assert_eq!(error.unwrap_err().alert(), Some(Say::DecodeError));
}

#[test]
fn records_without_data_are_not_endless() {
    for (content, kind) in [
        (&b""[..], DATA),
        (&[1, 90], ALERT),
        (&[24, 0, 0, 1, 0], HANDSHAKE),
    ] {
        let Ends {
            mut client,
            mut server,
        } = ends(SUITES[0]);
        let mut send = |content: &[u8], kind| {
            let bytes = record(&mut client, content, kind);
            if kind == HANDSHAKE {
                client.take_next_key().unwrap();
            }
            open(&mut server, &bytes).2
        };
        // Data makes up for what was before.
        for _ in 0..3 {
            for _ in 0..32 {
                assert_eq!(send(content, kind), Ok(false));
            }
            assert_eq!(send(b"data", DATA), Ok(false));
        }
        for _ in 0..32 {
            assert_eq!(send(content, kind), Ok(false));
        }
        assert_eq!(send(content, kind), Err(RecordError::Quiet(33)));
    }
}

#[test]
fn records_of_the_greatest_length_are_accepted_and_no_longer_ones() {
    let Ends {
        mut client,
        mut server,
    } = ends(SUITES[0]);
    // 2^14 bytes and their type, which padding has to share.
    let mut padded = vec![7; 100];
    padded.push(DATA);
    padded.resize(MAX_CONTENT, 0);
    let bytes = record(&mut client, &padded, 0);
    assert_eq!(open(&mut server, &bytes).0, vec![7; 100]);
    for (body, expected) in [
        (MAX_BODY, Ok(false)),
        (MAX_BODY + 1, Err(RecordError::TooLong)),
        (0xffff, Err(RecordError::TooLong)),
    ] {
        let [high, low] = (body as u16).to_be_bytes();
        let header = [DATA, 3, 3, high, low];
        assert_eq!(
            open(&mut server, &header).2,
            expected,
            "known from the header"
        );
    }
    for kind in (0..=255).filter(|kind| *kind != DATA) {
        let plain = [kind, 3, 3, 0, 2, 1, 0];
        let error = open(&mut server, &plain).2;
        assert_eq!(
            error,
            Err(RecordError::Unprotected(kind)),
            "not even alerts come in clear"
        );
    }
    for body in 0..TAG as u8 {
        let Ends { mut server, .. } = ends(SUITES[0]);
        let short = [vec![DATA, 3, 3, 0, body], vec![0; body.into()]].concat();
        assert_eq!(open(&mut server, &short).2, Err(RecordError::Forged));
    }
}

#[test]
fn nothing_after_the_end_counts() {
    let Ends {
        mut client,
        mut server,
    } = ends(SUITES[0]);
    let mut bytes = seal(&mut client, b"last words");
    client
        .alert(&mut bytes, AlertDescription::CloseNotify)
        .unwrap();
    let end = bytes.len();
    bytes.extend(seal(&mut client, b"and more"));
    assert_eq!(
        open(&mut server, &bytes),
        (b"last words".to_vec(), end, Ok(true))
    );
    // The other direction goes on.
    let bytes = seal(&mut server, b"answer");
    assert_eq!(
        client.open(&mut bytes.clone()),
        Ok(Content::Data(HEADER..HEADER + 6))
    );
}

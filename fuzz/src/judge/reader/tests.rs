//! The judge must tell apart what smuggling is made of, or it proves nothing.

use super::*;

fn read(bytes: &str, habits: &Habits) -> Option<(String, usize)> {
    let message = message(bytes.as_bytes(), Role::Request, habits).ok()??;
    Some((String::from_utf8(message.body).unwrap(), message.end))
}

#[test]
fn plain_messages_are_read_alike() {
    for (request, body) in [
        ("GET / HTTP/1.1\r\nhost: a\r\n\r\n", ""),
        ("\r\nGET / HTTP/1.0\r\n\r\n", ""),
        ("POST / HTTP/1.1\r\ncontent-length: 2\r\n\r\nab", "ab"),
        (
            "POST / HTTP/1.1\r\nTransfer-Encoding: Chunked\r\n\r\n2;x=y\r\nab\r\n0\r\nt: 1\r\n\r\n",
            "ab",
        ),
    ] {
        for habits in &HABITS {
            let expected = Some((body.to_owned(), request.len()));
            assert_eq!(read(request, habits), expected, "{request:?}, {habits:?}");
            let behind = format!("{request}GET /2 HTTP/1.1\r\n\r\n");
            assert_eq!(read(&behind, habits), expected, "{request:?}, {habits:?}");
        }
        for end in 0..request.len() {
            assert_eq!(
                message(&request.as_bytes()[..end], Role::Request, &STRICT),
                Ok(None)
            );
        }
    }
}

/// Each of these is read differently by two of the readers, or refused by the strict one.
#[test]
fn ambiguous_messages_are_not() {
    for request in [
        "POST / HTTP/1.1\r\ncontent-length: 6\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\nG",
        "POST / HTTP/1.1\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nab",
        "POST / HTTP/1.1\r\ncontent-length: 1, 2\r\n\r\nab",
        "POST / HTTP/1.1\r\ncontent-length: 2\r\ntransfer-encoding\x0b: chunked\r\n\r\nab",
        "POST / HTTP/1.1\r\ncontent-length: 2\r\ntransfer-encoding: xchunked\r\n\r\nab",
        "POST / HTTP/1.1\r\ncontent-length: 2\r\nx: y\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        "POST / HTTP/1.1\r\ncontent-length: 2\r\nx: y\r\n transfer-encoding: chunked\r\n\r\nab",
        "POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n0x2\r\nab\r\n0\r\n\r\n",
        "POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n2\nab\r\n0\r\n\r\n",
        "POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n2 \r\nab\r\n0\r\n\r\n",
    ] {
        let readings: Vec<_> = HABITS.iter().map(|habits| read(request, habits)).collect();
        let is_unanimous = readings
            .iter()
            .all(|reading| reading.is_some() && *reading == readings[0]);
        assert!(!is_unanimous, "{request:?}: {readings:?}");
    }
}

#[test]
fn responses_end_where_they_must() {
    let read = |bytes: &str, asked| {
        let message = message(bytes.as_bytes(), Role::Response(asked), &STRICT)
            .unwrap()
            .unwrap();
        (message.body.len(), message.until_close)
    };
    assert_eq!(read("HTTP/1.1 200 OK\r\n\r\nabc", Asked::Other), (3, true));
    assert_eq!(
        read("HTTP/1.1 200\r\ncontent-length: 3\r\n\r\nabc", Asked::Other),
        (3, false)
    );
    assert_eq!(
        read("HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\n", Asked::Head),
        (0, false)
    );
    assert_eq!(
        read(
            "HTTP/1.1 304 Not Modified\r\ncontent-length: 3\r\n\r\n",
            Asked::Other
        ),
        (0, false)
    );
    assert_eq!(
        read("HTTP/1.1 200 OK\r\n\r\nabc", Asked::Connect),
        (0, false)
    );
}

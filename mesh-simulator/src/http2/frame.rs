//! Frames (RFC 9113, sections 4.1 and 6).

pub(crate) use mesh_test_support::http2::{
    ACK, CONTINUATION, DATA, END_HEADERS, END_STREAM, Frame, GOAWAY, HEADERS, MAX_FRAME, PADDED,
    PING, PREFACE, PRIORITY, PRIORITY_FLAG, PUSH_PROMISE, RST_STREAM, SETTINGS, WINDOW,
    WINDOW_UPDATE, announced_length, read, write,
};

pub(crate) const INITIAL_WINDOW_SIZE: u16 = 4;

/// The payload of DATA or HEADERS without padding and priority, if these are valid.
pub(crate) fn content<'a>(frame: &Frame<'a>) -> Option<&'a [u8]> {
    let mut payload = frame.payload;
    let mut padding = 0;
    if frame.has(PADDED) {
        let (&length, rest) = payload.split_first()?;
        (padding, payload) = (usize::from(length), rest);
    }
    if frame.kind == HEADERS && frame.has(PRIORITY_FLAG) {
        payload = payload.get(5..)?;
    }
    payload.get(..payload.len().checked_sub(padding)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn padding_and_priority_are_not_content() {
        let content = |kind, flags, payload: &[u8]| {
            let frame = Frame {
                kind,
                flags,
                stream: 1,
                payload,
            };
            content(&frame).map(<[u8]>::to_vec)
        };
        assert_eq!(content(DATA, 0, b"abc"), Some(b"abc".to_vec()));
        assert_eq!(content(DATA, PADDED, b"\x02a\0\0"), Some(b"a".to_vec()));
        assert_eq!(content(DATA, PADDED, b"\x04a\0\0"), None);
        let prioritised = content(HEADERS, PRIORITY_FLAG | PADDED, b"\x01\0\0\0\0\x10ab\0");
        assert_eq!(prioritised, Some(b"ab".to_vec()));
        assert_eq!(content(HEADERS, PRIORITY_FLAG, b"\0\0"), None);
    }

    #[test]
    fn incomplete_frames_are_not_read() {
        let mut bytes = Vec::new();
        write(&mut bytes, PING, ACK, 0, b"12345678");
        assert!(read(&bytes[..bytes.len() - 1]).is_none());
        let (frame, rest) = read(&bytes).expect("it is complete");
        assert_eq!((frame.kind, frame.flags, rest.len()), (PING, ACK, 0));
        assert_eq!(announced_length(&bytes), Some(8));
    }
}

//! HTTP/2 frames, and field blocks of requests.

pub(super) use mesh_test_support::http2::{
    ACK, CONTINUATION, DATA, END_HEADERS, END_STREAM, Frame, HEADERS, PING, PREFACE, RST_STREAM,
    SETTINGS, WINDOW, WINDOW_UPDATE, read as parse_frame, write as frame,
};

/// `:method` with GET and with POST, in the static table.
pub(super) const GET: u8 = 0x82;
pub(super) const POST: u8 = 0x83;

/// Encodes the pseudo-header fields of a request for `/` without touching the dynamic table.
pub(super) fn request(method: u8, authority: &str) -> Vec<u8> {
    // The scheme `http`, the path `/`, and a literal authority; a length below 127 is one byte.
    let mut block = vec![method, 0x86, 0x84, 0x01, authority.len() as u8 & 0x7f];
    block.extend_from_slice(authority.as_bytes());
    block
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_block_contains_authority() {
        assert_eq!(request(GET, "web"), b"\x82\x86\x84\x01\x03web");
    }
}

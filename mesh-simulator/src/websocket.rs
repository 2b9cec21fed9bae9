//! Frames of WebSocket (RFC 6455, section 5.2) that a peer sends. Their content is compared as
//! bytes: an intermediary must not change it.

use crate::script::WebSocketStep;

/// The masking key of section 5.7. It need not be unpredictable here: no cache reads the frames.
const MASK: [u8; 4] = [0x37, 0xfa, 0x21, 0x3d];

const FIN: u8 = 0x80;
const MASKED: u8 = 0x80;

pub(crate) fn encode(step: &WebSocketStep, is_client: bool) -> Vec<u8> {
    let payload = step.bytes.to_vec();
    let first = step.opcode | if step.more { 0 } else { FIN };
    let masked = if is_client { MASKED } else { 0 };
    let mut frame = vec![first];
    match payload.len() {
        short @ 0..126 => frame.push(masked | short as u8),
        medium @ 126..65_536 => {
            frame.push(masked | 126);
            frame.extend_from_slice(&(medium as u16).to_be_bytes());
        }
        long => {
            frame.push(masked | 127);
            frame.extend_from_slice(&(long as u64).to_be_bytes());
        }
    }
    if is_client {
        frame.extend_from_slice(&MASK);
        let bytes = payload.iter().zip(MASK.iter().cycle());
        frame.extend(bytes.map(|(byte, mask)| byte ^ mask));
    } else {
        frame.extend(payload);
    }
    frame
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::script::Bytes;

    fn step(opcode: u8, more: bool, bytes: Bytes) -> WebSocketStep {
        WebSocketStep {
            opcode,
            more,
            bytes,
        }
    }

    /// RFC 6455, section 5.7.
    #[test]
    fn examples_of_the_rfc_are_written() {
        let hello = || Bytes::literal("Hello");
        let unmasked = b"\x81\x05Hello";
        assert_eq!(encode(&step(1, false, hello()), false), unmasked);
        let masked = b"\x81\x85\x37\xfa\x21\x3d\x7f\x9f\x4d\x51\x58";
        assert_eq!(encode(&step(1, false, hello()), true), masked);
        let fragment = encode(&step(1, true, Bytes::literal("Hel")), false);
        assert_eq!(fragment, b"\x01\x03Hel");
        let medium = encode(&step(2, false, Bytes::repeated("x", 256)), false);
        assert_eq!(medium[..4], [0x82, 0x7e, 0x01, 0x00]);
        let long = encode(&step(2, false, Bytes::repeated("x", 65_536)), false);
        assert_eq!(long[..10], [0x82, 0x7f, 0, 0, 0, 0, 0, 1, 0, 0]);
    }
}

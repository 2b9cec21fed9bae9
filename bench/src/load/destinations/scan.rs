//! Counts endpoints in a stream of `Update` messages as they arrive, without storing or decoding
//! them: a thousand watches of ten thousand endpoints are gigabytes, and the load must cost less
//! than the server.

use anyhow::{Context as _, bail};

/// A position in a stream of gRPC messages.
#[derive(Debug, Default)]
pub(super) struct Scanner {
    position: u64,
    /// Ends of the message and of the set within it.
    ends: Vec<u64>,
    /// Bytes of an incomplete header.
    header: Vec<u8>,
    /// Bytes until the next header.
    skip: usize,
    /// Endpoints that the message has added so far.
    added: u64,
}

/// Length of the gRPC message prefix: compressed flag and message length.
const PREFIX: usize = 5;
/// Larger than a key with a length.
const MAX_HEADER: usize = 20;
/// The depth of the fields of `Update`, which has its additions in field 1.
const UPDATE: usize = 1;
/// The depth of the fields of `WeightedAddrSet`, which has an address in each field 1.
const SET: usize = 2;

impl Scanner {
    /// Returns the number of added endpoints of each message that ends in `data`.
    pub(super) fn feed(&mut self, mut data: &[u8]) -> anyhow::Result<Vec<u64>> {
        let mut messages = Vec::new();
        loop {
            while self.skip == 0 && self.ends.last().is_some_and(|end| self.position >= *end) {
                self.ends.pop();
                if self.ends.is_empty() {
                    messages.push(std::mem::take(&mut self.added));
                }
            }
            if self.skip > 0 {
                let length = self.skip.min(data.len());
                self.skip -= length;
                self.position += length as u64;
                data = &data[length..];
                if self.skip > 0 {
                    return Ok(messages);
                }
                continue;
            }
            let Some((byte, rest)) = data.split_first() else {
                return Ok(messages);
            };
            data = rest;
            self.position += 1;
            self.header.push(*byte);
            self.parse_header()?;
        }
    }

    fn parse_header(&mut self) -> anyhow::Result<()> {
        if self.ends.is_empty() {
            if let [compressed, a, b, c, d] = self.header[..] {
                if compressed != 0 {
                    bail!("the message is compressed");
                }
                let length = u32::from_be_bytes([a, b, c, d]);
                self.ends.push(self.position + u64::from(length));
                self.header.clear();
            }
            debug_assert!(self.header.len() < PREFIX);
            return Ok(());
        }
        let Some((key, length)) = key_and_length(&self.header) else {
            if self.header.len() > MAX_HEADER {
                bail!("the message is not protobuf");
            }
            return Ok(());
        };
        self.header.clear();
        if key & 7 != 2 {
            bail!("the message is not an Update: key {key}");
        }
        match (self.ends.len(), key >> 3) {
            (UPDATE, 1) => self.ends.push(self.position.saturating_add(length)),
            (depth, field) => {
                if depth == SET && field == 1 {
                    self.added += 1;
                }
                self.skip = usize::try_from(length).context("a field is too long")?;
            }
        }
        Ok(())
    }
}

/// Parses a key and the length of its value, if both are complete.
fn key_and_length(bytes: &[u8]) -> Option<(u64, u64)> {
    let (key, rest) = varint(bytes)?;
    let (length, _) = varint(rest)?;
    Some((key, length))
}

fn varint(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let end = bytes.iter().position(|byte| byte & 0x80 == 0)?;
    let (number, rest) = bytes.split_at(end + 1);
    let digits = number.iter().rev();
    let value = digits.fold(0, |value: u64, byte| value << 7 | u64::from(byte & 0x7f));
    Some((value, rest))
}

#[cfg(test)]
mod tests {
    use mesh_api::destination::update_to_proto;
    use mesh_core::endpoint::{Endpoint, EndpointUpdate};
    use prost::Message as _;

    use super::*;

    fn message(update: &EndpointUpdate) -> Vec<u8> {
        let body = update_to_proto(update).encode_to_vec();
        let mut message = vec![0];
        message.extend((body.len() as u32).to_be_bytes());
        message.extend(body);
        message
    }

    #[test]
    fn endpoints_of_each_message_are_counted_in_pieces_of_any_size() {
        let addr = |number: u16| ([10, 0, 0, 1], number).into();
        let add = |count| EndpointUpdate::Add {
            endpoints: (0..count)
                .map(|number| Endpoint::plain(addr(number)))
                .collect(),
            set_labels: [("namespace".to_owned(), "n".repeat(300))].into(),
        };
        let removed = EndpointUpdate::Remove(vec![addr(1), addr(2)]);
        let empty = EndpointUpdate::Empty { exists: true };
        let all = [add(300), removed, add(1), empty, add(0)];
        let stream: Vec<u8> = all.iter().flat_map(message).collect();
        for size in [1, 2, 7, 1000, stream.len()] {
            let mut scanner = Scanner::default();
            let pieces = stream.chunks(size);
            let counted: Vec<u64> = pieces
                .flat_map(|piece| scanner.feed(piece).expect("valid messages"))
                .collect();
            assert_eq!(counted, [300, 0, 1, 0, 0], "pieces of {size} bytes");
        }
    }

    #[test]
    fn other_bytes_are_errors() {
        let compressed = [1, 0, 0, 0, 1];
        let number = [0, 0, 0, 0, 2, 0x08, 0x01];
        let endless = [&[0, 0, 0, 0, 99][..], &[0xff; 30]].concat();
        for bytes in [&compressed[..], &number, &endless] {
            assert!(Scanner::default().feed(bytes).is_err(), "{bytes:?}");
        }
    }
}

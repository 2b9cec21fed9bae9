//! Counts endpoints in a stream of gRPC messages as they arrive, without storing or decoding them:
//! a thousand watches of ten thousand endpoints are gigabytes, and the load must cost less than the
//! server.

use anyhow::{Context as _, bail};

/// The places of the counted fields in a kind of messages. Fields are numbers of protobuf.
#[derive(Debug)]
pub(super) struct Layout {
    /// The field at each depth that leads to an endpoint, which the last one is.
    pub(super) endpoint: &'static [u64],
    /// The field of a name in the field `endpoint[0]`, if each of these is a resource of its own.
    pub(super) name: Option<u64>,
    /// The field that an acknowledgement repeats.
    pub(super) nonce: Option<u64>,
}

/// The counted contents of a message.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Message {
    /// Names and numbers of endpoints of the resources, if they have names.
    pub(super) resources: Vec<(Vec<u8>, u64)>,
    /// Endpoints outside of resources with names.
    pub(super) endpoints: u64,
    pub(super) nonce: Vec<u8>,
}

/// A position in a stream of gRPC messages.
#[derive(Debug)]
pub(super) struct Scanner {
    layout: &'static Layout,
    position: u64,
    /// Ends of the message and of the fields that it is in.
    ends: Vec<u64>,
    /// Bytes of an incomplete header.
    header: Vec<u8>,
    /// Bytes until the next header.
    skip: usize,
    /// Where those bytes belong.
    kept: Option<Kept>,
    message: Message,
    /// Name and endpoints of the resource that the position is in.
    resource: (Vec<u8>, u64),
}

#[derive(Clone, Copy, Debug)]
enum Kept {
    Name,
    Nonce,
}

/// Length of the gRPC message prefix: compressed flag and message length.
const PREFIX: usize = 5;
/// Larger than a key with a length.
const MAX_HEADER: usize = 20;
/// Longer than a name of a cluster or a nonce.
const MAX_KEPT: u64 = 512;

/// Wire types of protobuf.
const VARINT: u64 = 0;
const FIXED64: u64 = 1;
const BYTES: u64 = 2;
const FIXED32: u64 = 5;

impl Scanner {
    pub(super) fn new(layout: &'static Layout) -> Self {
        Self {
            layout,
            position: 0,
            ends: Vec::new(),
            header: Vec::new(),
            skip: 0,
            kept: None,
            message: Message::default(),
            resource: Default::default(),
        }
    }

    /// Returns each message that ends in `data`.
    pub(super) fn feed(&mut self, mut data: &[u8]) -> anyhow::Result<Vec<Message>> {
        let mut messages = Vec::new();
        loop {
            while self.skip == 0 && self.ends.last().is_some_and(|end| self.position >= *end) {
                self.ends.pop();
                match self.ends.len() {
                    0 => messages.push(std::mem::take(&mut self.message)),
                    1 => self.end_resource(),
                    _ => {}
                }
            }
            if self.skip > 0 {
                let length = self.skip.min(data.len());
                let (skipped, rest) = data.split_at(length);
                match self.kept {
                    Some(Kept::Name) => self.resource.0.extend_from_slice(skipped),
                    Some(Kept::Nonce) => self.message.nonce.extend_from_slice(skipped),
                    None => {}
                }
                self.skip -= length;
                self.position += length as u64;
                data = rest;
                if self.skip > 0 {
                    return Ok(messages);
                }
                self.kept = None;
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

    fn end_resource(&mut self) {
        let (name, endpoints) = std::mem::take(&mut self.resource);
        if self.layout.name.is_some() {
            self.message.resources.push((name, endpoints));
        } else {
            self.message.endpoints += endpoints;
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
        let Some((key, length)) = key_and_length(&self.header)? else {
            if self.header.len() > MAX_HEADER {
                bail!("the message is not protobuf");
            }
            return Ok(());
        };
        self.header.clear();
        let (depth, field) = (self.ends.len(), key >> 3);
        if key & 7 == BYTES && self.layout.endpoint.get(depth - 1) == Some(&field) {
            if depth < self.layout.endpoint.len() {
                self.ends.push(self.position.saturating_add(length));
                return Ok(());
            }
            self.resource.1 += 1;
        }
        self.kept = match depth {
            1 if self.layout.nonce == Some(field) => Some(Kept::Nonce),
            2 if self.layout.name == Some(field) => Some(Kept::Name),
            _ => None,
        };
        if self.kept.is_some() && length > MAX_KEPT {
            bail!("a name or nonce has {length} bytes");
        }
        self.skip = usize::try_from(length).context("a field is too long")?;
        Ok(())
    }
}

/// Parses a key and the length of the field after it, if both are complete.
fn key_and_length(bytes: &[u8]) -> anyhow::Result<Option<(u64, u64)>> {
    let Some((key, rest)) = varint(bytes) else {
        return Ok(None);
    };
    let number = || varint(rest).map(|(number, _)| number);
    let length = match key & 7 {
        VARINT => number().map(|_value| 0),
        BYTES => number(),
        FIXED64 => Some(8),
        FIXED32 => Some(4),
        other => bail!("the message is not protobuf: wire type {other}"),
    };
    Ok(length.map(|length| (key, length)))
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

    use super::super::api::{DESTINATIONS, ENDPOINTS};
    use super::*;
    use crate::load::grpc::{framed, put};

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
        let encode = |update| framed(&update_to_proto(update).encode_to_vec());
        let stream: Vec<u8> = all.iter().flat_map(encode).collect();
        for size in [1, 2, 7, 1000, stream.len()] {
            let mut scanner = Scanner::new(&DESTINATIONS);
            let pieces = stream.chunks(size);
            let counted: Vec<u64> = pieces
                .flat_map(|piece| scanner.feed(piece).expect("valid messages"))
                .map(|message| message.endpoints)
                .collect();
            assert_eq!(counted, [300, 0, 1, 0, 0], "pieces of {size} bytes");
        }
    }

    #[test]
    fn resources_of_a_delta_response_are_counted_by_name() {
        let response = |counts: &[(&str, u64)], nonce: &str| {
            let mut response = Vec::new();
            for (name, count) in counts {
                let mut locality = Vec::new();
                for _ in 0..*count {
                    put(&mut locality, 2, &[0x10; 40]);
                }
                // A weight, in a message, and a priority, a number.
                put(&mut locality, 3, &[0x08, 0x05]);
                locality.extend([0x28, 0x80, 0x01]);
                let mut assignment = Vec::new();
                put(&mut assignment, 1, name.as_bytes());
                put(&mut assignment, 2, &locality);
                put(&mut assignment, 2, &[]);
                let mut any = Vec::new();
                put(&mut any, 1, b"type.googleapis.com/x");
                put(&mut any, 2, &assignment);
                let mut resource = Vec::new();
                put(&mut resource, 1, b"version");
                put(&mut resource, 2, &any);
                put(&mut resource, 3, name.as_bytes());
                put(&mut response, 2, &resource);
            }
            put(&mut response, 5, nonce.as_bytes());
            framed(&response)
        };
        let stream = [
            response(&[("a", 300), ("b", 0)], "n1"),
            response(&[("b", 2)], ""),
        ];
        let stream = stream.concat();
        for size in [1, 3, stream.len()] {
            let mut scanner = Scanner::new(&ENDPOINTS);
            let pieces = stream.chunks(size);
            let messages: Vec<Message> = pieces
                .flat_map(|piece| scanner.feed(piece).expect("valid messages"))
                .collect();
            let expected = |resources: &[(&str, u64)], nonce: &str| Message {
                resources: resources
                    .iter()
                    .map(|(name, count)| (name.as_bytes().to_vec(), *count))
                    .collect(),
                endpoints: 0,
                nonce: nonce.as_bytes().to_vec(),
            };
            let all = [
                expected(&[("a", 300), ("b", 0)], "n1"),
                expected(&[("b", 2)], ""),
            ];
            assert_eq!(messages, all, "pieces of {size} bytes");
        }
    }

    #[test]
    fn other_bytes_are_errors() {
        let compressed = [1, 0, 0, 0, 1];
        let group = [0, 0, 0, 0, 2, 0x0b, 0x01];
        let endless = [&[0, 0, 0, 0, 99][..], &[0xff; 30]].concat();
        let mut long_nonce = vec![0, 0, 0, 9, 0];
        put(&mut long_nonce, 5, &[b'n'; 513]);
        for bytes in [&compressed[..], &group, &endless, &long_nonce] {
            assert!(Scanner::new(&ENDPOINTS).feed(bytes).is_err(), "{bytes:?}");
        }
    }
}

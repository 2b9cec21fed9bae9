//! Encodes and decodes netlink messages, and exchanges them with the kernel.
//!
//! Limited to nf_tables transactions and dumps of their rules (module `nft`) and link set-up
//! (module `tier`), so that redirecting a pod needs no program of the host. The encoding is pure;
//! only [`Socket`] makes system calls.

mod socket;

pub use socket::{Socket, SocketError};

/// Kernel: `NLMSG_ALIGNTO`, `NLA_ALIGNTO`.
const ALIGNMENT: usize = 4;
/// Kernel: `struct nlmsghdr` and `struct nlattr`.
const HEADER_LENGTH: usize = 16;
const ATTRIBUTE_HEADER_LENGTH: usize = 4;
/// Kernel: `NLA_F_NESTED` and the mask that removes it and `NLA_F_NET_BYTEORDER`.
const NESTED: u16 = 1 << 15;
const ATTRIBUTE_TYPE_MASK: u16 = 0x3fff;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    bytes: Vec<u8>,
}

#[derive(Clone, Copy, Debug)]
pub struct ReceivedMessage<'a> {
    pub kind: u16,
    pub flags: u16,
    pub sequence: u32,
    pub body: &'a [u8],
}

/// The attributes of a body, in order. Ends at the first malformed one.
#[derive(Clone, Debug)]
pub struct Attributes<'a>(&'a [u8]);

impl Message {
    pub fn new(kind: u16, flags: u16, sequence: u32) -> Self {
        let mut bytes = Vec::with_capacity(256);
        // `finish` writes the length; port 0 addresses the kernel.
        bytes.extend(0u32.to_ne_bytes());
        bytes.extend(kind.to_ne_bytes());
        bytes.extend(flags.to_ne_bytes());
        bytes.extend(sequence.to_ne_bytes());
        bytes.extend(0u32.to_ne_bytes());
        Self { bytes }
    }

    /// Appends the fixed header of the message's family, which precedes the attributes.
    pub fn family_header(mut self, header: &[u8]) -> Self {
        self.bytes.extend(header);
        self.pad();
        self
    }

    pub fn attribute(mut self, kind: u16, value: &[u8]) -> Self {
        let length = (ATTRIBUTE_HEADER_LENGTH + value.len()) as u16;
        self.bytes.extend(length.to_ne_bytes());
        self.bytes.extend(kind.to_ne_bytes());
        self.bytes.extend(value);
        self.pad();
        self
    }

    pub fn text(self, kind: u16, value: &str) -> Self {
        let mut terminated = value.as_bytes().to_vec();
        terminated.push(0);
        self.attribute(kind, &terminated)
    }

    /// Appends a number in network byte order, which nf_tables uses for all numbers.
    pub fn number(self, kind: u16, value: u32) -> Self {
        self.attribute(kind, &value.to_be_bytes())
    }

    pub fn nested(mut self, kind: u16, fill: impl FnOnce(Self) -> Self) -> Self {
        let start = self.bytes.len();
        self = fill(self.attribute(kind | NESTED, &[]));
        let length = (self.bytes.len() - start) as u16;
        self.bytes[start..start + 2].copy_from_slice(&length.to_ne_bytes());
        self
    }

    pub fn finish(mut self) -> Vec<u8> {
        let length = self.bytes.len() as u32;
        self.bytes[..4].copy_from_slice(&length.to_ne_bytes());
        self.bytes
    }

    fn pad(&mut self) {
        self.bytes
            .resize(self.bytes.len().next_multiple_of(ALIGNMENT), 0);
    }
}

/// Splits the bytes of one read from a netlink socket into messages.
pub fn messages(mut bytes: &[u8]) -> impl Iterator<Item = ReceivedMessage<'_>> {
    std::iter::from_fn(move || {
        let length = u32_at(bytes, 0)? as usize;
        let body = bytes.get(HEADER_LENGTH..length)?;
        let message = ReceivedMessage {
            kind: u16_at(bytes, 4)?,
            flags: u16_at(bytes, 6)?,
            sequence: u32_at(bytes, 8)?,
            body,
        };
        bytes = bytes
            .get(length.next_multiple_of(ALIGNMENT)..)
            .unwrap_or(&[]);
        Some(message)
    })
}

impl<'a> Attributes<'a> {
    /// Skips the `header` bytes of the message's family.
    pub fn after(body: &'a [u8], header: usize) -> Self {
        Self(body.get(header..).unwrap_or(&[]))
    }

    pub fn find(self, kind: u16) -> Option<&'a [u8]> {
        let mut attributes = self;
        attributes.find_map(|(candidate, value)| (candidate == kind).then_some(value))
    }
}

impl<'a> Iterator for Attributes<'a> {
    type Item = (u16, &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        let length = usize::from(u16_at(self.0, 0)?);
        let kind = u16_at(self.0, 2)? & ATTRIBUTE_TYPE_MASK;
        let value = self.0.get(ATTRIBUTE_HEADER_LENGTH..length)?;
        self.0 = self
            .0
            .get(length.next_multiple_of(ALIGNMENT)..)
            .unwrap_or(&[]);
        Some((kind, value))
    }
}

fn u16_at(bytes: &[u8], offset: usize) -> Option<u16> {
    let field = bytes.get(offset..offset + 2)?;
    Some(u16::from_ne_bytes(field.try_into().ok()?))
}

fn u32_at(bytes: &[u8], offset: usize) -> Option<u32> {
    let field = bytes.get(offset..offset + 4)?;
    Some(u32::from_ne_bytes(field.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn encoded_messages_decode_to_the_same_fields() {
        let bytes = Message::new(0x0a06, 5, 7)
            .family_header(&[1, 0, 0, 0])
            .text(1, "mesh")
            .nested(2, |inner| inner.number(1, 80).attribute(2, &[9, 9, 9]))
            .number(3, 4140)
            .finish();
        assert_eq!(bytes.len() % ALIGNMENT, 0);
        let two: Vec<u8> = [bytes.clone(), bytes].concat();
        let read: Vec<ReceivedMessage<'_>> = messages(&two).collect();
        assert_eq!(read.len(), 2);
        let header = (read[1].kind, read[1].flags, read[1].sequence);
        assert_eq!(header, (0x0a06, 5, 7));
        let attributes = Attributes::after(read[1].body, 4);
        assert_eq!(attributes.clone().find(1), Some(&b"mesh\0"[..]));
        assert_eq!(attributes.clone().find(3), Some(&4140u32.to_be_bytes()[..]));
        let inner = attributes.find(2).unwrap();
        let inner: Vec<_> = Attributes::after(inner, 0).collect();
        assert_eq!(inner, [(1, &[0, 0, 0, 80][..]), (2, &[9, 9, 9][..])]);
    }

    #[test]
    fn truncated_input_ends_iteration() {
        let bytes = Message::new(1, 0, 1).text(1, "abc").finish();
        for end in 0..bytes.len() {
            assert_eq!(messages(&bytes[..end]).count(), 0, "{end}");
        }
        assert_eq!(Attributes::after(&[3, 0, 1, 0], 0).count(), 0);
        assert_eq!(Attributes::after(&[200, 0, 1, 0, 5], 0).count(), 0);
    }
}

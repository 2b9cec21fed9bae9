//! Messages of Linkerd's proxy API with the field of this project's extensions (docs/adr/0147,
//! docs/adr/0176).

use prost::bytes::{Buf, BufMut};
use prost::encoding::{self, DecodeContext, WireType};
use prost::{DecodeError, Message};

/// The field of the extension. The API has numbers below 10; programs of other projects skip it.
const EXTENSION: u32 = 1000;

/// A message of Linkerd's proxy API with the extension of this project.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Extended<M> {
    /// The part that other projects' programs read too.
    pub standard: M,
    /// The encoded extension, empty if there is none. It is decoded separately, so that an invalid
    /// one does not make the whole message invalid.
    pub extension: Vec<u8>,
}

impl<M> From<M> for Extended<M> {
    fn from(standard: M) -> Self {
        Self {
            standard,
            extension: Vec::new(),
        }
    }
}

impl<M: Message + Default> Message for Extended<M> {
    fn encode_raw(&self, buf: &mut impl BufMut) {
        self.standard.encode_raw(buf);
        if !self.extension.is_empty() {
            encoding::bytes::encode(EXTENSION, &self.extension, buf);
        }
    }

    fn merge_field(
        &mut self,
        tag: u32,
        wire_type: WireType,
        buf: &mut impl Buf,
        ctx: DecodeContext,
    ) -> Result<(), DecodeError> {
        match (tag, wire_type) {
            (EXTENSION, WireType::LengthDelimited) => {
                encoding::bytes::merge(wire_type, &mut self.extension, buf, ctx)
            }
            (EXTENSION, _) => encoding::skip_field(wire_type, tag, buf, ctx),
            _ => self.standard.merge_field(tag, wire_type, buf, ctx),
        }
    }

    fn encoded_len(&self) -> usize {
        let extension = if self.extension.is_empty() {
            0
        } else {
            encoding::bytes::encoded_len(EXTENSION, &self.extension)
        };
        self.standard.encoded_len() + extension
    }

    fn clear(&mut self) {
        *self = Self::default();
    }
}

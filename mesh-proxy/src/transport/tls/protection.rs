//! Record protection of one direction (RFC 8446, section 5.2): seals and opens records in place.
//!
//! Keys are wiped when they are dropped: rustls wipes its secrets, and AWS-LC wipes the copies of
//! the AEAD when it frees them.

use std::ops::Range;

use aws_lc_rs::aead::{
    AES_128_GCM, AES_256_GCM, Aad, CHACHA20_POLY1305, LessSafeKey, NONCE_LEN, Nonce, UnboundKey,
};
use rustls::ConnectionTrafficSecrets;

use super::error::RecordError;
use super::{DATA, HEADER_LEN, MAX_CIPHERTEXT, MAX_CONTENT, OVERHEAD, TAG_LEN};

/// A key and the sequence number of the next record.
pub(super) struct RecordProtection {
    key: LessSafeKey,
    iv: [u8; NONCE_LEN],
    number: u64,
}

/// The TLSInnerPlaintext of a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct InnerPlaintext {
    pub(super) content_type: u8,
    /// The range in the record.
    pub(super) content: Range<usize>,
}

impl RecordProtection {
    pub(super) fn new(
        number: u64,
        secrets: &ConnectionTrafficSecrets,
    ) -> Result<Self, RecordError> {
        let (algorithm, key, iv) = match secrets {
            ConnectionTrafficSecrets::Aes128Gcm { key, iv } => (&AES_128_GCM, key, iv),
            ConnectionTrafficSecrets::Aes256Gcm { key, iv } => (&AES_256_GCM, key, iv),
            ConnectionTrafficSecrets::Chacha20Poly1305 { key, iv } => (&CHACHA20_POLY1305, key, iv),
            _ => return Err(RecordError::UnsupportedSuite),
        };
        let key = UnboundKey::new(algorithm, key.as_ref())
            .map_err(|_unspecified| RecordError::UnsupportedSuite)?;
        Ok(Self {
            key: LessSafeKey::new(key),
            iv: iv
                .as_ref()
                .try_into()
                .map_err(|_length| RecordError::UnsupportedSuite)?,
            number,
        })
    }

    /// Returns how many records this key has sealed or opened.
    pub(super) fn records(&self) -> u64 {
        self.number
    }

    /// Seals a record in `slot`: `length` bytes of content after space for the header, followed by
    /// space for the content type and the tag. Returns the length of the record.
    pub(super) fn seal(
        &mut self,
        slot: &mut [u8],
        length: usize,
        content_type: u8,
    ) -> Result<usize, RecordError> {
        let [high, low] = ((length + 1 + TAG_LEN) as u16).to_be_bytes();
        let header = [DATA, 3, 3, high, low];
        let (slot, _) = slot.split_at_mut(length + OVERHEAD);
        let (front, rest) = slot.split_at_mut(HEADER_LEN);
        let (inner, tag) = rest.split_at_mut(length + 1);
        front.copy_from_slice(&header);
        inner[length] = content_type;
        let nonce = self.next_nonce()?;
        let sealed = self
            .key
            .seal_in_place_separate_tag(nonce, Aad::from(header), inner)
            .map_err(|_unspecified| RecordError::KeyExhausted)?;
        tag.copy_from_slice(sealed.as_ref());
        Ok(length + OVERHEAD)
    }

    /// Opens a complete record.
    pub(super) fn open(&mut self, record: &mut [u8]) -> Result<InnerPlaintext, RecordError> {
        let (header, body) = record.split_at_mut(HEADER_LEN);
        let header: [u8; HEADER_LEN] = header.try_into().map_err(|_length| RecordError::BadMac)?;
        let nonce = self.next_nonce()?;
        let inner = self
            .key
            .open_in_place(nonce, Aad::from(header), body)
            .map_err(|_unspecified| RecordError::BadMac)?;
        if inner.len() > MAX_CONTENT + 1 {
            return Err(RecordError::TooLong);
        }
        let end = inner
            .iter()
            .rposition(|byte| *byte != 0)
            .ok_or(RecordError::NoContent)?;
        Ok(InnerPlaintext {
            content_type: inner[end],
            content: HEADER_LEN..HEADER_LEN + end,
        })
    }

    /// Computes the nonce of the next record (RFC 8446, section 5.3). Sequence numbers do not wrap.
    fn next_nonce(&mut self) -> Result<Nonce, RecordError> {
        let number = self.number;
        self.number = number.checked_add(1).ok_or(RecordError::KeyExhausted)?;
        let mut nonce = self.iv;
        for (byte, number_byte) in nonce[NONCE_LEN - 8..].iter_mut().zip(number.to_be_bytes()) {
            *byte ^= number_byte;
        }
        Ok(Nonce::assume_unique_for_key(nonce))
    }
}

/// Returns the length of the record at the start of `bytes`, including its header. `None` when the
/// header is incomplete.
pub(super) fn record_length(bytes: &[u8]) -> Result<Option<usize>, RecordError> {
    let [content_type, _, _, high, low, ..] = *bytes else {
        return Ok(None);
    };
    if content_type != DATA {
        return Err(RecordError::Unencrypted(content_type));
    }
    match usize::from(u16::from_be_bytes([high, low])) {
        body if body > MAX_CIPHERTEXT => Err(RecordError::TooLong),
        body => Ok(Some(HEADER_LEN + body)),
    }
}

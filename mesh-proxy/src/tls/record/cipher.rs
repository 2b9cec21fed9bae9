//! One direction's key at work: records sealed and opened in place, each under its number.
//!
//! Keys are wiped when they are dropped: the library's secrets by the library, and the AEAD's own
//! copies by AWS-LC, which cleanses what it frees.

use std::ops::Range;

use aws_lc_rs::aead::{
    AES_128_GCM, AES_256_GCM, Aad, CHACHA20_POLY1305, LessSafeKey, NONCE_LEN, Nonce, UnboundKey,
};
use rustls::ConnectionTrafficSecrets;

use super::error::RecordError;
use super::{DATA, HEADER, MAX_BODY, MAX_CONTENT, OVERHEAD, TAG};

/// A key and the number of the next record.
pub(super) struct Cipher {
    key: LessSafeKey,
    iv: [u8; NONCE_LEN],
    number: u64,
}

/// What was in a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Inner {
    pub(super) content_type: u8,
    /// Where in the record.
    pub(super) content: Range<usize>,
}

impl Cipher {
    pub(super) fn new(
        number: u64,
        secrets: &ConnectionTrafficSecrets,
    ) -> Result<Self, RecordError> {
        let (algorithm, key, iv) = match secrets {
            ConnectionTrafficSecrets::Aes128Gcm { key, iv } => (&AES_128_GCM, key, iv),
            ConnectionTrafficSecrets::Aes256Gcm { key, iv } => (&AES_256_GCM, key, iv),
            ConnectionTrafficSecrets::Chacha20Poly1305 { key, iv } => (&CHACHA20_POLY1305, key, iv),
            _ => return Err(RecordError::Suite),
        };
        let key =
            UnboundKey::new(algorithm, key.as_ref()).map_err(|_unspecified| RecordError::Suite)?;
        Ok(Self {
            key: LessSafeKey::new(key),
            iv: iv
                .as_ref()
                .try_into()
                .map_err(|_length| RecordError::Suite)?,
            number,
        })
    }

    /// Records that this key has been used for.
    pub(super) fn used(&self) -> u64 {
        self.number
    }

    /// Makes a record of the first bytes of `slot`. They lie behind room for the header; type and
    /// tag follow them.
    pub(super) fn seal(
        &mut self,
        slot: &mut [u8],
        length: usize,
        content_type: u8,
    ) -> Result<usize, RecordError> {
        let [high, low] = ((length + 1 + TAG) as u16).to_be_bytes();
        let header = [DATA, 3, 3, high, low];
        let (slot, _) = slot.split_at_mut(length + OVERHEAD);
        let (front, rest) = slot.split_at_mut(HEADER);
        let (inner, tag) = rest.split_at_mut(length + 1);
        front.copy_from_slice(&header);
        inner[length] = content_type;
        let nonce = self.next_nonce()?;
        let sealed = self
            .key
            .seal_in_place_separate_tag(nonce, Aad::from(header), inner)
            .map_err(|_unspecified| RecordError::Exhausted)?;
        tag.copy_from_slice(sealed.as_ref());
        Ok(length + OVERHEAD)
    }

    /// Opens a whole record.
    pub(super) fn open(&mut self, record: &mut [u8]) -> Result<Inner, RecordError> {
        let (header, body) = record.split_at_mut(HEADER);
        let header: [u8; HEADER] = header.try_into().map_err(|_length| RecordError::Forged)?;
        let nonce = self.next_nonce()?;
        let inner = self
            .key
            .open_in_place(nonce, Aad::from(header), body)
            .map_err(|_unspecified| RecordError::Forged)?;
        if inner.len() > MAX_CONTENT + 1 {
            return Err(RecordError::TooLong);
        }
        let end = inner
            .iter()
            .rposition(|byte| *byte != 0)
            .ok_or(RecordError::NoContent)?;
        Ok(Inner {
            content_type: inner[end],
            content: HEADER..HEADER + end,
        })
    }

    /// RFC 8446 §5.3. A number is never used twice, so a key ends with its last number.
    fn next_nonce(&mut self) -> Result<Nonce, RecordError> {
        let number = self.number;
        self.number = number.checked_add(1).ok_or(RecordError::Exhausted)?;
        let mut nonce = self.iv;
        for (byte, of_number) in nonce[NONCE_LEN - 8..].iter_mut().zip(number.to_be_bytes()) {
            *byte ^= of_number;
        }
        Ok(Nonce::assume_unique_for_key(nonce))
    }
}

/// The length of the record that `bytes` begin with, header included. `None` while that cannot be
/// told.
pub(super) fn record_length(bytes: &[u8]) -> Result<Option<usize>, RecordError> {
    let [content_type, _, _, high, low, ..] = *bytes else {
        return Ok(None);
    };
    if content_type != DATA {
        return Err(RecordError::Unprotected(content_type));
    }
    match usize::from(u16::from_be_bytes([high, low])) {
        body if body > MAX_BODY => Err(RecordError::TooLong),
        body => Ok(Some(HEADER + body)),
    }
}

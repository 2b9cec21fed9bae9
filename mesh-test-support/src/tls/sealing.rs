//! TLS 1.3 connections whose records a test seals itself. rustls performs the handshake but does
//! not encrypt, so that a test can fragment, pad, seal and mix the handshake messages arbitrarily.

use std::cell::RefCell;
use std::sync::{Arc, LazyLock};

use rustls::crypto::aws_lc_rs::cipher_suite::TLS13_AES_128_GCM_SHA256;
use rustls::crypto::cipher::{
    AeadKey, Iv, MessageDecrypter, MessageEncrypter, OutboundChunks, OutboundOpaqueMessage,
    OutboundPlainMessage, PrefixedPayload, Tls13AeadAlgorithm, UnsupportedOperationError,
};
use rustls::crypto::{CipherSuiteCommon, CryptoProvider};
use rustls::{
    Connection, ConnectionTrafficSecrets, ContentType, Error, ProtocolVersion,
    SupportedCipherSuite, Tls13CipherSuite,
};

/// The content type of encrypted records.
const DATA: u8 = 23;

/// A record before it is sealed.
#[derive(Debug)]
pub struct PlaintextRecord {
    /// The index of its key among the keys of this thread. `None` for unencrypted records.
    pub key: Option<usize>,
    /// The content type (RFC 8446, section 5.1).
    pub content_type: u8,
    /// The content, without padding.
    pub content: Vec<u8>,
}

struct SendingKey {
    encrypter: Box<dyn MessageEncrypter>,
    next_record: u64,
}

thread_local! {
    /// The sending keys of all connections of this thread, in the order of their derivation.
    static KEYS: RefCell<Vec<SendingKey>> = const { RefCell::new(Vec::new()) };
}

/// Removes the keys of earlier connections. Later ones have indices from 0 on.
pub fn reset() {
    KEYS.with_borrow_mut(Vec::clear);
}

/// Returns the index of the next key.
pub fn next_key() -> usize {
    KEYS.with_borrow(Vec::len)
}

/// Takes the records that a connection with a [`provider`] of this module wants to send.
pub fn pending_records(rustls: &mut Connection) -> Vec<PlaintextRecord> {
    let mut bytes = Vec::new();
    while rustls.wants_write() {
        rustls.write_tls(&mut bytes).expect("a vector");
    }
    let mut rest = &bytes[..];
    let mut records = Vec::new();
    while let [content_type, _, _, high, low, body @ ..] = rest {
        let (content, after) = body.split_at(usize::from(u16::from_be_bytes([*high, *low])));
        rest = after;
        let (key, content_type, content) = match (*content_type, content) {
            (DATA, [content @ .., inner, key]) => (Some(usize::from(*key)), *inner, content),
            (outer, content) => (None, outer, content),
        };
        records.push(PlaintextRecord {
            key,
            content_type,
            content: content.to_vec(),
        });
    }
    records
}

/// Seals a record whose content is followed by `padding` zeros; without a key, encodes it
/// unencrypted and without padding.
///
/// # Panics
/// If no connection of this thread derived the key.
pub fn seal(key: Option<usize>, content_type: u8, content: &[u8], padding: usize) -> Vec<u8> {
    let Some(key) = key else {
        return unencrypted(content_type, content);
    };
    // rustls appends the content type, so the last byte of the padding takes its place.
    let mut padded = content.to_vec();
    let mut last = content_type;
    if padding > 0 {
        padded.push(content_type);
        padded.resize(padded.len() + padding - 1, 0);
        last = 0;
    }
    KEYS.with_borrow_mut(|keys| {
        let key = &mut keys[key];
        let number = key.next_record;
        key.next_record += 1;
        let message = OutboundPlainMessage {
            typ: ContentType::from(last),
            version: ProtocolVersion::TLSv1_2,
            payload: OutboundChunks::Single(&padded),
        };
        let sealed = key.encrypter.encrypt(message, number);
        sealed.expect("a fresh key").encode()
    })
}

/// Encodes an unencrypted record. Truncates the content if its length does not fit into the header.
pub fn unencrypted(content_type: u8, content: &[u8]) -> Vec<u8> {
    let length = content.len() as u16;
    let [high, low] = length.to_be_bytes();
    let header = [content_type, 3, 3, high, low];
    [&header, &content[..usize::from(length)]].concat()
}

/// Returns `genuine` with TLS_AES_128_GCM_SHA256 as its only suite, which stores keys instead of
/// sealing records.
pub fn provider(genuine: CryptoProvider) -> Arc<CryptoProvider> {
    static SUITE: LazyLock<Tls13CipherSuite> = LazyLock::new(|| {
        let suite = CapturedAead::suite();
        Tls13CipherSuite {
            common: CipherSuiteCommon {
                suite: suite.common.suite,
                hash_provider: suite.common.hash_provider,
                confidentiality_limit: suite.common.confidentiality_limit,
            },
            hkdf_provider: suite.hkdf_provider,
            aead_alg: &CapturedAead,
            quic: None,
        }
    });
    Arc::new(CryptoProvider {
        cipher_suites: vec![SupportedCipherSuite::Tls13(&SUITE)],
        ..genuine
    })
}

/// Stores the keys that rustls would seal records with.
struct CapturedAead;

impl CapturedAead {
    fn suite() -> &'static Tls13CipherSuite {
        TLS13_AES_128_GCM_SHA256
            .tls13()
            .expect("a suite of TLS 1.3")
    }
}

impl Tls13AeadAlgorithm for CapturedAead {
    fn encrypter(&self, key: AeadKey, iv: Iv) -> Box<dyn MessageEncrypter> {
        KEYS.with_borrow_mut(|keys| {
            keys.push(SendingKey {
                encrypter: Self::suite().aead_alg.encrypter(key, iv),
                next_record: 0,
            });
            Box::new(Unencrypted(keys.len() - 1))
        })
    }

    fn decrypter(&self, key: AeadKey, iv: Iv) -> Box<dyn MessageDecrypter> {
        Self::suite().aead_alg.decrypter(key, iv)
    }

    fn key_len(&self) -> usize {
        Self::suite().aead_alg.key_len()
    }

    fn extract_keys(
        &self,
        key: AeadKey,
        iv: Iv,
    ) -> Result<ConnectionTrafficSecrets, UnsupportedOperationError> {
        Self::suite().aead_alg.extract_keys(key, iv)
    }
}

/// Appends the content type and the key's index to the content instead of encrypting it.
struct Unencrypted(usize);

impl MessageEncrypter for Unencrypted {
    fn encrypt(
        &mut self,
        message: OutboundPlainMessage<'_>,
        _number: u64,
    ) -> Result<OutboundOpaqueMessage, Error> {
        let mut payload = PrefixedPayload::with_capacity(message.payload.len() + 2);
        payload.extend_from_chunks(&message.payload);
        payload.extend_from_slice(&[message.typ.into(), self.0 as u8]);
        Ok(OutboundOpaqueMessage::new(
            ContentType::ApplicationData,
            ProtocolVersion::TLSv1_2,
            payload,
        ))
    }

    fn encrypted_payload_len(&self, length: usize) -> usize {
        length + 2
    }
}

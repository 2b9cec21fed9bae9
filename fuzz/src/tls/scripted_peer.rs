//! A peer that seals its own records. rustls performs its handshake but does not encrypt, so that
//! an input can fragment, pad, seal and mix the handshake messages.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::sync::{Arc, LazyLock};

use rustls::crypto::cipher::{
    AeadKey, Iv, MessageDecrypter, MessageEncrypter, OutboundChunks, OutboundOpaqueMessage,
    OutboundPlainMessage, PrefixedPayload, Tls13AeadAlgorithm, UnsupportedOperationError,
};
use rustls::crypto::{CipherSuiteCommon, CryptoProvider};
use rustls::{
    Connection, ConnectionTrafficSecrets, ContentType, Error, ProtocolVersion,
    SupportedCipherSuite, Tls13CipherSuite,
};

use super::SUITES;

/// The content type of encrypted records.
const DATA: u8 = 23;

/// A record before it is sealed.
#[derive(Debug)]
pub(super) struct PlaintextRecord {
    /// The index of its key. `None` for unencrypted records.
    pub(super) key: Option<usize>,
    pub(super) content_type: u8,
    pub(super) content: Vec<u8>,
}

/// A rustls connection and the records that it wants to send.
pub(super) struct ScriptedPeer {
    rustls: Connection,
    pub(super) pending: VecDeque<PlaintextRecord>,
    /// The index of its current sending key.
    pub(super) key: Option<usize>,
}

struct SendingKey {
    encrypter: Box<dyn MessageEncrypter>,
    next_record: u64,
}

thread_local! {
    /// The sending keys of all peers of one execution.
    static KEYS: RefCell<Vec<SendingKey>> = const { RefCell::new(Vec::new()) };
}

/// Removes the keys of the previous execution.
pub(super) fn reset() {
    KEYS.with_borrow_mut(Vec::clear);
}

impl ScriptedPeer {
    pub(super) fn new(rustls: Connection) -> Self {
        let mut peer = Self {
            rustls,
            pending: VecDeque::new(),
            key: None,
        };
        peer.collect();
        peer
    }

    /// Passes the proxy's bytes to rustls, which stops at the first invalid record.
    pub(super) fn receive(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let read = self.rustls.read_tls(&mut bytes);
            if !matches!(read, Ok(1..)) || self.rustls.process_new_packets().is_err() {
                break;
            }
        }
        self.collect();
    }

    fn collect(&mut self) {
        let mut bytes = Vec::new();
        while self.rustls.wants_write() {
            self.rustls.write_tls(&mut bytes).expect("a vector");
        }
        let mut rest = &bytes[..];
        while let [content_type, _, _, high, low, body @ ..] = rest {
            let (content, after) = body.split_at(usize::from(u16::from_be_bytes([*high, *low])));
            rest = after;
            let record = match (*content_type, content) {
                (DATA, [content @ .., content_type, key]) => PlaintextRecord {
                    key: Some(usize::from(*key)),
                    content_type: *content_type,
                    content: content.to_vec(),
                },
                (content_type, content) => PlaintextRecord {
                    key: None,
                    content_type,
                    content: content.to_vec(),
                },
            };
            self.pending.push_back(record);
        }
    }

    /// Seals a record. `padding` zeros follow the content of an encrypted one.
    pub(super) fn seal(
        &mut self,
        key: Option<usize>,
        content_type: u8,
        content: &[u8],
        padding: usize,
    ) -> Vec<u8> {
        let Some(key) = key else {
            return unencrypted(content_type, content);
        };
        self.key = Some(key);
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
            key.encrypter
                .encrypt(message, number)
                .expect("a fresh key")
                .encode()
        })
    }
}

/// Encodes an unencrypted record. Truncates the content if its length does not fit into the header.
pub(super) fn unencrypted(content_type: u8, content: &[u8]) -> Vec<u8> {
    let length = content.len() as u16;
    let [high, low] = length.to_be_bytes();
    let header = [content_type, 3, 3, high, low];
    [&header, &content[..usize::from(length)]].concat()
}

/// Returns the crypto provider of a scripted peer.
pub(super) fn provider(genuine: CryptoProvider) -> Arc<CryptoProvider> {
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

/// Stores the keys with which rustls would seal records.
struct CapturedAead;

impl CapturedAead {
    fn suite() -> &'static Tls13CipherSuite {
        SUITES[0].tls13().expect("a suite of TLS 1.3")
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

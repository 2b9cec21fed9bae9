//! A peer that makes its own records. The TLS library performs its side of the handshake but leaves
//! its records unencrypted, so that a target can cut, pad, seal and mix the handshake messages as
//! an input says.

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

/// Content type of encrypted records.
const DATA: u8 = 23;

/// A record without its protection.
#[derive(Debug)]
pub(super) struct Unsealed {
    /// None for records in clear.
    pub(super) key: Option<usize>,
    pub(super) content_type: u8,
    pub(super) content: Vec<u8>,
}

/// The library's connection, and what it would have sent.
pub(super) struct Puppet {
    rustls: Connection,
    pub(super) pending: VecDeque<Unsealed>,
    /// The number of its newest sending key.
    pub(super) key: Option<usize>,
}

struct SendingKey {
    encrypter: Box<dyn MessageEncrypter>,
    next_record: u64,
}

thread_local! {
    /// The sending keys of all puppets of one execution.
    static KEYS: RefCell<Vec<SendingKey>> = const { RefCell::new(Vec::new()) };
}

/// Forgets the keys of the execution before.
pub(super) fn reset() {
    KEYS.with_borrow_mut(Vec::clear);
}

impl Puppet {
    pub(super) fn new(rustls: Connection) -> Self {
        let mut puppet = Self {
            rustls,
            pending: VecDeque::new(),
            key: None,
        };
        puppet.collect();
        puppet
    }

    /// Gives the library what the peer has sent. What it cannot use ends its part of the
    /// conversation.
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
            let (content, behind) = body.split_at(usize::from(u16::from_be_bytes([*high, *low])));
            rest = behind;
            let record = match (*content_type, content) {
                (DATA, [content @ .., content_type, key]) => Unsealed {
                    key: Some(usize::from(*key)),
                    content_type: *content_type,
                    content: content.to_vec(),
                },
                (content_type, content) => Unsealed {
                    key: None,
                    content_type,
                    content: content.to_vec(),
                },
            };
            self.pending.push_back(record);
        }
    }

    /// Makes a record; `padding` zeros follow the content when it is encrypted.
    pub(super) fn seal(
        &mut self,
        key: Option<usize>,
        content_type: u8,
        content: &[u8],
        padding: usize,
    ) -> Vec<u8> {
        let Some(key) = key else {
            return in_clear(content_type, content);
        };
        self.key = Some(key);
        // The library puts the type behind what it is given, so that of a padded record is a zero
        // too.
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

/// A record in clear. Its length is what fits into the header.
pub(super) fn in_clear(content_type: u8, content: &[u8]) -> Vec<u8> {
    let length = content.len() as u16;
    let [high, low] = length.to_be_bytes();
    let header = [content_type, 3, 3, high, low];
    [&header, &content[..usize::from(length)]].concat()
}

/// What a puppet has to be configured with.
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

/// Keeps the keys that the library would send with.
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

/// Puts type and key behind the content instead of encrypting it.
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

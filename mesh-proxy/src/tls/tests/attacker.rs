//! A peer that seals its own records. rustls performs its handshake but does not encrypt, so that a
//! test can fragment, pad and seal the handshake messages arbitrarily.

use std::cell::RefCell;
use std::io;
use std::sync::{Arc, LazyLock};

use mesh_test_support::tls::InsecureVerifier;
use rustls::crypto::CryptoProvider;
use rustls::crypto::aws_lc_rs::cipher_suite::TLS13_AES_128_GCM_SHA256;
use rustls::crypto::cipher::{
    AeadKey, Iv, MessageDecrypter, MessageEncrypter, OutboundChunks, OutboundOpaqueMessage,
    OutboundPlainMessage, PrefixedPayload, Tls13AeadAlgorithm, UnsupportedOperationError,
};
use rustls::{
    ClientConfig, ClientConnection, Connection, ConnectionTrafficSecrets, ContentType, Error,
    ProtocolVersion, ServerConfig, ServerConnection, SupportedCipherSuite, Tls13CipherSuite,
};
use rustls_pki_types::{PrivatePkcs8KeyDer, ServerName};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::*;

/// The content types of handshake messages and of application data.
pub(in crate::tls) const HANDSHAKE: u8 = 22;
pub(in crate::tls) const DATA: u8 = 23;

/// The index of a sending key: the first seals handshake messages, the second application data.
pub(in crate::tls) const HANDSHAKE_KEY: usize = 0;
pub(in crate::tls) const DATA_KEY: usize = 1;

pub(in crate::tls) struct Attacker {
    tcp: TcpStream,
    rustls: Connection,
    /// Index of this connection's first key in [`KEYS`], after those of earlier connections.
    first_key: usize,
}

/// A record before it is sealed.
#[derive(Debug)]
pub(in crate::tls) struct Unsealed {
    pub(in crate::tls) key: Option<usize>,
    pub(in crate::tls) content_type: u8,
    pub(in crate::tls) content: Vec<u8>,
}

struct SendingKey {
    encrypter: Box<dyn MessageEncrypter>,
    next_record: u64,
}

thread_local! {
    static KEYS: RefCell<Vec<SendingKey>> = const { RefCell::new(Vec::new()) };
}

impl Attacker {
    pub(in crate::tls) fn client(tcp: TcpStream) -> Self {
        let config = ClientConfig::builder_with_provider(provider())
            .with_protocol_versions(crypto::VERSIONS)
            .unwrap()
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(InsecureVerifier))
            .with_no_client_auth();
        let name = ServerName::try_from("server.test").unwrap();
        let rustls = ClientConnection::new(Arc::new(config), name).unwrap();
        Self::new(tcp, rustls.into())
    }

    /// Creates a server with a certificate of `ca`.
    pub(in crate::tls) fn server(tcp: TcpStream, ca: &TestCa, name: &str) -> Self {
        let request = CertificateRequest::new(&identity(name)).unwrap();
        let certificate = ca.sign(request.der()).leaf;
        let key = request.to_pkcs8().unwrap().as_ref().to_vec();
        let config = ServerConfig::builder_with_provider(provider())
            .with_protocol_versions(crypto::VERSIONS)
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(
                vec![certificate.into()],
                PrivatePkcs8KeyDer::from(key).into(),
            )
            .unwrap();
        let rustls = ServerConnection::new(Arc::new(config)).unwrap();
        Self::new(tcp, rustls.into())
    }

    fn new(tcp: TcpStream, rustls: Connection) -> Self {
        Self {
            tcp,
            rustls,
            first_key: KEYS.with_borrow(Vec::len),
        }
    }

    /// Takes the records that rustls wants to send.
    pub(in crate::tls) fn pending(&mut self) -> Vec<Unsealed> {
        let mut bytes = Vec::new();
        while self.rustls.wants_write() {
            self.rustls.write_tls(&mut bytes).unwrap();
        }
        let mut rest = &bytes[..];
        let mut records = Vec::new();
        while let [content_type, _, _, high, low, body @ ..] = rest {
            let (content, after) = body.split_at(usize::from(u16::from_be_bytes([*high, *low])));
            records.push(match (*content_type, content) {
                (DATA, [content @ .., content_type, key]) => Unsealed {
                    key: Some(usize::from(*key) - self.first_key),
                    content_type: *content_type,
                    content: content.to_vec(),
                },
                (content_type, content) => Unsealed {
                    key: None,
                    content_type,
                    content: content.to_vec(),
                },
            });
            rest = after;
        }
        records
    }

    /// Passes the proxy's bytes to rustls until rustls wants to send.
    pub(in crate::tls) async fn receive(&mut self) -> io::Result<()> {
        while !self.rustls.wants_write() {
            let mut bytes = vec![0; 4096];
            let n = self.tcp.read(&mut bytes).await?;
            if n == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            let mut rest = &bytes[..n];
            while !rest.is_empty() {
                self.rustls.read_tls(&mut rest)?;
                self.rustls
                    .process_new_packets()
                    .map_err(io::Error::other)?;
            }
        }
        Ok(())
    }

    /// Seals a record whose content is followed by `padding` zeros.
    pub(in crate::tls) fn seal(
        &self,
        key: usize,
        content_type: u8,
        content: &[u8],
        padding: usize,
    ) -> Vec<u8> {
        // rustls appends the content type, so the last byte of the padding takes its place.
        let mut padded = content.to_vec();
        let mut last = content_type;
        if padding > 0 {
            padded.push(content_type);
            padded.resize(padded.len() + padding - 1, 0);
            last = 0;
        }
        KEYS.with_borrow_mut(|keys| {
            let key = &mut keys[self.first_key + key];
            let number = key.next_record;
            key.next_record += 1;
            let message = OutboundPlainMessage {
                typ: ContentType::from(last),
                version: ProtocolVersion::TLSv1_2,
                payload: OutboundChunks::Single(&padded),
            };
            key.encrypter.encrypt(message, number).unwrap().encode()
        })
    }

    pub(in crate::tls) fn encode(&self, record: &Unsealed) -> Vec<u8> {
        match record.key {
            Some(key) => self.seal(key, record.content_type, &record.content, 0),
            None => {
                let [high, low] = (record.content.len() as u16).to_be_bytes();
                let header = [record.content_type, 3, 3, high, low];
                [&header, &record.content[..]].concat()
            }
        }
    }

    /// Seals and sends the records that rustls wants to send.
    pub(in crate::tls) async fn send_pending(&mut self) -> io::Result<()> {
        for record in self.pending() {
            let bytes = self.encode(&record);
            self.send(&bytes).await?;
        }
        Ok(())
    }

    /// Reads until the proxy closes the connection.
    pub(in crate::tls) async fn discard_input(&mut self) -> io::Result<()> {
        let mut bytes = vec![0; 4096];
        while self.tcp.read(&mut bytes).await? > 0 {}
        Ok(())
    }

    pub(in crate::tls) async fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.tcp.write_all(bytes).await
    }
}

fn provider() -> Arc<CryptoProvider> {
    static SUITE: LazyLock<Tls13CipherSuite> = LazyLock::new(|| {
        let suite = TLS13_AES_128_GCM_SHA256.tls13().unwrap();
        Tls13CipherSuite {
            common: rustls::crypto::CipherSuiteCommon {
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
        ..CryptoProvider::clone(&crypto::provider())
    })
}

/// Stores the keys with which rustls would seal records.
struct CapturedAead;

impl CapturedAead {
    fn genuine() -> &'static dyn Tls13AeadAlgorithm {
        TLS13_AES_128_GCM_SHA256.tls13().unwrap().aead_alg
    }
}

impl Tls13AeadAlgorithm for CapturedAead {
    fn encrypter(&self, key: AeadKey, iv: Iv) -> Box<dyn MessageEncrypter> {
        KEYS.with_borrow_mut(|keys| {
            keys.push(SendingKey {
                encrypter: Self::genuine().encrypter(key, iv),
                next_record: 0,
            });
            Box::new(Unencrypted(keys.len() - 1))
        })
    }

    fn decrypter(&self, key: AeadKey, iv: Iv) -> Box<dyn MessageDecrypter> {
        Self::genuine().decrypter(key, iv)
    }

    fn key_len(&self) -> usize {
        Self::genuine().key_len()
    }

    fn extract_keys(
        &self,
        key: AeadKey,
        iv: Iv,
    ) -> Result<ConnectionTrafficSecrets, UnsupportedOperationError> {
        Self::genuine().extract_keys(key, iv)
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

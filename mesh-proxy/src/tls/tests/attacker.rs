//! A peer that seals its own records. rustls performs its handshake but does not encrypt, so that a
//! test can fragment, pad and seal the handshake messages arbitrarily.

use std::io;
use std::sync::Arc;

use mesh_test_support::tls::{InsecureVerifier, sealing};
use rustls::crypto::CryptoProvider;
use rustls::{ClientConfig, ClientConnection, Connection, ServerConfig, ServerConnection};
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
    /// The index of this connection's first key, after the keys of earlier connections.
    first_key: usize,
}

/// A record before it is sealed, with the index of its key among its connection's keys.
pub(in crate::tls) type Unsealed = sealing::PlaintextRecord;

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
        let key = request.to_pkcs8().unwrap();
        let key = PrivatePkcs8KeyDer::from(key.as_ref().to_vec());
        let config = ServerConfig::builder_with_provider(provider())
            .with_protocol_versions(crypto::VERSIONS)
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![certificate.into()], key.into())
            .unwrap();
        let rustls = ServerConnection::new(Arc::new(config)).unwrap();
        Self::new(tcp, rustls.into())
    }

    fn new(tcp: TcpStream, rustls: Connection) -> Self {
        Self {
            tcp,
            rustls,
            first_key: sealing::next_key(),
        }
    }

    /// Takes the records that rustls wants to send.
    pub(in crate::tls) fn pending(&mut self) -> Vec<Unsealed> {
        let mut records = sealing::pending_records(&mut self.rustls);
        for record in &mut records {
            record.key = record.key.map(|key| key - self.first_key);
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
                let state = self.rustls.process_new_packets();
                state.map_err(io::Error::other)?;
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
        let key = Some(self.first_key + key);
        sealing::seal(key, content_type, content, padding)
    }

    pub(in crate::tls) fn encode(&self, record: &Unsealed) -> Vec<u8> {
        let key = record.key.map(|key| self.first_key + key);
        sealing::seal(key, record.content_type, &record.content, 0)
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
    sealing::provider(CryptoProvider::clone(&crypto::provider()))
}

//! A client like an API server.

use http_body_util::BodyExt as _;
use hyper::client::conn;
use rustls::crypto::aws_lc_rs;
use rustls::version::TLS13;
use rustls::{ClientConfig, RootCertStore};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, ServerName};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::*;

pub(super) enum Client {
    Http1(conn::http1::SendRequest<Full<Bytes>>),
    Http2(conn::http2::SendRequest<Full<Bytes>>),
}

impl Client {
    pub(super) async fn connect(
        addr: SocketAddr,
        name: &str,
        authority: &str,
        http2: bool,
    ) -> std::io::Result<Self> {
        let stream = tls(addr, name, authority, http2).await?;
        Ok(if http2 {
            Self::http2(stream, None).await
        } else {
            Self::http1(stream).await
        })
    }

    pub(super) async fn http1(stream: TlsStream<TcpStream>) -> Self {
        let (client, connection) = conn::http1::handshake(TokioIo::new(stream)).await.unwrap();
        tokio::spawn(connection);
        Self::Http1(client)
    }

    /// `window` is the number of bytes of a response that the server may send, if they are not
    /// read.
    pub(super) async fn http2(stream: TlsStream<TcpStream>, window: Option<u32>) -> Self {
        let handshake = conn::http2::Builder::new(TokioExecutor::new())
            .initial_stream_window_size(window)
            .handshake(TokioIo::new(stream))
            .await;
        let (client, connection) = handshake.unwrap();
        tokio::spawn(connection);
        Self::Http2(client)
    }

    /// Sends a review, and returns the response when its header section has arrived.
    pub(super) async fn send(&mut self, path: &str, body: String) -> Response<Incoming> {
        let request = Request::post(path)
            .header(http::header::HOST, NAME)
            .body(Full::from(body))
            .unwrap();
        match self {
            Self::Http1(client) => client.send_request(request).await.unwrap(),
            Self::Http2(client) => client.send_request(request).await.unwrap(),
        }
    }

    pub(super) async fn post(&mut self, path: &str, body: String) -> (StatusCode, String) {
        let response = self.send(path, body).await;
        let status = response.status();
        let body = response.into_body().collect().await.unwrap().to_bytes();
        (status, String::from_utf8(body.to_vec()).unwrap())
    }
}

/// Connects like an API server.
pub(super) async fn tls(
    addr: SocketAddr,
    name: &str,
    authority: &str,
    http2: bool,
) -> std::io::Result<TlsStream<TcpStream>> {
    let mut roots = RootCertStore::empty();
    let authority = CertificateDer::from_pem_slice(authority.as_bytes()).unwrap();
    roots.add(authority).unwrap();
    let provider = Arc::new(aws_lc_rs::default_provider());
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&TLS13])
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    if http2 {
        config.alpn_protocols = vec![b"h2".to_vec()];
    }
    let name = ServerName::try_from(name.to_owned()).unwrap();
    let stream = TcpStream::connect(addr).await?;
    TlsConnector::from(Arc::new(config))
        .connect(name, stream)
        .await
}

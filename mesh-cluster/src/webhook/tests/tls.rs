//! A client like an API server.

use http_body_util::BodyExt as _;
use hyper::client::conn;
use rustls::crypto::aws_lc_rs;
use rustls::version::TLS13;
use rustls::{ClientConfig, RootCertStore};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, ServerName};
use tokio_rustls::TlsConnector;

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
        let stream = TlsConnector::from(Arc::new(config))
            .connect(name, stream)
            .await?;
        let io = TokioIo::new(stream);
        Ok(if http2 {
            let handshake = conn::http2::handshake(TokioExecutor::new(), io).await;
            let (client, connection) = handshake.unwrap();
            tokio::spawn(connection);
            Self::Http2(client)
        } else {
            let (client, connection) = conn::http1::handshake(io).await.unwrap();
            tokio::spawn(connection);
            Self::Http1(client)
        })
    }

    pub(super) async fn post(&mut self, path: &str, body: String) -> (StatusCode, String) {
        let request = Request::post(path)
            .header(http::header::HOST, NAME)
            .body(Full::from(body))
            .unwrap();
        let response = match self {
            Self::Http1(client) => client.send_request(request).await.unwrap(),
            Self::Http2(client) => client.send_request(request).await.unwrap(),
        };
        let status = response.status();
        let body = response.into_body().collect().await.unwrap().to_bytes();
        (status, String::from_utf8(body.to_vec()).unwrap())
    }
}

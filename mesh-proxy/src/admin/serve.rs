//! The admin listener: finds out whether a connection is TLS and which HTTP it speaks, then serves it.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use http::Request;
use hyper::body::Incoming;
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use mesh_runtime::admin::{self, Admin};
use tokio::net::{TcpListener, TcpStream};

use crate::tls::CredentialsRx;
use crate::tls::server::terminate;
use crate::transport::detect::{self, HttpDetected, TlsDetected};
use crate::transport::{Io, Scratch};

/// The admin socket and what is needed to serve it.
#[derive(Debug)]
pub struct Listener {
    pub tcp: TcpListener,
    pub admin: Admin,
    pub credentials: CredentialsRx,
    pub scratch: Rc<Scratch>,
}

/// Probes and scrapers speak at once.
const DETECT_TIMEOUT: Duration = Duration::from_secs(1);

/// A client that has not sent its request head by then is cut off.
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);

/// How long to wait before accepting again after an error that will last, such as having no file descriptors left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Serves for the life of the process. Needs a `LocalSet`.
pub async fn serve(listener: Listener) {
    let listener = Rc::new(listener);
    loop {
        match listener.tcp.accept().await {
            Ok((tcp, peer)) => {
                let listener = listener.clone();
                tokio::task::spawn_local(async move {
                    if let Err(problem) = listener.serve_connection(tcp, peer).await {
                        tracing::debug!(%peer, problem, "Admin connection refused or failed");
                    }
                });
            }
            Err(error) => {
                tracing::warn!(%error, "Admin server failed to accept a connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

impl Listener {
    async fn serve_connection(&self, tcp: TcpStream, peer: SocketAddr) -> Result<(), String> {
        let mut io = Io::plain(tcp);
        let detected = detect::tls(&mut io, &self.scratch, DETECT_TIMEOUT).await;
        let mut io = match detected.map_err(|error| error.to_string())? {
            TlsDetected::NotTls | TlsDetected::TimedOut => io,
            TlsDetected::Eof => return Ok(()),
            TlsDetected::ClientHello { sni } => self.terminate(io, sni.as_deref()).await?,
        };
        let detected = detect::http(&mut io, &self.scratch, DETECT_TIMEOUT).await;
        match detected.map_err(|error| error.to_string())? {
            HttpDetected::Http1 => self.serve_http1(io, peer).await,
            HttpDetected::Http2 => self.serve_http2(io, peer).await,
            // Peers of the mesh speak HTTP/2 to each other.
            HttpDetected::TimedOut if io.is_tls() => self.serve_http2(io, peer).await,
            HttpDetected::TimedOut => self.serve_http1(io, peer).await,
            HttpDetected::NotHttp => Err("it does not speak HTTP".to_owned()),
            HttpDetected::Eof => Ok(()),
        }
    }

    async fn terminate(&self, io: Io, sni: Option<&str>) -> Result<Io, String> {
        let own = self.credentials.borrow().clone();
        let own = own.ok_or("there is no certificate yet")?;
        if sni != Some(own.server_name()) {
            return Err(format!("its TLS is for {sni:?}"));
        }
        let (stream, _client) = terminate(io, &own, false)
            .await
            .map_err(|error| error.to_string())?;
        Ok(Io::tls(stream))
    }

    async fn serve_http1(&self, io: Io, peer: SocketAddr) -> Result<(), String> {
        let service = service_fn(|request| self.respond(request, peer));
        http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(HEAD_TIMEOUT)
            .serve_connection(TokioIo::new(io), service)
            .await
            .map_err(|error| error.to_string())
    }

    async fn serve_http2(&self, io: Io, peer: SocketAddr) -> Result<(), String> {
        let admin = self.admin.clone();
        let service = service_fn(move |request| {
            let admin = admin.clone();
            async move { Ok::<_, Infallible>(admin.respond(request, peer).await) }
        });
        http2::Builder::new(TokioExecutor::new())
            .timer(TokioTimer::new())
            .serve_connection(TokioIo::new(io), service)
            .await
            .map_err(|error| error.to_string())
    }

    async fn respond(
        &self,
        request: Request<Incoming>,
        peer: SocketAddr,
    ) -> Result<admin::Response, Infallible> {
        Ok(self.admin.respond(request, peer).await)
    }
}

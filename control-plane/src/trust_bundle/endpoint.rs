//! Serves the bundle of this mesh's trust domain to linked clusters (SPIFFE Federation, profile
//! `https_spiffe`): a document that is public, by a server that authenticates itself by an identity
//! of the domain, which this process issues to itself.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use http::header::CONTENT_TYPE;
use http::{HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use mesh_cluster::certificate::to_pem;
use mesh_cluster::trust_bundle::document;
use mesh_cluster::webhook::certificate::{CertificateAndKey, CertificateError};
use mesh_cluster::webhook::{Acceptor, ServingCertificate, accept};
use mesh_core::trust_bundle::TrustBundle;
use rcgen::KeyPair;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use crate::identity::{CertificateAuthority, IssueError, Issuer};

/// The server of the bundle.
pub(crate) struct BundleEndpoint {
    authority: Arc<CertificateAuthority>,
    /// The identity of the server.
    id: String,
    serving: Arc<ServingCertificate>,
    bundles: watch::Receiver<Option<Arc<TrustBundle>>>,
}

/// The certificate in use.
struct Current {
    /// The fingerprint of its issuer.
    issuer: String,
    renew_at: SystemTime,
}

/// Why the server has no new certificate.
#[derive(Debug, thiserror::Error)]
enum RenewError {
    #[error(transparent)]
    Issue(#[from] IssueError),
    #[error("cannot generate a key")]
    Key(#[source] rcgen::Error),
    #[error(transparent)]
    Certificate(#[from] CertificateError),
    #[error("the certificate cannot be served")]
    Serve(String),
}

/// How long other clusters use the bundle until they ask for the next. They trust a withdrawn
/// anchor that long.
const REFRESH_HINT: Duration = Duration::from_secs(60);

/// How often the certificate is compared with the issuer.
const INTERVAL: Duration = Duration::from_secs(5);

/// The time of a connection, with its only response.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(10);

/// Each linked cluster opens a connection in a minute for each replica of its identity service.
const MAX_CONNECTIONS: usize = 128;

/// The size of a request's header section.
const MAX_HEADERS: usize = 8 * 1024;

const SERVER: &str = "trust bundle";

impl BundleEndpoint {
    pub(crate) fn new(
        authority: Arc<CertificateAuthority>,
        id: String,
        bundles: watch::Receiver<Option<Arc<TrustBundle>>>,
    ) -> Self {
        Self {
            authority,
            id,
            serving: Arc::default(),
            bundles,
        }
    }

    /// Runs for the life of the process.
    pub(crate) async fn run(self, listener: TcpListener) {
        let acceptor = Acceptor::http1(self.serving.clone());
        let bundles = self.bundles.clone();
        let serve = |stream, _peer, _activity| {
            let serving = serve_connection(acceptor.clone(), stream, bundles.clone());
            Some(async move {
                // Health checks and scans end here.
                let _elapsed = timeout(CONNECTION_TIMEOUT, Box::pin(serving)).await;
            })
        };
        tokio::join!(
            accept(listener, MAX_CONNECTIONS, SERVER, serve),
            self.keep_certificate(),
        );
    }

    async fn keep_certificate(&self) {
        let mut current = None;
        let mut problem = None;
        loop {
            let now = SystemTime::now();
            if let Some(issuer) = self.authority.issuer()
                && is_due(current.as_ref(), &issuer, now)
            {
                match self.renew(&issuer, now) {
                    Ok(renewed) => {
                        current = Some(renewed);
                        problem = None;
                    }
                    Err(error) => {
                        let error = mesh_runtime::log::chain(&error);
                        if problem.as_ref() != Some(&error) {
                            tracing::error!(
                                error,
                                "The server of the trust bundle has no new certificate"
                            );
                            problem = Some(error);
                        }
                    }
                }
            }
            sleep(INTERVAL).await;
        }
    }

    fn renew(&self, issuer: &Issuer, now: SystemTime) -> Result<Current, RenewError> {
        let key = KeyPair::generate().map_err(RenewError::Key)?;
        let issued = issuer.issue_spiffe(&self.id, &key, now)?;
        let chain = std::iter::once(&issued.leaf).chain(&issued.intermediates);
        let chain: String = chain.map(|der| to_pem(der)).collect();
        let pair = CertificateAndKey::read(chain.as_bytes(), key.serialize_pem().as_bytes())?;
        let served = self.serving.set(&pair);
        served.map_err(|error| RenewError::Serve(error.to_string()))?;
        Ok(Current {
            issuer: issuer.fingerprint(),
            renew_at: pair.renew_at(),
        })
    }
}

/// Returns whether another certificate is needed: the issuer has been replaced, or most of the life
/// of the certificate is over.
fn is_due(current: Option<&Current>, issuer: &Issuer, now: SystemTime) -> bool {
    current.is_none_or(|current| current.renew_at <= now || current.issuer != issuer.fingerprint())
}

async fn serve_connection(
    acceptor: Acceptor,
    stream: TcpStream,
    bundles: watch::Receiver<Option<Arc<TrustBundle>>>,
) {
    let stream = match acceptor.accept(stream).await {
        Ok(stream) => stream,
        Err(error) => {
            tracing::debug!(%error, "TLS handshake of the trust bundle failed");
            return;
        }
    };
    let service = service_fn(move |request: Request<Incoming>| {
        let bundle = bundles.borrow().clone();
        async move { Ok::<_, Infallible>(respond(request.method(), request.uri().path(), bundle)) }
    });
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .max_buf_size(MAX_HEADERS)
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), service);
    if let Err(error) = served.await {
        tracing::debug!(%error, "Connection of the trust bundle failed");
    }
}

fn respond(method: &Method, path: &str, bundle: Option<Arc<TrustBundle>>) -> Response<Full<Bytes>> {
    if path != "/" {
        return text(StatusCode::NOT_FOUND, "the trust bundle is at /\n");
    }
    if method != Method::GET {
        return text(StatusCode::METHOD_NOT_ALLOWED, "only GET is allowed\n");
    }
    let Some(bundle) = bundle else {
        return text(
            StatusCode::SERVICE_UNAVAILABLE,
            "there are no trust anchors yet\n",
        );
    };
    match document::write(&bundle.anchors, bundle.number, REFRESH_HINT) {
        Ok(document) => {
            let mut response = Response::new(Full::from(document));
            let json = HeaderValue::from_static("application/json");
            response.headers_mut().insert(CONTENT_TYPE, json);
            response
        }
        Err(error) => {
            tracing::error!(%error, "The trust anchors cannot be served to linked clusters");
            text(
                StatusCode::INTERNAL_SERVER_ERROR,
                "the trust anchors cannot be written\n",
            )
        }
    }
}

fn text(status: StatusCode, text: &'static str) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::from(text));
    *response.status_mut() = status;
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_document_is_served() {
        let bundle = |anchors: &str| {
            Some(Arc::new(TrustBundle {
                number: 7,
                anchors: anchors.to_owned(),
                foreign: Default::default(),
                denied: None,
            }))
        };
        let status = |method, path, bundle| respond(&method, path, bundle).status();
        for (method, path, bundle, expected) in [
            (Method::GET, "/", bundle(""), StatusCode::OK),
            (Method::GET, "/a", bundle(""), StatusCode::NOT_FOUND),
            (
                Method::POST,
                "/",
                bundle(""),
                StatusCode::METHOD_NOT_ALLOWED,
            ),
            (Method::GET, "/", None, StatusCode::SERVICE_UNAVAILABLE),
        ] {
            assert_eq!(status(method, path, bundle), expected, "{path}");
        }
    }
}

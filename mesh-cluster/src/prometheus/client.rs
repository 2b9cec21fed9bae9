//! The client of Prometheus' HTTP API.
//!
//! Connections are reused, and queries of one table run concurrently, so their number is limited in
//! the whole process. A query that waits too long for its turn fails like one that takes too long.

use std::path::{Path, PathBuf};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE};
use http::{Method, Request, StatusCode, Uri};
use http_body_util::{BodyExt as _, Full, LengthLimitError, Limited};
use hyper::body::Bytes;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use mesh_runtime::log::chain;
use mesh_runtime::metrics::{Counter, Labels, Registry};
use tokio::sync::Semaphore;

use super::vector::{self, Sample, VectorError, cut};

/// A Prometheus.
#[derive(Debug)]
pub struct PrometheusClient {
    http: Client<HttpConnector, Full<Bytes>>,
    url: Uri,
    credentials: Option<CredentialFiles>,
    /// Limits the queries of the process.
    permits: Semaphore,
    succeeded: Counter,
    failed: Counter,
}

/// The files of the user name and the password, usually of a mounted Secret. They are read for each
/// query, so that changes take effect.
#[derive(Clone, Debug)]
pub struct CredentialFiles {
    pub user: PathBuf,
    pub password: PathBuf,
}

/// Why a URL cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{0:?} is not a URL such as http://prometheus.linkerd-viz.svc.cluster.local:9090: {1}")]
pub struct UrlError(String, &'static str);

/// Why a query has no result.
#[derive(Debug, thiserror::Error)]
#[error("cannot query Prometheus at {url}: {cause}")]
pub struct QueryError {
    url: String,
    cause: Cause,
}

#[derive(Debug, thiserror::Error)]
enum Cause {
    #[error("cannot read {}: {error}", path.display())]
    Credentials {
        path: PathBuf,
        error: std::io::Error,
    },
    #[error("invalid credentials")]
    InvalidCredentials,
    #[error("the query is longer than {MAX_QUERY} bytes; select a namespace or a name")]
    LongQuery,
    #[error("no response within {} s", TIMEOUT.as_secs())]
    Timeout,
    #[error("{0}")]
    Connection(String),
    #[error("the response is larger than {} MiB; select a namespace or a name", MAX_BODY >> 20)]
    LargeBody,
    #[error("it responded with {status}: {text}")]
    Status { status: StatusCode, text: String },
    #[error("{0}")]
    Vector(VectorError),
}

/// The deadline of a query, with the time that it waits for others. The web dashboard gives up
/// after half a minute.
const TIMEOUT: Duration = Duration::from_secs(10);

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Concurrent queries of the process. Prometheus evaluates 20 at a time by default, and queues the
/// others.
const MAX_QUERIES: usize = 40;

/// A sample has about 200 bytes.
const MAX_BODY: usize = 32 << 20;

/// Prometheus parses at most 10 MiB of a form. The longest queries have the names of all Services
/// of a namespace.
const MAX_QUERY: usize = 256 << 10;

/// The size of a file with a user name or a password.
const MAX_CREDENTIAL: u64 = 64 << 10;

/// Prometheus closes idle connections after five minutes.
const IDLE_TIMEOUT: Duration = Duration::from_secs(60);

impl PrometheusClient {
    pub fn new(
        url: &str,
        credentials: Option<CredentialFiles>,
        registry: &Registry,
    ) -> Result<Self, UrlError> {
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        connector.set_connect_timeout(Some(CONNECT_TIMEOUT));
        let http = Client::builder(TokioExecutor::new())
            .pool_idle_timeout(IDLE_TIMEOUT)
            .pool_max_idle_per_host(MAX_QUERIES)
            .build(connector);
        let queries = registry.counter_family(
            "mesh_prometheus_queries_total",
            "Queries of Prometheus, by whether they succeeded",
        );
        let result = |result: &'static str| queries.with(&Labels::new().with("result", result));
        Ok(Self {
            http,
            url: parse_url(url)?,
            credentials,
            permits: Semaphore::new(MAX_QUERIES),
            succeeded: result("success"),
            failed: result("failure"),
        })
    }

    /// Evaluates an instant query.
    pub async fn query(&self, query: &str) -> Result<Vec<Sample>, QueryError> {
        let result = self.evaluate(query).await;
        match &result {
            Ok(samples) => {
                self.succeeded.inc();
                tracing::debug!(query, samples = samples.len(), "Queried Prometheus");
            }
            Err(error) => {
                self.failed.inc();
                tracing::warn!(query = cut(query), %error, "Query failed");
            }
        }
        result
    }

    async fn evaluate(&self, query: &str) -> Result<Vec<Sample>, QueryError> {
        const PATH: &str = "/api/v1/query";
        if query.len() > MAX_QUERY {
            return Err(self.error(PATH, Cause::LongQuery));
        }
        let form = Bytes::from(format!("query={}", form_encoded(query)));
        let body = self.request(Method::POST, PATH, form).await?;
        let parsed = vector::parse(&body);
        parsed.map_err(|error| self.error(PATH, Cause::Vector(error)))
    }

    /// Returns the global scrape interval; `None` if Prometheus does not disclose it.
    pub async fn scrape_interval(&self) -> Option<String> {
        const PATH: &str = "/api/v1/status/config";
        match self.request(Method::GET, PATH, Bytes::new()).await {
            Ok(body) => vector::scrape_interval(&body),
            Err(error) => {
                tracing::debug!(%error, "Cannot read the scrape interval");
                None
            }
        }
    }

    async fn request(&self, method: Method, path: &str, form: Bytes) -> Result<Bytes, QueryError> {
        let exchange = async {
            // Never closed.
            let _permit = self.permits.acquire().await.ok();
            self.exchange(method, path, form).await
        };
        let result = tokio::time::timeout(TIMEOUT, exchange).await;
        result
            .unwrap_or(Err(Cause::Timeout))
            .map_err(|cause| self.error(path, cause))
    }

    async fn exchange(&self, method: Method, path: &str, form: Bytes) -> Result<Bytes, Cause> {
        let mut request = Request::builder()
            .method(method)
            .uri(self.endpoint(path))
            .header(ACCEPT, "application/json")
            .header(CONTENT_TYPE, "application/x-www-form-urlencoded");
        if let Some(files) = &self.credentials {
            request = request.header(AUTHORIZATION, basic_auth(files).await?);
        }
        let request = request
            .body(Full::new(form))
            .map_err(|_invalid| Cause::InvalidCredentials)?;
        let response = self
            .http
            .request(request)
            .await
            .map_err(|error| Cause::Connection(chain(&error)))?;
        let status = response.status();
        let collected = Limited::new(response.into_body(), MAX_BODY).collect().await;
        let body = collected.map_err(|error| {
            if error.is::<LengthLimitError>() {
                Cause::LargeBody
            } else {
                Cause::Connection(chain(&*error))
            }
        })?;
        let body = body.to_bytes();
        if status.is_success() {
            return Ok(body);
        }
        // Errors of queries are JSON too.
        if let Err(error @ VectorError::Rejected { .. }) = vector::parse(&body) {
            return Err(Cause::Status {
                status,
                text: error.to_string(),
            });
        }
        let text = cut(String::from_utf8_lossy(&body).trim());
        Err(Cause::Status { status, text })
    }

    fn endpoint(&self, path: &str) -> String {
        format!("{}{path}", self.url.to_string().trim_end_matches('/'))
    }

    fn error(&self, path: &str, cause: Cause) -> QueryError {
        QueryError {
            url: self.endpoint(path),
            cause,
        }
    }
}

/// Checks that the files can be read, at startup.
impl CredentialFiles {
    pub async fn check(&self) -> Result<(), String> {
        match basic_auth(self).await {
            Ok(_) => Ok(()),
            Err(cause) => Err(cause.to_string()),
        }
    }
}

fn parse_url(text: &str) -> Result<Uri, UrlError> {
    let error = |problem| UrlError(text.to_owned(), problem);
    let url: Uri = text.parse().map_err(|_invalid| error("it is invalid"))?;
    if url.scheme_str() != Some("http") {
        return Err(error(
            "the scheme must be http; in the mesh, proxies encrypt the connection",
        ));
    }
    let authority = url.authority().map_or("", |authority| authority.as_str());
    if let Some((_credentials, host)) = authority.rsplit_once('@') {
        return Err(UrlError(
            format!("http://***@{host}"),
            "credentials belong into --prometheus-user-file and --prometheus-password-file",
        ));
    }
    if url.query().is_some() {
        return Err(error("it must not have a query"));
    }
    Ok(url)
}

async fn basic_auth(files: &CredentialFiles) -> Result<String, Cause> {
    let user = read_credential(&files.user).await?;
    let password = read_credential(&files.password).await?;
    Ok(format!(
        "Basic {}",
        STANDARD.encode(format!("{user}:{password}"))
    ))
}

/// Returns the text of a file without the newline at its end.
async fn read_credential(path: &Path) -> Result<String, Cause> {
    let error = |error| Cause::Credentials {
        path: path.to_owned(),
        error,
    };
    let size = tokio::fs::metadata(path).await.map_err(error)?.len();
    if size > MAX_CREDENTIAL {
        return Err(error(std::io::ErrorKind::FileTooLarge.into()));
    }
    let text = tokio::fs::read_to_string(path).await.map_err(error)?;
    Ok(text.trim_end_matches(['\r', '\n']).to_owned())
}

fn form_encoded(text: &str) -> String {
    const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
    let mut encoded = String::with_capacity(text.len() * 2);
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte) {
            encoded.push(char::from(byte));
        } else {
            encoded.push('%');
            encoded.push(char::from(DIGITS[usize::from(byte >> 4)]));
            encoded.push(char::from(DIGITS[usize::from(byte & 15)]));
        }
    }
    encoded
}

#[cfg(test)]
mod tests;

//! The limits on tonic's view of a peer: the mesh's programs create all connections for generated
//! clients here, and their servers hand all requests to generated servers here.
//!
//! tonic is written for peers that follow gRPC. It panics, for example, when
//! `grpc-status-details-bin` is not base64, so that one field of a response would end the process.
//! [`sanitize`] admits of gRPC's own fields only those that are known, with values of their
//! grammar, and no binary metadata, which nothing reads. It applies to headers and trailers, of
//! responses to clients ([`response`], [`Channel`]) and of requests to servers ([`request`],
//! [`SanitizeRequests`]). `cargo xtask tidy` keeps `tonic::transport` within this module and the
//! daemon of the controllers; the proxy's own transport calls [`response`] and [`request`].

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue, Request, Response, Uri};
use http_body::{Body, Frame, SizeHint};
use tonic::body::Body as TonicBody;
use tower::{Layer, Service};

/// Why a client has no connection.
pub use tonic::transport::Error as TransportError;

/// A gRPC transport to one server. Clones share the connection, which is opened again after it
/// broke.
pub type Channel = SanitizeResponses<tonic::transport::Channel>;

/// The settings of a [`Channel`].
#[derive(Clone, Debug)]
pub struct Endpoint(tonic::transport::Endpoint);

/// A transport whose responses are sanitized.
#[derive(Clone, Debug)]
pub struct SanitizeResponses<S>(S);

/// The layer of a server that sanitizes requests.
#[derive(Clone, Copy, Debug, Default)]
pub struct SanitizeRequests;

/// A service whose requests are sanitized; made by [`SanitizeRequests`].
#[derive(Clone, Debug)]
pub struct SanitizedService<S>(S);

/// A body whose trailers are sanitized.
#[derive(Debug, Default)]
pub struct Sanitized<B>(B);

/// The longest `grpc-message` that is admitted, in bytes. It ends in logs and in messages to users.
pub const MAX_STATUS_MESSAGE: usize = 4096;

/// The most digits of a `grpc-timeout`, by the gRPC protocol.
const MAX_TIMEOUT_DIGITS: usize = 8;

/// Removes the fields that gRPC code must not see: gRPC's own that are unknown or whose values are
/// not of their grammar, and binary metadata.
pub fn sanitize(fields: &mut HeaderMap) {
    let is_inadmissible = |(name, value): (&HeaderName, &HeaderValue)| {
        !is_admissible(name.as_str(), value.as_bytes())
    };
    let inadmissible: Vec<HeaderName> = fields
        .iter()
        .filter(|field| is_inadmissible(*field))
        .map(|(name, _)| name.clone())
        .collect();
    for name in inadmissible {
        fields.remove(name);
    }
}

/// Returns a response of a server as a generated client may see it.
pub fn response<B>(mut response: Response<B>) -> Response<Sanitized<B>> {
    sanitize(response.headers_mut());
    response.map(Sanitized)
}

/// Returns a request of a client as a generated server may see it.
pub fn request<B>(mut request: Request<B>) -> Request<Sanitized<B>> {
    sanitize(request.headers_mut());
    request.map(Sanitized)
}

fn is_admissible(name: &str, value: &[u8]) -> bool {
    match name {
        "grpc-status" => matches!(value.len(), 1..=2) && value.iter().all(u8::is_ascii_digit),
        // Percent-encoded.
        "grpc-message" => value.len() <= MAX_STATUS_MESSAGE && value.iter().all(is_printable),
        "grpc-timeout" => is_timeout(value),
        "grpc-encoding" | "grpc-accept-encoding" => value.iter().all(is_printable),
        _ => !name.starts_with("grpc-") && !name.ends_with("-bin"),
    }
}

fn is_printable(byte: &u8) -> bool {
    matches!(byte, b' '..=b'~')
}

/// Whether a value is at most eight digits and a unit.
fn is_timeout(value: &[u8]) -> bool {
    value.split_last().is_some_and(|(unit, digits)| {
        b"HMSmun".contains(unit)
            && matches!(digits.len(), 1..=MAX_TIMEOUT_DIGITS)
            && digits.iter().all(u8::is_ascii_digit)
    })
}

impl Endpoint {
    /// Returns an endpoint of a host and port, in plaintext.
    pub fn new(authority: &str) -> Result<Self, TransportError> {
        tonic::transport::Endpoint::from_shared(format!("http://{authority}")).map(Self)
    }

    /// Limits the time of each attempt to connect.
    #[must_use]
    pub fn connect_timeout(self, timeout: Duration) -> Self {
        Self(self.0.connect_timeout(timeout))
    }

    /// Sends a ping in each interval, and closes a connection that does not respond in time.
    #[must_use]
    pub fn keep_alive(self, interval: Duration, timeout: Duration) -> Self {
        let endpoint = self.0.http2_keep_alive_interval(interval);
        Self(endpoint.keep_alive_timeout(timeout))
    }

    /// Connects with the first call. Must be called in a runtime of tokio.
    #[must_use]
    pub fn connect_lazy(&self) -> Channel {
        SanitizeResponses(self.0.connect_lazy())
    }

    /// Connects now.
    pub async fn connect(&self) -> Result<Channel, TransportError> {
        self.0.connect().await.map(SanitizeResponses)
    }

    /// Connects now, over the streams of a connector.
    pub async fn connect_over<C>(&self, connector: C) -> Result<Channel, TransportError>
    where
        C: Service<Uri> + Send + 'static,
        C::Response: hyper::rt::Read + hyper::rt::Write + Send + Unpin,
        C::Future: Send,
        C::Error: std::error::Error + Send + Sync + 'static,
    {
        let connected = self.0.connect_with_connector(connector).await;
        connected.map(SanitizeResponses)
    }
}

impl<S, Q, B> Service<Request<Q>> for SanitizeResponses<S>
where
    S: Service<Request<Q>, Response = Response<B>>,
    S::Future: Send + 'static,
{
    type Response = Response<Sanitized<B>>;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, S::Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.0.poll_ready(cx)
    }

    fn call(&mut self, call: Request<Q>) -> Self::Future {
        let calling = self.0.call(call);
        Box::pin(async move { calling.await.map(response) })
    }
}

impl<S> Layer<S> for SanitizeRequests {
    type Service = SanitizedService<S>;

    fn layer(&self, service: S) -> SanitizedService<S> {
        SanitizedService(service)
    }
}

impl<S: Service<Request<TonicBody>>> Service<Request<TonicBody>> for SanitizedService<S> {
    type Response = S::Response;
    type Error = S::Error;
    type Future = S::Future;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.0.poll_ready(cx)
    }

    fn call(&mut self, call: Request<TonicBody>) -> S::Future {
        self.0.call(request(call).map(TonicBody::new))
    }
}

impl<B: Body + Unpin> Body for Sanitized<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        let mut frame = ready!(Pin::new(&mut self.0).poll_frame(cx));
        if let Some(Ok(frame)) = &mut frame
            && let Some(trailers) = frame.trailers_mut()
        {
            sanitize(trailers);
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.0.size_hint()
    }
}

#[cfg(test)]
mod tests;

//! A gRPC server whose streams send messages that were encoded once, for all services with such
//! streams.
//!
//! tonic reads the requests and writes the statuses. It would copy each message into a buffer of
//! each stream. Here the body of a response has the encoded messages themselves, and HTTP/2 sends
//! them from where they are.

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{self, Context, Poll};

use bytes::{BufMut, Bytes, BytesMut};
use futures_util::{StreamExt as _, stream};
use http::HeaderMap;
use http_body::Frame;
use mesh_runtime::metrics::Counter;
use prost::Message;
use tonic::body::Body;
use tonic::codegen::Service;
use tonic::server::{Grpc, NamedService};
use tonic::{Code, Request, Response, Status};
use tonic_prost::ProstCodec;

use super::updates::{Step, Updates};
use crate::index::Version;

/// The methods of a service.
pub trait Methods: Send + Sync + 'static {
    /// The name with the package.
    const NAME: &'static str;

    /// Responds to a call; `method` is its name.
    fn call(
        &self,
        method: &str,
        request: http::Request<Body>,
    ) -> impl Future<Output = http::Response<Body>> + Send;
}

/// The server of a service.
#[derive(Debug)]
pub struct GrpcServer<S>(Arc<S>);

/// A method as tonic calls it, with the decoded request.
struct Method<F>(F);

/// The body of a response: the messages of a stream, then its status.
struct MessageBody {
    /// `None` after the status.
    updates: Option<Updates<Bytes>>,
}

/// A byte that says whether the message is compressed, and its length.
const PREFIX: usize = 5;

/// Responds with one message.
pub(super) async fn respond<R, M>(
    request: http::Request<Body>,
    mut reply: impl FnMut(Request<R>) -> Result<M, Status>,
) -> http::Response<Body>
where
    R: Message + Default + 'static,
    M: Message + 'static,
{
    let method = Method(|request| reply(request).map(Response::new));
    let mut grpc = Grpc::new(ProstCodec::<M, R>::default());
    grpc.unary(method, request).await
}

/// Responds with the messages that `open` returns, which [`encode`] has encoded.
pub(super) async fn respond_with_stream<R>(
    request: http::Request<Body>,
    mut open: impl FnMut(Request<R>) -> Result<Updates<Bytes>, Status>,
) -> http::Response<Body>
where
    R: Message + Default + 'static,
{
    let mut opened = None;
    // The stream that tonic encodes is empty.
    let method = Method(|request| {
        opened = Some(open(request)?);
        Ok(Response::new(stream::empty::<Result<(), Status>>()))
    });
    let mut grpc = Grpc::new(ProstCodec::<(), R>::default());
    let response = grpc.server_streaming(method, request).await;
    match opened {
        Some(updates) => {
            let updates = Some(updates);
            response.map(|_empty| Body::new(MessageBody { updates }))
        }
        None => response,
    }
}

/// Sends one message with the whole value, which replaces the message before.
pub(super) fn whole<V, M: Message>(
    version: &Version<V>,
    encoded: &Counter,
    message: impl FnOnce() -> M,
) -> Step<Bytes> {
    let messages = version.messages(None, || {
        encoded.inc();
        [encode(&message())].into()
    });
    Step::Send(messages.to_vec())
}

/// Responds to a call of a method that the service does not have.
pub(super) fn unknown_method() -> http::Response<Body> {
    Status::unimplemented("").into_http()
}

/// Encodes a message with the prefix of gRPC.
pub(super) fn encode(message: &impl Message) -> Bytes {
    let length = message.encoded_len();
    let mut bytes = BytesMut::with_capacity(PREFIX + length);
    bytes.put_u8(0);
    // No message has 4 GiB: objects have at most 2 MiB each, and lists of endpoints are split.
    bytes.put_u32(length as u32);
    message.encode_raw(&mut bytes);
    bytes.freeze()
}

/// Returns the message that [`encode`] has encoded.
#[cfg(test)]
pub(super) fn decode<M: Message + Default>(bytes: &Bytes) -> M {
    let (prefix, message) = bytes.split_at(PREFIX);
    let length = u32::try_from(message.len()).unwrap();
    assert_eq!((prefix[0], &prefix[1..]), (0, &length.to_be_bytes()[..]));
    M::decode(message).unwrap()
}

impl<S> GrpcServer<S> {
    pub fn new(service: S) -> Self {
        Self(Arc::new(service))
    }
}

impl<S> Clone for GrpcServer<S> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<S: Methods> NamedService for GrpcServer<S> {
    const NAME: &'static str = S::NAME;
}

impl<S: Methods> Service<http::Request<Body>> for GrpcServer<S> {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let service = self.0.clone();
        Box::pin(async move {
            let path = request.uri().path().to_owned();
            let method = path
                .strip_prefix('/')
                .and_then(|path| path.strip_prefix(S::NAME)?.strip_prefix('/'));
            Ok(service.call(method.unwrap_or_default(), request).await)
        })
    }
}

impl<F, R, T> Service<Request<R>> for Method<F>
where
    F: FnMut(Request<R>) -> Result<Response<T>, Status>,
{
    type Response = Response<T>;
    type Error = Status;
    type Future = Ready<Result<Response<T>, Status>>;

    fn poll_ready(&mut self, _context: &mut Context<'_>) -> Poll<Result<(), Status>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<R>) -> Self::Future {
        ready((self.0)(request))
    }
}

impl http_body::Body for MessageBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let Some(updates) = &mut self.updates else {
            return Poll::Ready(None);
        };
        let frame = match task::ready!(updates.poll_next_unpin(context)) {
            Some(message) => Frame::data(message),
            None => {
                self.updates = None;
                Frame::trailers(regular_end())
            }
        };
        Poll::Ready(Some(Ok(frame)))
    }

    fn is_end_stream(&self) -> bool {
        self.updates.is_none()
    }
}

/// Returns the trailers of a stream that ended regularly.
fn regular_end() -> HeaderMap {
    HeaderMap::from_iter([(Status::GRPC_STATUS, (Code::Ok as i32).into())])
}

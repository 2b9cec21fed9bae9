//! A gRPC call with a stream of responses.
//!
//! The streams of tonic's generated clients keep a buffer of the size of their largest message. The
//! proxy holds three mostly idle streams for each destination, and these buffers would be a third
//! of an endpoint's memory. This implementation keeps no buffer between messages.

use std::marker::PhantomData;

use bytes::{Buf as _, BufMut as _, Bytes, BytesMut};
use http::header::{CONTENT_TYPE, TE};
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, Uri, Version};
use http_body::Body as HttpBody;
use http_body_util::{BodyExt as _, Full};
use mesh_api::grpc::Sanitized;
use prost::Message;
use tonic::body::Body;
use tonic::{Code, Status};
use tower::Service as _;

use super::client::ResponseBody;
use super::{Client, MAX_MESSAGE};

/// The messages of a call's response stream, whose body is by default the one of [`Client`].
#[derive(Debug)]
pub(crate) struct ResponseStream<A, B = Sanitized<ResponseBody>> {
    body: B,
    /// The received bytes of an incomplete message.
    partial: BytesMut,
    /// The longest message, in bytes.
    max_message: usize,
    /// The status of a stream that ends without one.
    missing_status: Code,
    message: PhantomData<fn() -> A>,
}

/// Length of a message's prefix: the compressed flag and the message length.
const PREFIX: usize = 5;

/// Calls the method at `path` (`/SERVICE/METHOD`) with `message`.
pub(crate) async fn open<Q, A>(
    mut client: Client,
    path: &'static str,
    message: Q,
) -> Result<ResponseStream<A>, Status>
where
    Q: Message,
    A: Message + Default,
{
    // `Client` is always ready, so `poll_ready` is not needed.
    let response = client
        .call(request(Uri::from_static(path), &message))
        .await
        .map_err(|error| Status::from_error(Box::new(error)))?;
    ResponseStream::new(response, MAX_MESSAGE)
}

/// Returns the request of a call.
pub(crate) fn request(uri: Uri, message: &impl Message) -> Request<Body> {
    let mut request = Request::new(Body::new(Full::new(frame_message(message))));
    *request.method_mut() = Method::POST;
    *request.uri_mut() = uri;
    *request.version_mut() = Version::HTTP_2;
    let headers = request.headers_mut();
    headers.insert(TE, HeaderValue::from_static("trailers"));
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    request
}

impl<A, B> ResponseStream<A, B>
where
    A: Message + Default,
    B: HttpBody<Data = Bytes> + Unpin,
    B::Error: std::error::Error + Send + Sync + 'static,
{
    /// Returns the messages of a response, or the status that refuses the call.
    pub(crate) fn new(response: Response<B>, max_message: usize) -> Result<Self, Status> {
        let (head, body) = response.into_parts();
        let missing_status = match Status::from_header_map(&head.headers) {
            None => grpc_code(head.status),
            // A trailers-only response.
            Some(status) if status.code() == Code::Ok => Code::Ok,
            Some(status) => return Err(status),
        };
        Ok(Self {
            body,
            partial: BytesMut::new(),
            max_message,
            missing_status,
            message: PhantomData,
        })
    }

    /// Returns the next message, or `None` at the end of a successful call. Cancellation safe.
    pub(crate) async fn message(&mut self) -> Result<Option<A>, Status> {
        loop {
            if let Some(message) = self.take_message()? {
                return Ok(Some(message));
            }
            let Some(frame) = self.body.frame().await else {
                return self.end(None);
            };
            let frame = frame.map_err(|error| Status::from_error(Box::new(error)))?;
            match frame.into_data() {
                Ok(data) => self.partial.extend_from_slice(&data),
                Err(frame) => return self.end(frame.into_trailers().ok()),
            }
        }
    }

    /// Removes the first message from the received bytes, if it is complete.
    fn take_message(&mut self) -> Result<Option<A>, Status> {
        let Some((&[compressed, length @ ..], rest)) = self.partial.split_first_chunk::<PREFIX>()
        else {
            return Ok(None);
        };
        if compressed != 0 {
            let error = format!("unexpected compressed message (flag {compressed})");
            return Err(Status::internal(error));
        }
        let length = u32::from_be_bytes(length) as usize;
        let limit = self.max_message;
        if length > limit {
            let error = format!("message of {length} bytes exceeds the limit of {limit}");
            return Err(Status::out_of_range(error));
        }
        let Some(bytes) = rest.get(..length) else {
            return Ok(None);
        };
        let message = A::decode(bytes)
            .map_err(|error| Status::internal(format!("invalid message: {error}")))?;
        self.partial.advance(PREFIX + length);
        if self.partial.is_empty() {
            self.partial = BytesMut::new();
        }
        Ok(Some(message))
    }

    fn end(&self, trailers: Option<HeaderMap>) -> Result<Option<A>, Status> {
        let status = trailers
            .as_ref()
            .and_then(Status::from_header_map)
            .unwrap_or_else(|| {
                Status::new(self.missing_status, "the stream ended without a status")
            });
        match status.code() {
            Code::Ok if self.partial.is_empty() => Ok(None),
            Code::Ok => Err(Status::internal("the stream ended inside a message")),
            _ => Err(status),
        }
    }
}

fn frame_message(message: &impl Message) -> Bytes {
    let length = message.encoded_len();
    let mut framed = BytesMut::with_capacity(PREFIX + length);
    framed.put_u8(0);
    // A request identifies one destination and is far smaller than 4 GiB.
    framed.put_u32(u32::try_from(length).unwrap_or(u32::MAX));
    // Encoding fails only if a buffer cannot grow.
    let _encoded = message.encode(&mut framed);
    framed.freeze()
}

/// Returns the code of a response without a gRPC status, by gRPC's "HTTP to gRPC Status Code
/// Mapping".
fn grpc_code(http: StatusCode) -> Code {
    match http {
        StatusCode::BAD_REQUEST => Code::Internal,
        StatusCode::UNAUTHORIZED => Code::Unauthenticated,
        StatusCode::FORBIDDEN => Code::PermissionDenied,
        StatusCode::NOT_FOUND => Code::Unimplemented,
        StatusCode::TOO_MANY_REQUESTS
        | StatusCode::BAD_GATEWAY
        | StatusCode::SERVICE_UNAVAILABLE
        | StatusCode::GATEWAY_TIMEOUT => Code::Unavailable,
        _ => Code::Unknown,
    }
}

#[cfg(test)]
mod tests;

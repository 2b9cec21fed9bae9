//! One gRPC call that has a stream of answers.
//!
//! A client that is generated keeps, as long as its stream is open, a buffer of the size of the
//! largest message. A proxy holds three streams for each destination and hardly ever hears anything
//! on them, so that these buffers were a third of what an endpoint costs. Nothing is kept here
//! between messages.

use std::marker::PhantomData;

use bytes::{Buf as _, BufMut as _, Bytes, BytesMut};
use http::header::{CONTENT_TYPE, TE};
use http::{HeaderMap, HeaderValue, Method, Request, StatusCode, Uri, Version};
use http_body_util::{BodyExt as _, Full};
use prost::Message;
use tonic::body::Body;
use tonic::{Code, Status};
use tower::Service as _;

use super::client::AnswerBody;
use super::{Client, MAX_MESSAGE};

/// What a call is answered with, one message after the other.
#[derive(Debug)]
pub struct Answers<A> {
    body: AnswerBody,
    /// What has come of a message that is not whole.
    partial: BytesMut,
    /// What it means that no status comes behind the messages.
    without_status: Code,
    answer: PhantomData<fn() -> A>,
}

/// In front of each message: whether it is compressed, and its length.
const PREFIX: usize = 5;

/// Calls the method at `path` (`/SERVICE/METHOD`).
pub async fn open<Q, A>(
    mut client: Client,
    path: &'static str,
    question: Q,
) -> Result<Answers<A>, Status>
where
    Q: Message,
    A: Message + Default,
{
    let mut request = Request::new(Body::new(Full::new(framed(&question))));
    *request.method_mut() = Method::POST;
    *request.uri_mut() = Uri::from_static(path);
    *request.version_mut() = Version::HTTP_2;
    let headers = request.headers_mut();
    headers.insert(TE, HeaderValue::from_static("trailers"));
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    // `Client` is always ready, so nobody asks it.
    let response = client.call(request).await;
    let (head, body) = response
        .map_err(|error| Status::from_error(Box::new(error)))?
        .into_parts();
    let without_status = match status_of(head.headers) {
        None => code_of(head.status),
        // There is nothing but this head.
        Some(status) if status.code() == Code::Ok => Code::Ok,
        Some(status) => return Err(status),
    };
    Ok(Answers {
        body,
        partial: BytesMut::new(),
        without_status,
        answer: PhantomData,
    })
}

impl<A: Message + Default> Answers<A> {
    /// The next one, or `None` behind the last one of a call that has succeeded. Nothing is lost
    /// when this is dropped and called again.
    pub async fn message(&mut self) -> Result<Option<A>, Status> {
        loop {
            if let Some(message) = self.whole()? {
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

    /// The first message of what has come, if it is whole.
    fn whole(&mut self) -> Result<Option<A>, Status> {
        let Some((&[compressed, length @ ..], rest)) = self.partial.split_first_chunk::<PREFIX>()
        else {
            return Ok(None);
        };
        if compressed != 0 {
            let problem =
                format!("a message is compressed ({compressed}), which was not asked for");
            return Err(Status::internal(problem));
        }
        let length = u32::from_be_bytes(length) as usize;
        if length > MAX_MESSAGE {
            let problem =
                format!("a message has {length} bytes, and {MAX_MESSAGE} at most are read");
            return Err(Status::out_of_range(problem));
        }
        let Some(bytes) = rest.get(..length) else {
            return Ok(None);
        };
        let message = A::decode(bytes)
            .map_err(|error| Status::internal(format!("a message cannot be read: {error}")))?;
        self.partial.advance(PREFIX + length);
        if self.partial.is_empty() {
            self.partial = BytesMut::new();
        }
        Ok(Some(message))
    }

    fn end(&self, trailers: Option<HeaderMap>) -> Result<Option<A>, Status> {
        let status = trailers.and_then(status_of).unwrap_or_else(|| {
            let problem = "the stream ended without a status";
            Status::new(self.without_status, problem)
        });
        match status.code() {
            Code::Ok if self.partial.is_empty() => Ok(None),
            Code::Ok => Err(Status::internal("the stream ended inside of a message")),
            _ => Err(status),
        }
    }
}

fn framed(question: &impl Message) -> Bytes {
    let length = question.encoded_len();
    let mut framed = BytesMut::with_capacity(PREFIX + length);
    framed.put_u8(0);
    // A question names one destination.
    framed.put_u32(u32::try_from(length).unwrap_or(u32::MAX));
    // Only a buffer that cannot grow may be too small.
    let _fits = question.encode(&mut framed);
    framed.freeze()
}

fn status_of(mut headers: HeaderMap) -> Option<Status> {
    // tonic panics when they are no base64, and nobody here reads them.
    headers.remove("grpc-status-details-bin");
    Status::from_header_map(&headers)
}

/// Of an answer without a gRPC status; gRPC's "HTTP to gRPC Status Code Mapping".
fn code_of(http: StatusCode) -> Code {
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

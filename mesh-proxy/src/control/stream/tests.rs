//! Response streams of a service that frames its messages itself.

use std::convert::Infallible;
use std::net::{Ipv4Addr, SocketAddr};

use http::Response;
use http_body::Frame;
use http_body_util::StreamBody;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use mesh_api::proto::destination::{DestinationProfile, GetDestination};
use tokio::net::TcpListener;

use super::super::tests::client_at;
use super::*;

const PATH: &str = "/io.linkerd.proxy.destination.Destination/GetProfile";

/// The response of the service to every call.
#[derive(Clone, Default)]
struct Script {
    status: StatusCode,
    headers: HeaderMap,
    data: Vec<Bytes>,
    trailers: Option<HeaderMap>,
}

impl Script {
    fn new(data: impl IntoIterator<Item = Bytes>, trailers: Option<HeaderMap>) -> Self {
        Self {
            data: data.into_iter().collect(),
            trailers,
            ..Self::default()
        }
    }

    /// The names in the received messages, and the final status.
    async fn receive_all(self) -> (Vec<String>, Result<(), Status>) {
        let addr = self.serve().await;
        let opened = open(client_at(addr), PATH, GetDestination::default()).await;
        let mut responses: ResponseStream<DestinationProfile> = match opened {
            Ok(responses) => responses,
            Err(status) => return (Vec::new(), Err(status)),
        };
        let mut names = Vec::new();
        loop {
            match responses.message().await {
                Ok(Some(message)) => names.push(message.fully_qualified_name),
                Ok(None) => return (names, Ok(())),
                Err(status) => return (names, Err(status)),
            }
            assert!(responses.partial.is_empty() == (responses.partial.capacity() == 0));
        }
    }

    async fn expect_error(self, code: Code, text: &str) {
        let (_, end) = self.receive_all().await;
        let status = end.unwrap_err();
        assert_eq!(status.code(), code, "{status}");
        assert!(status.message().contains(text), "{status}");
    }

    async fn serve(self) -> SocketAddr {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let addr = listener.local_addr().unwrap();
        tokio::spawn(async move {
            while let Ok((tcp, _)) = listener.accept().await {
                let script = self.clone();
                let service = service_fn(move |_request| {
                    let response = script.response();
                    async { Ok::<_, Infallible>(response) }
                });
                let serving = http2::Builder::new(TokioExecutor::new())
                    .serve_connection(TokioIo::new(tcp), service);
                tokio::spawn(serving);
            }
        });
        addr
    }

    fn response(
        &self,
    ) -> Response<
        StreamBody<impl tokio_stream::Stream<Item = Result<Frame<Bytes>, Infallible>> + use<>>,
    > {
        let data = self.data.clone().into_iter().map(Frame::data);
        let trailers = self.trailers.clone().into_iter().map(Frame::trailers);
        let frames = data.chain(trailers).map(Ok);
        let mut response = Response::new(StreamBody::new(tokio_stream::iter(frames)));
        *response.status_mut() = self.status;
        *response.headers_mut() = self.headers.clone();
        response
    }
}

fn profile(name: &str) -> Bytes {
    frame_message(&DestinationProfile {
        fully_qualified_name: name.to_owned(),
        ..DestinationProfile::default()
    })
}

fn status_headers(code: &'static str) -> HeaderMap {
    let status = HeaderValue::from_static(code);
    let message = HeaderValue::from_static("not%20here");
    // Not valid base64.
    let details = HeaderValue::from_static("%%%");
    let named = ["grpc-status", "grpc-message", "grpc-status-details-bin"]
        .map(http::HeaderName::from_static);
    named.into_iter().zip([status, message, details]).collect()
}

#[tokio::test]
async fn messages_are_reassembled_from_chunks_of_any_size() {
    let names = ["web", "", "a-name-that-is-longer-than-the-others"];
    let bytes: Bytes = names.map(profile).concat().into();
    for size in [1, 3, PREFIX, 7, bytes.len()] {
        let pieces = bytes.chunks(size).map(Bytes::copy_from_slice);
        let script = Script::new(pieces, Some(status_headers("0")));
        let (seen, end) = script.receive_all().await;
        assert_eq!(seen, names, "in chunks of {size} bytes");
        end.unwrap();
    }
}

#[tokio::test]
async fn status_in_trailers_ends_stream() {
    let script = Script::new([profile("web")], Some(status_headers("5")));
    let (seen, end) = script.receive_all().await;
    assert_eq!(seen, ["web"]);
    let status = end.unwrap_err();
    assert_eq!(
        (status.code(), status.message()),
        (Code::NotFound, "not here")
    );

    let script = Script::new([profile("web")], None);
    script.expect_error(Code::Unknown, "without a status").await;
    let truncated = profile("web").slice(..6);
    let script = Script::new([truncated], Some(status_headers("0")));
    script
        .expect_error(Code::Internal, "inside a message")
        .await;
}

#[tokio::test]
async fn trailers_only_response_carries_status() {
    let mut script = Script {
        headers: status_headers("7"),
        ..Script::default()
    };
    script
        .clone()
        .expect_error(Code::PermissionDenied, "not here")
        .await;
    script.headers = status_headers("0");
    let (seen, end) = script.receive_all().await;
    assert!(seen.is_empty());
    end.unwrap();

    for (http, code) in [
        (503, Code::Unavailable),
        (404, Code::Unimplemented),
        (500, Code::Unknown),
    ] {
        let script = Script {
            status: StatusCode::from_u16(http).unwrap(),
            ..Script::default()
        };
        script.expect_error(code, "without a status").await;
    }
}

#[tokio::test]
async fn invalid_messages_are_rejected() {
    let end = || Some(status_headers("0"));
    let compressed = Bytes::from_static(&[1, 0, 0, 0, 1, 0]);
    let script = Script::new([compressed], end());
    script.expect_error(Code::Internal, "compressed").await;
    let huge = Bytes::from_static(&[0, 0xff, 0, 0, 0]);
    let script = Script::new([huge], end());
    script
        .expect_error(Code::OutOfRange, "4278190080 bytes")
        .await;
    let malformed = Bytes::from_static(&[0, 0, 0, 0, 2, 0xff, 0xff]);
    let script = Script::new([malformed], end());
    script.expect_error(Code::Internal, "invalid message").await;
}

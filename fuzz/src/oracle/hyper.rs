//! hyper as an oracle for HTTP/1 requests and responses. Its framing is independent of the proxy's,
//! although both use the same tokenizer.

use std::cell::RefCell;
use std::convert::Infallible;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use http::{HeaderMap, Method, Request, Response, StatusCode, Uri, Version};
use http_body_util::{BodyExt as _, Empty};
use hyper::body::Incoming;
use hyper::rt::ReadBufCursor;
use hyper::service::service_fn;
use hyper::{client, server};
use tokio::select;

/// A request or response as hyper has parsed it.
#[derive(Debug)]
pub(crate) struct ParsedMessage {
    pub(crate) method: Method,
    pub(crate) target: Uri,
    pub(crate) status: StatusCode,
    pub(crate) version: Version,
    pub(crate) headers: HeaderMap,
    /// `None` if reading the body failed.
    pub(crate) body: Option<(Vec<u8>, HeaderMap)>,
}

/// Returns the requests that a hyper server reads from a client that sends `bytes` and closes.
pub(crate) async fn requests(bytes: &[u8]) -> (Vec<ParsedMessage>, hyper::Result<()>) {
    let seen = Rc::new(RefCell::new(Vec::new()));
    let service = service_fn(|request: Request<Incoming>| {
        let seen = seen.clone();
        async move {
            let (head, body) = request.into_parts();
            let is_connect = head.method == Method::CONNECT;
            let body = collect(body).await;
            seen.borrow_mut().push(ParsedMessage {
                method: head.method,
                target: head.uri,
                status: StatusCode::OK,
                version: head.version,
                headers: head.headers,
                body,
            });
            let mut response = Response::new(Empty::<Bytes>::new());
            if is_connect {
                *response.status_mut() = StatusCode::METHOD_NOT_ALLOWED;
            }
            Ok::<_, Infallible>(response)
        }
    });
    let served = server::conn::http1::Builder::new()
        .half_close(true)
        .header_read_timeout(None)
        .serve_connection(Script::of_client(bytes), service)
        .await;
    (seen.take(), served)
}

/// Returns the response that a hyper client reads from a server that sends `bytes` and closes, if
/// it is valid.
pub(crate) async fn response(
    bytes: &[u8],
    request: Request<Empty<Bytes>>,
) -> Option<ParsedMessage> {
    let (mut sender, connection) = client::conn::http1::handshake(Script::of_server(bytes))
        .await
        .ok()?;
    let exchange = async {
        let response = sender.send_request(request).await.ok()?;
        let (head, body) = response.into_parts();
        Some(ParsedMessage {
            method: Method::GET,
            target: Uri::default(),
            status: head.status,
            version: head.version,
            headers: head.headers,
            body: collect(body).await,
        })
    };
    // The connection must be polled for the exchange to progress, and may complete before it.
    let mut connection = std::pin::pin!(connection);
    let mut exchange = std::pin::pin!(exchange);
    select! {
        biased;
        seen = exchange.as_mut() => seen,
        _ended = connection.as_mut() => exchange.await,
    }
}

async fn collect(body: Incoming) -> Option<(Vec<u8>, HeaderMap)> {
    let whole = body.collect().await.ok()?;
    let trailers = whole.trailers().cloned().unwrap_or_default();
    Some((whole.to_bytes().to_vec(), trailers))
}

/// A peer that sends `bytes` and discards its input.
struct Script<'a> {
    bytes: &'a [u8],
    /// Whether it sends only after it has received bytes.
    waits: bool,
    waker: Option<Waker>,
}

impl<'a> Script<'a> {
    fn of_client(bytes: &'a [u8]) -> Self {
        Self {
            bytes,
            waits: false,
            waker: None,
        }
    }

    fn of_server(bytes: &'a [u8]) -> Self {
        Self {
            waits: true,
            ..Self::of_client(bytes)
        }
    }
}

impl hyper::rt::Read for Script<'_> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        mut buf: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        if self.waits {
            self.waker = Some(cx.waker().clone());
            return Poll::Pending;
        }
        let (now, later) = self.bytes.split_at(buf.remaining().min(self.bytes.len()));
        buf.put_slice(now);
        self.bytes = later;
        Poll::Ready(Ok(()))
    }
}

impl hyper::rt::Write for Script<'_> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        _cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.waits = false;
        if let Some(reader) = self.waker.take() {
            reader.wake();
        }
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

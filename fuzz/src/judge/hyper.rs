//! How hyper reads a client's or a server's bytes: the most used HTTP/1 in this language, with a
//! framing of its own above the tokenizer that it shares with ours.

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

/// A request or response, as far as it was understood.
#[derive(Debug)]
pub(crate) struct Seen {
    pub(crate) method: Method,
    pub(crate) target: Uri,
    pub(crate) status: StatusCode,
    pub(crate) version: Version,
    pub(crate) headers: HeaderMap,
    /// `None` when it did not end well.
    pub(crate) body: Option<(Vec<u8>, HeaderMap)>,
}

/// The requests that a server of hyper's would answer to a client that sends `bytes` and closes.
pub(crate) async fn requests(bytes: &[u8]) -> (Vec<Seen>, hyper::Result<()>) {
    let seen = Rc::new(RefCell::new(Vec::new()));
    let service = service_fn(|request: Request<Incoming>| {
        let seen = seen.clone();
        async move {
            let (head, body) = request.into_parts();
            let is_connect = head.method == Method::CONNECT;
            let body = collect(body).await;
            seen.borrow_mut().push(Seen {
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

/// The response that a client of hyper's would get from a server that sends `bytes` and closes.
/// `None` when it would get none.
pub(crate) async fn response(bytes: &[u8], asked: Request<Empty<Bytes>>) -> Option<Seen> {
    let (mut sender, connection) = client::conn::http1::handshake(Script::of_server(bytes))
        .await
        .ok()?;
    let exchange = async {
        let response = sender.send_request(asked).await.ok()?;
        let (head, body) = response.into_parts();
        Some(Seen {
            method: Method::GET,
            target: Uri::default(),
            status: head.status,
            version: head.version,
            headers: head.headers,
            body: collect(body).await,
        })
    };
    // The connection has to be driven for the exchange to go on, and may end before it.
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

/// A peer that says this, and to which everything can be said.
struct Script<'a> {
    bytes: &'a [u8],
    /// It speaks when it has been spoken to.
    waits: bool,
    waiting: Option<Waker>,
}

impl<'a> Script<'a> {
    fn of_client(bytes: &'a [u8]) -> Self {
        Self {
            bytes,
            waits: false,
            waiting: None,
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
            self.waiting = Some(cx.waker().clone());
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
        if let Some(reader) = self.waiting.take() {
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

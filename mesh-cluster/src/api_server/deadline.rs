//! The time limit of requests to the API server.
//!
//! A connection may be lost without a reset: a load balancer dropped it, or a host has failed. TCP
//! notices after 15 minutes, and never if the request had been acknowledged. kube's watches have a
//! limit of their own once they have started; nothing else has.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use http::{Request, Response};
use http_body::{Frame, SizeHint};
use hyper::body::Bytes;
use kube::Client;
use kube::client::Body;
use tokio::time::{Instant, Sleep, sleep_until, timeout_at};
use tower::BoxError;

/// The API server did not respond, or stopped within a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the API server did not respond within {} s", LIMIT.as_secs())]
pub(super) struct NoResponse;

/// API servers end requests that are not watches after 60 s (`--request-timeout`).
pub(super) const LIMIT: Duration = Duration::from_secs(65);

/// The body of a response.
pub(super) struct Limited {
    inner: Body,
    /// When it fails unless it has ended.
    end: Option<Pin<Box<Sleep>>>,
}

/// Sends a request. It fails if no response has begun within the [limit](LIMIT), or, unless it is a
/// watch, if the response has not ended.
pub(super) async fn send(
    client: &Client,
    request: Request<Body>,
) -> Result<Response<Limited>, BoxError> {
    let end = Instant::now() + LIMIT;
    let is_watch = is_watch(request.uri().query().unwrap_or_default());
    let sent = timeout_at(end, client.send(request)).await;
    let response = sent.map_err(|_elapsed| NoResponse)??;
    let end = (!is_watch).then(|| Box::pin(sleep_until(end)));
    Ok(response.map(|inner| Limited { inner, end }))
}

pub(super) fn is_watch(query: &str) -> bool {
    query.split('&').any(|parameter| {
        let value = parameter.strip_prefix("watch=");
        value.is_some_and(|value| value != "false")
    })
}

impl http_body::Body for Limited {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        if let Poll::Ready(frame) = Pin::new(&mut self.inner).poll_frame(cx) {
            return Poll::Ready(frame.map(|frame| frame.map_err(BoxError::from)));
        }
        match &mut self.end {
            Some(end) => end.as_mut().poll(cx).map(|()| Some(Err(NoResponse.into()))),
            None => Poll::Pending,
        }
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use futures_util::{StreamExt as _, stream};
    use http_body_util::StreamBody;
    use k8s_openapi::api::core::v1::Pod;
    use kube::Api;
    use kube::api::{ListParams, WatchParams};

    use super::*;
    use crate::api_server::explain;

    /// Returns a client of an API server whose responses never end, and begin if `begins`.
    fn client(begins: bool) -> Client {
        let service = tower::service_fn(move |_request: Request<Body>| async move {
            if !begins {
                std::future::pending::<()>().await;
            }
            let never = stream::pending::<Result<Frame<Bytes>, Infallible>>();
            Ok::<_, Infallible>(Response::new(StreamBody::new(never)))
        });
        let client = Client::new(service, "default");
        let limited = tower::service_fn(move |request: Request<Body>| {
            let client = client.clone();
            async move { send(&client, request).await }
        });
        Client::new(limited, "default")
    }

    #[tokio::test(start_paused = true)]
    async fn requests_without_a_whole_response_fail_in_time() {
        for begins in [false, true] {
            let pods: Api<Pod> = Api::all(client(begins));
            let begin = Instant::now();
            let error = pods.list(&ListParams::default()).await.unwrap_err();
            assert_eq!(begin.elapsed(), LIMIT);
            let text = explain(&error);
            assert!(text.contains("did not respond within 65 s"), "{text}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn only_the_beginning_of_a_watch_has_the_limit() {
        let pods: Api<Pod> = Api::all(client(true));
        let events = pods.watch(&WatchParams::default(), "1").await.unwrap();
        let mut events = std::pin::pin!(events);
        let next = tokio::time::timeout(LIMIT * 3, events.next());
        assert!(next.await.is_err());
        let pods: Api<Pod> = Api::all(client(false));
        let begin = Instant::now();
        assert!(pods.watch(&WatchParams::default(), "1").await.is_err());
        assert_eq!(begin.elapsed(), LIMIT);
    }
}

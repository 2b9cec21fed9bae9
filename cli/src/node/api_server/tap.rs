//! The tap API of a node, with the requests and responses of the viz extension's.

use std::sync::Arc;

use anyhow::Context as _;
use futures_util::stream;
use http::header::CONTENT_TYPE;
use http::{HeaderValue, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Limited, StreamBody};
use hyper::body::{Bytes, Frame, Incoming};
use mesh_api::linkerd2::tap::TapByResourceRequest;
use mesh_api::linkerd2::viz::ApiError;
use mesh_api::tap_request::{ERROR_HEADER, PATH_PREFIX};
use mesh_api::{tap_events, tap_frames};
use prost::Message as _;

use super::{Body, full, refused};
use crate::clients::tap::TapQuery;
use crate::node::tap::{LocalEvents, Observer};

/// A request has some names and conditions; the tap API has the same limit.
const MAX_REQUEST: usize = 64 << 10;

const OCTETS: HeaderValue = HeaderValue::from_static("application/octet-stream");

pub(super) fn is_path(path: &str) -> bool {
    path.starts_with(PATH_PREFIX) && path.ends_with("/tap")
}

/// Starts a tap, which ends when the client closes the connection.
pub(super) async fn respond(
    observer: &Arc<Observer>,
    request: Request<Incoming>,
) -> Response<Body> {
    let body = Limited::new(request.into_body(), MAX_REQUEST)
        .collect()
        .await;
    let Ok(body) = body else {
        return refused(StatusCode::PAYLOAD_TOO_LARGE, "expected a shorter request");
    };
    match start(observer, body.to_bytes()).await {
        Ok(events) => octets(stream_of(events)),
        Err(error) => {
            let message = ApiError {
                error: format!("{error:#}"),
            };
            let mut response = octets(full(tap_frames::frame(&message)));
            let value = HeaderValue::from_static("Internal Server Error");
            response.headers_mut().insert(ERROR_HEADER, value);
            response
        }
    }
}

async fn start(observer: &Arc<Observer>, body: Bytes) -> anyhow::Result<LocalEvents> {
    let request = TapByResourceRequest::decode(body).context("decode the request")?;
    let query = TapQuery::from_message(&request)?;
    LocalEvents::start(observer, &query).await
}

/// Returns the events as frames. The reason why no pod is observed any longer ends the body.
fn stream_of(events: LocalEvents) -> Body {
    let frames = stream::unfold(Some(events), |events: Option<LocalEvents>| async move {
        let mut events = events?;
        match events.next().await {
            Ok(None) => None,
            Ok(Some(event)) => {
                let message = tap_events::message(&event, |_header| true);
                let frame = Frame::data(tap_frames::frame(&message));
                Some((Ok(frame), Some(events)))
            }
            Err(error) => Some((Err(std::io::Error::other(format!("{error:#}"))), None)),
        }
    });
    StreamBody::new(frames).boxed_unsync()
}

fn octets(body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    response.headers_mut().insert(CONTENT_TYPE, OCTETS);
    response
}

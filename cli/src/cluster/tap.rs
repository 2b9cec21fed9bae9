//! Client of the tap API (`tap.linkerd.io`), an extension of the API server. The response is a
//! stream of messages: each is preceded by its length, four bytes in little-endian order.

mod event;

use anyhow::Context as _;
use bytes::Bytes;
use http::{Request, StatusCode};
use http_body_util::{BodyExt as _, Limited};
use kube::client::Body;
use mesh_api::linkerd2::tap::TapEvent as Message;
use mesh_api::linkerd2::viz::ApiError;
use mesh_api::tap_frames::Frames;
use mesh_api::tap_request::ERROR_HEADER;
use mesh_core::tap::TapEvent;
use prost::Message as _;

use super::{Cluster, error};
use crate::clients::tap::TapQuery;
use crate::exit::Failure;

/// The events of one tap.
pub(crate) struct ApiEvents {
    body: Body,
    frames: Frames,
}

/// Maximum size of a message. An event has a path, labels, and the header fields of one request:
/// the proxy reports at most 16 KiB of them.
const MAX_FRAME: u32 = 1 << 20;

/// Maximum size of a response that is not a stream of events.
const MAX_ERROR: usize = 64 << 10;

impl ApiEvents {
    /// Starts a tap.
    pub(crate) async fn start(cluster: &Cluster, query: &TapQuery) -> anyhow::Result<Self> {
        let request = Request::post(query.path())
            .header(http::header::CONTENT_TYPE, "application/octet-stream")
            .body(Body::from(query.to_message().encode_to_vec()))
            .context("build the request for the tap API")?;
        let response = cluster.client.send(request).await;
        let response = response.map_err(|error| error::failed("tap", error))?;
        let (head, body) = response.into_parts();
        if head.status != StatusCode::OK {
            let body = read_error(body).await?;
            return Err(refused(query, head.status, &String::from_utf8_lossy(&body)));
        }
        if head.headers.contains_key(ERROR_HEADER) {
            return Err(not_started(query, &read_error(body).await?));
        }
        Ok(Self {
            body,
            frames: Frames::with_limit(MAX_FRAME),
        })
    }

    /// Returns the next event, or `None` when the tap has ended. Events that this version does not
    /// understand are left out.
    pub(crate) async fn next(&mut self) -> anyhow::Result<Option<TapEvent>> {
        loop {
            while let Some(frame) = self.frames.next_frame()? {
                let message = Message::decode(frame).context("an event of the tap is invalid")?;
                if let Some(event) = event::read(message) {
                    return Ok(Some(event));
                }
            }
            let Some(part) = self.body.frame().await else {
                self.frames.end()?;
                return Ok(None);
            };
            let part = part.context("the connection of the tap failed")?;
            if let Ok(data) = part.into_data() {
                self.frames.push(&data);
            }
        }
    }
}

async fn read_error(body: Body) -> anyhow::Result<Bytes> {
    let body = Limited::new(body, MAX_ERROR).collect().await;
    let body = body.map_err(|error| anyhow::anyhow!("cannot read the tap's error: {error}"))?;
    Ok(body.to_bytes())
}

/// Explains a response of the API server or of the tap API that denies the tap.
fn refused(query: &TapQuery, status: StatusCode, body: &str) -> anyhow::Error {
    let reason = reason(body);
    match status {
        StatusCode::FORBIDDEN => anyhow::anyhow!(
            "you may not tap {query}: the verb watch on {}.tap.linkerd.io is missing ({reason}); an administrator grants it with `kubectl create clusterrolebinding tap-USER --clusterrole=linkerd-linkerd-viz-tap-admin --user=USER`",
            query.access_resource()
        ),
        StatusCode::NOT_FOUND => Failure::Unreachable(format!(
            "the cluster has no tap API: {NOT_INSTALLED}"
        ))
        .into(),
        StatusCode::SERVICE_UNAVAILABLE => Failure::Unreachable(format!(
            "the tap API does not respond ({reason}); `kubectl get apiservice v1alpha1.tap.linkerd.io` and `kubectl get pods -A -l component=tap` show its state"
        ))
        .into(),
        StatusCode::UNAUTHORIZED => {
            anyhow::anyhow!("the API server rejected your credentials (401): log in again")
        }
        status => anyhow::anyhow!("cannot tap {query}: {status}: {reason}"),
    }
}

const NOT_INSTALLED: &str =
    "install the viz extension with `meshctl viz install | kubectl apply -f -`";

/// Returns the message of a `Status` of the API server or of an error of the tap API.
fn reason(body: &str) -> String {
    let json: serde_json::Value = serde_json::from_str(body).unwrap_or_default();
    let message = json["message"].as_str().or_else(|| json["error"].as_str());
    message.unwrap_or(body).trim().to_owned()
}

/// Explains the error of a tap that was allowed and could not be started.
fn not_started(query: &TapQuery, body: &[u8]) -> anyhow::Error {
    let mut frames = Frames::with_limit(MAX_FRAME);
    frames.push(body);
    let error = match frames.next_frame() {
        Ok(Some(frame)) => ApiError::decode(frame).map_or_else(|e| e.to_string(), |e| e.error),
        Ok(None) => "the response ended early".to_owned(),
        Err(error) => error.to_string(),
    };
    anyhow::anyhow!("cannot tap {query}: {error}")
}

#[cfg(test)]
mod tests;

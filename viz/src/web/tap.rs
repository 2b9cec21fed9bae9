//! Taps: a WebSocket whose first message is the request, and whose further messages are events.
//!
//! The events come from the tap API through the API server, which authorizes this ServiceAccount.
//! They are read as they arrive. When the queue of a slow viewer is full, further events are
//! dropped and counted, so that it never slows the tapped proxies.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::{SinkExt as _, StreamExt as _};
use http::StatusCode;
use http::header::CONTENT_TYPE;
use http_body_util::{BodyExt as _, Limited};
use hyper::body::Bytes;
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use kube::Client;
use kube::client::Body;
use mesh_api::linkerd2::tap::TapEvent;
use mesh_api::linkerd2::viz::ApiError;
use mesh_api::tap_frames::Frames;
use mesh_api::tap_request::ERROR_HEADER;
use mesh_cluster::api_server::explain;
use mesh_runtime::drain;
use mesh_runtime::metrics::Counter;
use prost::Message as _;
use serde_json::json;
use tokio::sync::{OwnedSemaphorePermit, mpsc};
use tokio::time::{MissedTickBehavior, interval, timeout};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::tungstenite::protocol::{CloseFrame, Role, WebSocketConfig};
use tokio_tungstenite::tungstenite::{Error as SocketError, Message};

use self::request::TapParams;
use super::json::ToJson as _;

mod request;

type Socket = WebSocketStream<TokioIo<Upgraded>>;

/// A connection whose handshake has been answered.
pub(crate) struct TapSession {
    pub(crate) client: Client,
    pub(crate) drain: drain::Watch,
    /// Counts the events that a viewer was too slow for.
    pub(crate) dropped: Counter,
    pub(crate) _permit: OwnedSemaphorePermit,
}

/// Why a tap ends, as the close frame tells it.
#[derive(Debug)]
struct Ending {
    code: CloseCode,
    reason: String,
}

/// The events of a tap on their way to the viewer.
struct Events {
    queue: mpsc::Receiver<TapEvent>,
    /// How many of this tap did not fit into the queue.
    dropped: Arc<AtomicU64>,
    /// The task that reads them; its result is why it ended.
    reader: tokio::task::JoinHandle<Ending>,
}

/// The most open taps, which is also the limit of the tap API.
pub(crate) const MAX_TAPS: usize = 64;

/// A request has a few names and a path.
const MAX_REQUEST: usize = 16 << 10;

/// The time for the first message.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// The time until the API server has authorized and forwarded a tap.
const OPEN_TIMEOUT: Duration = Duration::from_secs(15);

/// Events that a viewer has not read. One event has at most some kilobytes.
const MAX_QUEUED: usize = 1_000;

/// An error of the tap API has a sentence.
const MAX_ERROR: usize = 16 << 10;

/// An event has at most 16 KiB of header fields, a path and labels.
const MAX_FRAME: u32 = 256 << 10;

/// The payload of a close frame has at most 125 bytes. The code takes two of them.
const MAX_REASON: usize = 123;

/// The interval of pings, which make proxies in between keep an idle connection open.
const PING_INTERVAL: Duration = Duration::from_secs(15);

impl TapSession {
    /// Serves a connection until the viewer leaves, the tap ends or the process stops.
    pub(crate) async fn run(self, connection: Upgraded) {
        let config = WebSocketConfig::default()
            .read_buffer_size(4 << 10)
            .write_buffer_size(0)
            .max_message_size(Some(MAX_REQUEST))
            .max_frame_size(Some(MAX_REQUEST));
        let io = TokioIo::new(connection);
        let mut socket = WebSocketStream::from_raw_socket(io, Role::Server, Some(config)).await;
        let ended = tokio::select! {
            ended = self.tap(&mut socket) => ended,
            () = self.drain.draining() => Err(Ending {
                code: CloseCode::Away,
                reason: "the dashboard is restarting".to_owned(),
            }),
        };
        let Err(ending) = ended else {
            return;
        };
        tracing::debug!(reason = ending.reason, "Tap ended");
        let frame = CloseFrame {
            code: ending.code,
            reason: cut(&ending.reason).into(),
        };
        // The viewer may have left.
        let _closed = timeout(REQUEST_TIMEOUT, socket.close(Some(frame))).await;
    }

    /// Returns why the tap ended; nothing if the viewer has left.
    async fn tap(&self, socket: &mut Socket) -> Result<(), Ending> {
        let Some(params) = first_message(socket).await? else {
            return Ok(());
        };
        let request = params.request().map_err(Ending::error)?;
        let opened = timeout(OPEN_TIMEOUT, open(&self.client, request)).await;
        let body = opened.map_err(|_elapsed| {
            Ending::error("the API server did not open the tap in time".to_owned())
        })??;
        let mut events = Events::read(body, self.dropped.clone());
        self.forward(socket, &mut events, &params).await
    }

    /// Sends events, and responds to pings of the viewer.
    async fn forward(
        &self,
        socket: &mut Socket,
        events: &mut Events,
        params: &TapParams,
    ) -> Result<(), Ending> {
        let mut ping = interval(PING_INTERVAL);
        ping.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut reported = 0;
        loop {
            let message = tokio::select! {
                event = events.queue.recv() => match event {
                    Some(event) => text(&event.to_json()),
                    None => return Err(events.ending().await),
                },
                received = socket.next() => match received {
                    // A request cannot be changed.
                    Some(Ok(Message::Text(_) | Message::Binary(_))) => {
                        return Err(Ending::unsupported("expected one message"));
                    }
                    Some(Ok(Message::Close(_)) | Err(_)) | None => return Ok(()),
                    Some(Ok(_)) => continue,
                },
                _ = ping.tick() => Message::Ping(Bytes::new()),
            };
            if socket.send(message).await.is_err() {
                return Ok(());
            }
            let dropped = events.dropped.load(Ordering::Relaxed);
            if params.reports_drops() && dropped > reported {
                reported = dropped;
                let notice = text(&json!({ "dropped": dropped }));
                if socket.send(notice).await.is_err() {
                    return Ok(());
                }
            }
        }
    }
}

impl Ending {
    fn error(reason: String) -> Self {
        Self {
            code: CloseCode::Error,
            reason,
        }
    }

    fn unsupported(reason: &str) -> Self {
        Self {
            code: CloseCode::Unsupported,
            reason: reason.to_owned(),
        }
    }
}

fn text(json: &serde_json::Value) -> Message {
    Message::Text(json.to_string().into())
}

/// Returns a reason that fits into a close frame.
fn cut(reason: &str) -> &str {
    &reason[..reason.floor_char_boundary(MAX_REASON)]
}

/// Returns the request; `None` if the viewer has left.
async fn first_message(socket: &mut Socket) -> Result<Option<TapParams>, Ending> {
    let received = async {
        loop {
            match socket.next().await {
                Some(Ok(Message::Ping(_) | Message::Pong(_))) => {}
                received => return received,
            }
        }
    };
    let received = timeout(REQUEST_TIMEOUT, received).await;
    let received =
        received.map_err(|_elapsed| Ending::error("expected a tap request".to_owned()))?;
    match received {
        Some(Ok(Message::Text(text))) => {
            let params = serde_json::from_str(&text)
                .map_err(|error| Ending::error(format!("not a tap request: {error}")))?;
            Ok(Some(params))
        }
        Some(Err(SocketError::Capacity(_))) => Err(Ending {
            code: CloseCode::Size,
            reason: format!("a tap request has at most {MAX_REQUEST} bytes"),
        }),
        Some(Ok(Message::Binary(_))) => Err(Ending::unsupported("expected a text message")),
        _ => Ok(None),
    }
}

/// Opens a tap at the API server.
async fn open(client: &Client, request: request::TapCall) -> Result<Body, Ending> {
    let call = http::Request::post(request.path)
        .header(CONTENT_TYPE, "application/octet-stream")
        .body(Body::from(request.message.encode_to_vec()))
        .map_err(|error| Ending::error(error.to_string()))?;
    let response = client.send(call).await;
    let response = response.map_err(|error| Ending::error(explain(&error)))?;
    let status = response.status();
    let is_error = response.headers().contains_key(ERROR_HEADER);
    let body = response.into_body();
    if status == StatusCode::OK && !is_error {
        return Ok(body);
    }
    let problem = Limited::new(body, MAX_ERROR).collect().await;
    let problem = problem.map_or_else(|_error| Bytes::new(), |body| body.to_bytes());
    if status == StatusCode::FORBIDDEN {
        return Err(Ending {
            code: CloseCode::Policy,
            reason: "the dashboard may not tap: missing authorization, visit https://linkerd.io/tap-rbac to remedy".to_owned(),
        });
    }
    Err(Ending::error(error_text(status, &problem)))
}

/// Returns the text of an error: in the frame of an ApiError, or in JSON.
fn error_text(status: StatusCode, body: &[u8]) -> String {
    let mut frames = Frames::with_limit(MAX_FRAME);
    frames.push(body);
    if let Ok(Some(frame)) = frames.next_frame()
        && status == StatusCode::OK
        && let Ok(error) = ApiError::decode(frame)
    {
        return error.error;
    }
    let json: serde_json::Value = serde_json::from_slice(body).unwrap_or_default();
    let text = ["error", "message"]
        .iter()
        .find_map(|name| json[*name].as_str());
    match text {
        Some(text) => text.to_owned(),
        None => format!("the API server responded with {status}; is the tap API available?"),
    }
}

impl Events {
    fn read(body: Body, all_dropped: Counter) -> Self {
        let (sender, queue) = mpsc::channel(MAX_QUEUED);
        let dropped = Arc::new(AtomicU64::new(0));
        let reader = tokio::spawn(read_events(body, sender, dropped.clone(), all_dropped));
        Self {
            queue,
            dropped,
            reader,
        }
    }

    /// Returns why there are no more events.
    async fn ending(&mut self) -> Ending {
        match (&mut self.reader).await {
            Ok(ending) => ending,
            Err(_panicked) => Ending::error("the tap failed".to_owned()),
        }
    }
}

impl Drop for Events {
    fn drop(&mut self) {
        self.reader.abort();
    }
}

/// Reads events until the tap ends, and counts the events that do not fit into the queue.
async fn read_events(
    body: Body,
    queue: mpsc::Sender<TapEvent>,
    dropped: Arc<AtomicU64>,
    all_dropped: Counter,
) -> Ending {
    let mut body = body.into_data_stream();
    let mut frames = Frames::with_limit(MAX_FRAME);
    while let Some(part) = body.next().await {
        match part {
            Ok(part) => frames.push(&part),
            Err(error) => return Ending::error(format!("the tap was interrupted: {error}")),
        }
        loop {
            let frame = match frames.next_frame() {
                Ok(Some(frame)) => frame,
                Ok(None) => break,
                Err(error) => return Ending::error(error.to_string()),
            };
            let event = match TapEvent::decode(frame) {
                Ok(event) => event,
                Err(error) => return Ending::error(format!("invalid event: {error}")),
            };
            if queue.try_send(event).is_err() {
                dropped.fetch_add(1, Ordering::Relaxed);
                all_dropped.inc();
            }
        }
    }
    Ending {
        code: CloseCode::Normal,
        reason: "the tapped pods have gone".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use mesh_api::tap_frames;

    use super::*;

    #[tokio::test]
    async fn long_events_are_refused_before_they_arrive() {
        for (length, expected) in [
            (MAX_FRAME, "the tapped pods have gone"),
            (MAX_FRAME + 1, "262145 bytes; expected at most 262144"),
        ] {
            let body = Body::from(length.to_le_bytes().to_vec());
            let (queue, _events) = mpsc::channel(1);
            let registry = mesh_runtime::metrics::Registry::new();
            let dropped = registry
                .counter_family("dropped_total", "")
                .with(&Default::default());
            let ending = read_events(body, queue, Arc::default(), dropped).await;
            assert!(ending.reason.contains(expected), "{}", ending.reason);
        }
    }

    #[test]
    fn reasons_are_cut_between_characters() {
        assert_eq!(cut("short"), "short");
        assert_eq!(cut(&"x".repeat(500)).len(), MAX_REASON);
        let reason = cut(&"é".repeat(100)).to_owned();
        assert_eq!(reason, "é".repeat(61));
    }

    #[test]
    fn errors_are_read_from_frames_and_json() {
        let framed = tap_frames::frame(&ApiError {
            error: "no pods".to_owned(),
        });
        let table: [(StatusCode, &[u8], &str); 4] = [
            (StatusCode::OK, &framed, "no pods"),
            (
                StatusCode::SERVICE_UNAVAILABLE,
                br#"{"kind":"Status","message":"no endpoints"}"#,
                "no endpoints",
            ),
            (
                StatusCode::BAD_REQUEST,
                br#"{"error":"wrong name"}"#,
                "wrong name",
            ),
            (StatusCode::NOT_FOUND, b"404", "responded with 404"),
        ];
        for (status, body, expected) in table {
            let text = error_text(status, body);
            assert!(text.contains(expected), "{text}");
        }
    }
}

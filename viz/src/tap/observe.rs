//! The subscription to the proxy of one pod, through the proxy of this pod, which authenticates it.

use std::time::Duration;

use mesh_api::grpc::{Channel, Endpoint};
use mesh_api::proto::tap::tap_client::TapClient;
use mesh_core::tap::{TapEvent, TapRequest};
use mesh_objects::inventory::tap::TappedPod;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};
use tonic::metadata::{Ascii, MetadataValue};
use tonic::{Code, Request, Status};

/// The time of the requests that a limit is about.
pub(super) const WINDOW: Duration = Duration::from_secs(1);

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// This header makes the proxy of this pod require the identity of the tapped proxy.
const REQUIRE_ID: &str = "l5d-require-id";

/// An event has at most 16 KiB of header fields, and a path.
const MAX_EVENT: usize = 256 << 10;

/// A subscription ends after this number of consecutive failures: the pod has gone.
const MAX_FAILURES: usize = 3;

/// Sends the events of a pod's proxy until the observer is gone. `request` limits the requests of
/// each [`WINDOW`].
pub(super) async fn observe(pod: TappedPod, request: TapRequest, events: mpsc::Sender<TapEvent>) {
    let mut failures = 0;
    while failures < MAX_FAILURES {
        let next = Instant::now() + WINDOW;
        let observed = tokio::select! {
            observed = observe_once(&pod, &request, &events) => observed,
            () = events.closed() => return,
        };
        match observed {
            Ok(()) => failures = 0,
            Err(error) if error.code() == Code::Unauthenticated => {
                tracing::warn!(pod = %pod.name, %error, "Proxy does not allow this tap");
                return;
            }
            Err(error) => {
                tracing::info!(pod = %pod.name, %error, "Cannot tap pod");
                failures += 1;
            }
        }
        tokio::select! {
            () = sleep_until(next) => {}
            () = events.closed() => return,
        }
    }
}

/// Sends the events of one subscription until its limit is reached.
async fn observe_once(
    pod: &TappedPod,
    request: &TapRequest,
    events: &mpsc::Sender<TapEvent>,
) -> Result<(), Status> {
    let channel = connect(pod).await?;
    let mut client = TapClient::new(channel).max_decoding_message_size(MAX_EVENT);
    let mut call = Request::new(mesh_api::tap::request_to_proto(request));
    let identity: MetadataValue<Ascii> = pod
        .identity
        .parse()
        .map_err(|_error| Status::internal("the identity is not a header value"))?;
    call.metadata_mut().insert(REQUIRE_ID, identity);
    let mut stream = client.observe(call).await?.into_inner();
    while let Some(message) = stream.message().await? {
        match mesh_api::tap::event(message) {
            Ok(event) => {
                if events.send(event).await.is_err() {
                    // The observer has gone.
                    return Ok(());
                }
            }
            Err(error) => tracing::warn!(pod = %pod.name, %error, "Invalid event of a proxy"),
        }
    }
    Ok(())
}

async fn connect(pod: &TappedPod) -> Result<Channel, Status> {
    let endpoint = Endpoint::new(&pod.addr.to_string())
        .map_err(|error| Status::internal(error.to_string()))?;
    let endpoint = endpoint.connect_timeout(CONNECT_TIMEOUT);
    let connected = endpoint.connect().await;
    connected.map_err(|error| Status::unavailable(mesh_runtime::log::chain(&error)))
}

//! The subscription to the proxy of one pod.

use std::time::Duration;

use anyhow::Context as _;
use mesh_api::grpc::Channel;
use mesh_api::proto::tap::tap_client::TapClient;
use mesh_core::tap::{TapEvent, TapRequest};
use mesh_objects::inventory::tap::TappedPod;
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until, timeout};
use tonic::{Code, Status};

use super::observer::Observer;
use crate::clients::connection::Connection;
use crate::clients::grpc;

/// The time of the requests that a limit is about.
const WINDOW: Duration = Duration::from_secs(1);

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// An event has at most 16 KiB of header fields, and a path.
const MAX_EVENT: usize = 256 << 10;

/// A subscription that fails so often in a row ends: the pod has gone.
const MAX_FAILURES: usize = 3;

/// Sends the events of a pod's proxy until the pod has gone. `request` limits the requests of each
/// [`WINDOW`]. The error is why the pod could not be observed at all.
pub(super) async fn observe(
    pod: &TappedPod,
    observer: &Observer,
    request: &TapRequest,
    events: &mpsc::Sender<anyhow::Result<TapEvent>>,
) -> anyhow::Result<()> {
    let mut client = None;
    let mut failures = 0;
    let mut was_observed = false;
    loop {
        let next = Instant::now() + WINDOW;
        match observe_once(&mut client, pod, observer, request, events).await {
            Ok(()) => (failures, was_observed) = (0, true),
            Err(error) => {
                client = None;
                failures += 1;
                let is_final = failures == MAX_FAILURES || is_refusal(&error);
                if is_final && was_observed {
                    return Ok(());
                }
                if is_final {
                    return Err(error.context(format!("cannot tap pod {}", pod.name)));
                }
            }
        }
        sleep_until(next).await;
    }
}

/// Sends the events of one subscription until its limit is reached.
async fn observe_once(
    client: &mut Option<TapClient<Channel>>,
    pod: &TappedPod,
    observer: &Observer,
    request: &TapRequest,
    events: &mpsc::Sender<anyhow::Result<TapEvent>>,
) -> anyhow::Result<()> {
    let client = match client {
        Some(client) => client,
        None => client.insert(connect(pod, observer).await?),
    };
    let request = mesh_api::tap::request_to_proto(request);
    let mut stream = client.observe(request).await?.into_inner();
    while let Some(message) = stream.message().await? {
        // Events that this version does not understand are left out.
        if let Ok(event) = mesh_api::tap::event(message)
            && events.send(Ok(event)).await.is_err()
        {
            break;
        }
    }
    Ok(())
}

async fn connect(pod: &TappedPod, observer: &Observer) -> anyhow::Result<TapClient<Channel>> {
    let tls = observer.client().await?;
    let addr = pod.addr;
    let stream = timeout(CONNECT_TIMEOUT, TcpStream::connect(addr)).await;
    let stream = stream
        .with_context(|| format!("connect to {addr}"))?
        .with_context(|| format!("connect to {addr}"))?;
    let connection = tls.connect(Connection::new(stream), &pod.identity).await?;
    let server = format!("the tap service of pod {}", pod.name);
    let channel = grpc::long_lived_channel(connection, &server).await?;
    Ok(TapClient::new(channel).max_decoding_message_size(MAX_EVENT))
}

/// Returns whether the proxy has refused the observer, which it would do again.
fn is_refusal(error: &anyhow::Error) -> bool {
    let status = error.downcast_ref::<Status>();
    status.is_some_and(|status| status.code() == Code::Unauthenticated)
}

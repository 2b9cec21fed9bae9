//! Clients, streams and their limits, against real services.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use mesh_api::proto::destination::destination_client::DestinationClient;
use mesh_api::proto::destination::{GetDestination, Update};
use mesh_core::identity::Identity;
use mesh_core::resilience::Backoff;
use mesh_runtime::metrics::Registry;
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::time::timeout;
use tonic::Code;

use super::dns::Resolver;
use super::follow::{Event, RetryDecision, follow};
use super::*;
use crate::config::tests::with_control_plane;
use crate::config::{ControlAddr, StreamLimits};
use crate::tests::fake_control_plane::ControlPlane;
use crate::tls::tests::TestCa;
use crate::watch;

const BACKOFF: Backoff = Backoff {
    min: Duration::from_millis(1),
    max: Duration::from_millis(1),
    jitter: 0.0,
};

/// Short for a test, and far longer than a call over loopback takes.
const SHORT: Option<Duration> = Some(Duration::from_millis(200));

const GET: &str = "/io.linkerd.proxy.destination.Destination/Get";

/// A client of the service at `addr`, in plaintext.
pub(super) fn client_at(addr: SocketAddr) -> Client {
    client_with_metrics(addr, &Registry::new())
}

fn client_with_metrics(addr: SocketAddr, registry: &Registry) -> Client {
    let config = with_control_plane(addr, &[]);
    let resolver = Resolver::from_system(&config.control, registry).unwrap();
    let (_, credentials) = watch::channel(None);
    let trust = Trust::Certified(credentials);
    let addr = &config.discovery.destination;
    Client::new(
        "destination",
        addr,
        &config.control,
        trust,
        &resolver,
        registry,
    )
}

/// A client of the service at `addr`, which must authenticate as `name`.
fn client_of(addr: SocketAddr, name: &str, trust: Trust) -> DestinationClient<Client> {
    client_of_with_metrics(addr, name, trust, &Registry::new())
}

fn client_of_with_metrics(
    addr: SocketAddr,
    name: &str,
    trust: Trust,
    registry: &Registry,
) -> DestinationClient<Client> {
    let config = with_control_plane(addr, &[]);
    let resolver = Resolver::from_system(&config.control, registry).unwrap();
    let addr = ControlAddr {
        host: addr.ip().to_string().into(),
        port: addr.port(),
        identity: Some(Identity::parse(name).unwrap()),
    };
    let client = Client::new(
        "destination",
        &addr,
        &config.control,
        trust,
        &resolver,
        registry,
    );
    DestinationClient::new(client)
}

/// Follows endpoints and forwards the events.
fn start(control: &ControlPlane, limits: StreamLimits) -> mpsc::UnboundedReceiver<Event<Update>> {
    let client = client_at(control.addr);
    let (tx, rx) = mpsc::unbounded_channel();
    let open = move || stream::open(client.clone(), GET, GetDestination::default());
    tokio::spawn(async move {
        follow(limits, BACKOFF, open, |event| {
            let _ = tx.send(event);
            RetryDecision::Retry
        })
        .await;
    });
    rx
}

#[tokio::test]
async fn stream_is_replaced_at_lifetime_and_idle_limits() {
    for limits in [
        StreamLimits {
            lifetime: SHORT,
            ..StreamLimits::NONE
        },
        StreamLimits {
            idle: SHORT,
            ..StreamLimits::NONE
        },
    ] {
        let mut control = ControlPlane::start().await;
        let mut events = start(&control, limits);
        let first = control.endpoints.recv().await.unwrap().stream();
        first.send(Ok(Update::default())).unwrap();
        let event = events.recv().await.unwrap();
        assert!(
            matches!(event, Event::Message { first: true, .. }),
            "{event:?}"
        );
        // The second stream is opened although the service has not ended the first.
        let second = control.endpoints.recv().await.unwrap().stream();
        second.send(Ok(Update::default())).unwrap();
        let event = events.recv().await.unwrap();
        assert!(
            matches!(event, Event::Message { first: true, .. }),
            "{event:?}"
        );
        first.closed().await;
    }
}

#[tokio::test]
async fn stream_without_first_message_times_out() {
    let mut control = ControlPlane::start().await;
    let limits = StreamLimits {
        initial: SHORT,
        ..StreamLimits::NONE
    };
    let mut events = start(&control, limits);
    let silent = control.endpoints.recv().await.unwrap().stream();
    let Event::Failed(status) = events.recv().await.unwrap() else {
        panic!("not a failure");
    };
    assert_eq!(status.code(), Code::DeadlineExceeded);
    control.endpoints.recv().await.unwrap();
    drop(silent);
}

/// The proxy has three of these futures for each destination.
#[tokio::test]
async fn follow_future_stays_small() {
    let control = ControlPlane::start().await;
    let client = client_at(control.addr);
    let open = || stream::open(client.clone(), GET, GetDestination::default());
    let following = follow(StreamLimits::NONE, BACKOFF, open, |_: Event<Update>| {
        RetryDecision::Retry
    });
    let size = size_of_val(&following);
    assert!(size <= 704, "{size}");
}

/// The value of the metric for the destination service.
fn unreachable(registry: &Registry) -> u8 {
    let text = String::from_utf8(registry.encode()).unwrap();
    let value = text
        .split_once("mesh_proxy_control_unreachable{client=\"destination\"} ")
        .and_then(|(_, rest)| rest.lines().next());
    value.expect(&text).parse().unwrap()
}

/// A call ends at its stream's limit, which is shorter than the dials of several replicas.
#[tokio::test(start_paused = true)]
async fn outage_is_reported_although_calls_end_before_dials() {
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let ca = TestCa::new();
    let (_publish, credentials) = watch::channel(Some(ca.credentials("web.test")));
    let registry = Registry::new();
    let trust = Trust::Certified(credentials);
    let addr = silent.local_addr().unwrap();
    let mut caller = client_of_with_metrics(addr, "control.test", trust, &registry);
    let limit = Duration::from_millis(100);
    let call = caller.get(GetDestination::default());
    timeout(limit, call)
        .await
        .expect_err("the service is silent");
    assert_eq!(unreachable(&registry), 0);
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(unreachable(&registry), 1);
}

#[tokio::test]
async fn calls_succeed_after_service_restart() {
    let control = ControlPlane::start().await;
    let addr = control.addr;
    let registry = Registry::new();
    let is_unreachable = |value: u8| assert_eq!(unreachable(&registry), value);
    let mut caller = DestinationClient::new(client_with_metrics(addr, &registry));
    is_unreachable(0);
    control.stop().await;
    let failed = caller.get(GetDestination::default()).await.unwrap_err();
    let reason = reason(&failed);
    assert!(
        reason.contains(&addr.to_string()) && reason.contains("refused"),
        "{reason}"
    );
    is_unreachable(1);
    let mut control = ControlPlane::start_at(addr).await;
    let (answer, ()) = tokio::join!(caller.get(GetDestination::default()), async {
        control.endpoints.recv().await.unwrap().stream();
    });
    answer.unwrap();
    is_unreachable(0);
}

#[tokio::test]
async fn service_with_identity_is_called_over_mutual_tls() {
    let ca = TestCa::new();
    let (seen, mut clients) = mpsc::unbounded_channel();
    let mut control = ControlPlane::start_tls(ca.credentials("control.test"), seen).await;
    let own = ca.credentials("web.test");
    let (publish, credentials) = watch::channel(Some(own.clone()));
    let trust = Trust::Certified(credentials);
    let mut caller = client_of(control.addr, "control.test", trust.clone());
    let mut call = async || {
        let (answer, ()) = tokio::join!(caller.get(GetDestination::default()), async {
            control.endpoints.recv().await.unwrap().stream();
        });
        answer.unwrap();
    };

    call().await;
    let client = clients.recv().await.unwrap();
    assert_eq!(client.id.unwrap().as_str(), "web.test");
    call().await;
    assert!(clients.try_recv().is_err(), "the connection is kept");
    publish.send_replace(Some(Arc::new(own.with_anchors(&ca.anchors(), 2).unwrap())));
    call().await;
    clients
        .try_recv()
        .expect("new credentials require a new connection");

    let mut mismatched = client_of(control.addr, "other.test", trust);
    let error = mismatched.get(GetDestination::default()).await.unwrap_err();
    let reason = reason(&error);
    assert!(
        reason.contains("control.test") && reason.contains("other.test"),
        "{reason}"
    );
}

#[tokio::test]
async fn anonymous_client_uses_certificate_once_available() {
    let ca = TestCa::new();
    let (seen, mut clients) = mpsc::unbounded_channel();
    let mut control = ControlPlane::start_tls(ca.credentials("control.test"), seen).await;
    let (publish, credentials) = watch::channel(None);
    let (_anchors, anchors) = watch::channel(ca.anchors());
    let trust = Trust::Anonymous(credentials, anchors);
    let mut caller = client_of(control.addr, "control.test", trust);
    for expected in [None, Some("web.test")] {
        let (answer, ()) = tokio::join!(caller.get(GetDestination::default()), async {
            control.endpoints.recv().await.unwrap().stream();
        });
        answer.unwrap();
        let client = clients.recv().await.unwrap().id;
        assert_eq!(client.as_ref().map(Identity::as_str), expected);
        publish.send_replace(Some(ca.credentials("web.test")));
    }
}

#[tokio::test]
async fn streams_beyond_limit_open_another_connection() {
    let ca = TestCa::new();
    let (seen, mut clients) = mpsc::unbounded_channel();
    let mut control = ControlPlane::start_tls(ca.credentials("control.test"), seen).await;
    let (_publish, credentials) = watch::channel(Some(ca.credentials("web.test")));
    let caller = client_of(control.addr, "control.test", Trust::Certified(credentials));
    let mut open = Vec::new();
    for _ in 0..=client::STREAMS_PER_CONNECTION {
        let mut caller = caller.clone();
        let (answer, stream) = tokio::join!(caller.get(GetDestination::default()), async {
            control.endpoints.recv().await.unwrap().stream()
        });
        open.push((answer.unwrap(), stream));
    }
    clients.try_recv().unwrap();
    clients.try_recv().expect("a second connection");
    open.pop();
    let mut caller = caller.clone();
    let (answer, ()) = tokio::join!(caller.get(GetDestination::default()), async {
        control.endpoints.recv().await.unwrap().stream();
    });
    answer.unwrap();
    assert!(clients.try_recv().is_err(), "released capacity is reused");
}

//! Watched and cached port policies, and the policies that apply without a response.

use mesh_core::policy::inbound::ServerPolicy;
use tokio::time::{Instant, advance};

use super::*;
use crate::discovery::ports::{FIRST_POLICY_TIMEOUT, MAX_PORTS};
use crate::tests::fake_control_plane::MessageSender;

type Server = mesh_api::proto::inbound::Server;

const IDLE: Duration = Duration::from_secs(90);

/// A policy with this name.
fn named(name: &str) -> Server {
    let policy = mesh_core::policy::inbound::DefaultPolicy::AllUnauthenticated;
    let policy = policy.server_policy(&[], Duration::from_secs(10), false);
    mesh_api::inbound::to_proto(&ServerPolicy {
        meta: mesh_core::meta::Meta::new_default(name),
        ..policy
    })
}

async fn respond(control: &mut ControlPlane, port: u16, name: &str) -> MessageSender<Server> {
    let stream = request(control, port).await;
    stream.send(Ok(named(name))).unwrap();
    stream
}

/// The stream of the next request for `port`.
async fn request(control: &mut ControlPlane, port: u16) -> MessageSender<Server> {
    loop {
        let call = control.inbound.recv().await.unwrap();
        if call.request.port == u32::from(port) {
            return call.stream();
        }
    }
}

fn name(policy: &PortPolicy) -> (String, PolicySource) {
    let current = policy.updates().borrow().clone();
    (current.policy.meta.name().to_owned(), current.source)
}

fn is(name: &str, source: PolicySource) -> (String, PolicySource) {
    (name.to_owned(), source)
}

/// Advances time until the sweeps have found every unused port idle.
async fn idle_time_passes() {
    for _ in 0..3 {
        advance(IDLE).await;
        turns().await;
    }
}

async fn turns() {
    for _ in 0..2_000 {
        tokio::task::yield_now().await;
    }
}

/// Prevents the paused clock from advancing by itself while tasks wait only for sockets, by
/// blocking a thread of the runtime.
fn hold_clock() -> std::sync::mpsc::Sender<()> {
    let (release, released) = std::sync::mpsc::channel();
    tokio::task::spawn_blocking(move || released.recv_timeout(Duration::from_secs(60)));
    release
}

/// The source of the policy after the wait for the policy service has timed out.
async fn source_after_timeout(policy: &PortPolicy) -> PolicySource {
    tokio::join!(policy.wait_for_policy(), advance(FIRST_POLICY_TIMEOUT)).0
}

async fn becomes(policy: &PortPolicy, name: &str, source: PolicySource) {
    let is =
        |current: &CurrentPolicy| current.policy.meta.name() == name && current.source == source;
    policy.updates().wait_for(is).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn missing_policy_is_waited_for_once_per_port() {
    let _still = hold_clock();
    let (discovery, mut control) = start().await;
    let policy = discovery.inbound(5000).unwrap();
    let start = Instant::now();
    assert_eq!(source_after_timeout(&policy).await, PolicySource::Default);
    assert_eq!(
        name(&policy),
        is("all-unauthenticated", PolicySource::Default),
        "the configured one"
    );
    let again = discovery.inbound(5000).unwrap();
    assert_eq!(again.wait_for_policy().await, PolicySource::Default);
    let waited = start.elapsed();
    assert_eq!(
        waited, FIRST_POLICY_TIMEOUT,
        "later connections do not wait"
    );

    let _stream = respond(&mut control, 5000, "own").await;
    becomes(&policy, "own", PolicySource::Received).await;
    assert_eq!(policy.wait_for_policy().await, PolicySource::Received);
}

#[tokio::test]
async fn invalid_policy_denies_clients_and_does_not_count() {
    let (discovery, mut control) = start_with(&[("INBOUND_PORTS", Some("8080"))]).await;
    let stream = request(&mut control, 8080).await;
    let policy = discovery.inbound(8080).unwrap();
    let unreadable = || Server {
        protocol: None,
        ..named("own")
    };
    stream.send(Ok(unreadable())).unwrap();
    becomes(&policy, "unreadable", PolicySource::Received).await;
    assert!(discovery.ports_without_policy().contains(&8080));

    stream.send(Ok(named("own"))).unwrap();
    becomes(&policy, "own", PolicySource::Received).await;
    assert!(!discovery.ports_without_policy().contains(&8080));

    stream.send(Ok(unreadable())).unwrap();
    becomes(&policy, "unreadable", PolicySource::Received).await;
    assert_refuses(&policy);
}

fn assert_refuses(policy: &PortPolicy) {
    let authorizations = policy.updates().borrow().policy.authorizations.clone();
    let names: Vec<_> = authorizations.iter().map(|a| a.meta.name()).collect();
    assert_eq!(names, ["localhost"], "no other client is allowed");
}

#[tokio::test(start_paused = true)]
async fn policy_outlives_idle_time_during_control_plane_outage() {
    let _still = hold_clock();
    let (discovery, mut control) = start().await;
    let policy = discovery.inbound(5000).unwrap();
    let stream = respond(&mut control, 5000, "own").await;
    becomes(&policy, "own", PolicySource::Received).await;
    stream.send(Err(Status::unavailable("away"))).unwrap();
    let deny = tokio::spawn(async move {
        let mut control = control;
        while let Some(call) = control.inbound.recv().await {
            call.refuse(Status::unavailable("away"));
        }
    });
    turns().await;
    idle_time_passes().await;
    let policy = discovery.inbound(5000).unwrap();
    assert_eq!(
        policy.wait_for_policy().await,
        PolicySource::Received,
        "without waiting"
    );
    assert_eq!(name(&policy), is("own", PolicySource::Received));
    deny.abort();
}

#[tokio::test(start_paused = true)]
async fn policy_of_unused_port_is_unwatched_and_cached() {
    let _still = hold_clock();
    let (discovery, mut control) = start().await;
    let used = discovery.inbound(5000).unwrap();
    assert!(used.try_acquire());
    let _used = respond(&mut control, 5000, "used").await;
    let idle = discovery.inbound(5001).unwrap();
    let stream = respond(&mut control, 5001, "own").await;
    becomes(&idle, "own", PolicySource::Received).await;
    idle_time_passes().await;
    stream.closed().await;
    assert!(!idle.try_acquire(), "it must be looked up again");
    assert!(used.try_acquire(), "it has a connection");

    let again = discovery.inbound(5001).unwrap();
    assert_eq!(name(&again), is("own", PolicySource::Cached));
    assert_eq!(source_after_timeout(&again).await, PolicySource::Cached);
    let _stream = respond(&mut control, 5001, "new").await;
    becomes(&again, "new", PolicySource::Received).await;
}

#[tokio::test(start_paused = true)]
async fn port_scan_does_not_exceed_watched_ports() {
    let _still = hold_clock();
    let (discovery, mut control) = start_with(&[("INBOUND_PORTS", Some("8080"))]).await;
    let declared = respond(&mut control, 8080, "declared").await;
    let used = discovery.inbound(1).unwrap();
    assert!(used.try_acquire());
    let _used = respond(&mut control, 1, "used").await;
    let known = discovery.inbound(2).unwrap();
    let _known = respond(&mut control, 2, "known").await;
    becomes(&known, "known", PolicySource::Received).await;
    let scanned = 3..u16::try_from(9 * MAX_PORTS).unwrap();
    for port in scanned.filter(|port| ![4191, 8080].contains(port)) {
        discovery.inbound(port).unwrap();
        // Lets the tasks of evicted ports end.
        tokio::task::yield_now().await;
    }
    // The limit does not include the declared port and the admin port.
    assert_eq!(discovery.inner.inbound.counts(), (MAX_PORTS + 2, 0));
    assert!(
        used.try_acquire() && known.try_acquire(),
        "ports with a policy are evicted last"
    );
    assert!(!declared.is_closed());

    for port in 10_000..10_000 + MAX_PORTS - 2 {
        let port = u16::try_from(port).unwrap();
        assert!(discovery.inbound(port).unwrap().try_acquire(), "{port}");
    }
    let error = discovery.inbound(3).unwrap_err();
    assert_eq!(error, TooManyPorts);
    assert!(discovery.inbound(10_000).is_ok() && discovery.inbound(8080).is_ok());
    used.release();
    used.release();
    assert!(discovery.inbound(3).is_ok());
    assert!(!used.try_acquire());
}

#[tokio::test(start_paused = true)]
async fn port_with_evicted_policy_denies_clients_until_next_response() {
    let _still = hold_clock();
    let (discovery, mut control) = start().await;
    let mut streams = Vec::new();
    for port in 1..=u16::try_from(2 * MAX_PORTS + 1).unwrap() {
        // Orders the ports by their last use.
        advance(Duration::from_millis(1)).await;
        let policy = discovery.inbound(port).unwrap();
        streams.push(respond(&mut control, port, "own").await);
        becomes(&policy, "own", PolicySource::Received).await;
    }
    assert_eq!(
        discovery.inner.inbound.counts(),
        (MAX_PORTS + 1, MAX_PORTS),
        "and the admin port"
    );
    let again = discovery.inbound(1).unwrap();
    assert_eq!(source_after_timeout(&again).await, PolicySource::Evicted);
    assert_eq!(name(&again), is("forgotten", PolicySource::Evicted));
    assert_refuses(&again);
    let second = discovery.inbound(3).unwrap();
    assert_eq!(name(&second), is("own", PolicySource::Cached));
    let _stream = respond(&mut control, 1, "new").await;
    becomes(&again, "new", PolicySource::Received).await;
}

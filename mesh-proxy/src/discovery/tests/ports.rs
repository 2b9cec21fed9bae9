//! What is known of a port, for how long, and what holds when nothing is.

use mesh_core::policy::inbound::ServerPolicy;
use tokio::time::{Instant, advance};

use super::*;
use crate::discovery::ports::{FIRST_ANSWER, MAX_PORTS};
use crate::fake_control_plane::MessageSender;

type Server = mesh_api::proto::inbound::Server;

const IDLE: Duration = Duration::from_secs(90);

/// A policy that is recognised by its name.
fn named(name: &str) -> Server {
    let policy = mesh_core::policy::inbound::DefaultPolicy::AllUnauthenticated;
    let policy = policy.server_policy(&[], Duration::from_secs(10), false);
    mesh_api::inbound::to_proto(&ServerPolicy {
        meta: mesh_core::meta::Meta::new_default(name),
        ..policy
    })
}

async fn answer(control: &mut ControlPlane, port: u16, name: &str) -> MessageSender<Server> {
    let stream = asked(control, port).await;
    stream.send(Ok(named(name))).unwrap();
    stream
}

/// The stream of the next question about `port`.
async fn asked(control: &mut ControlPlane, port: u16) -> MessageSender<Server> {
    loop {
        let call = control.inbound.recv().await.unwrap();
        if call.request.port == u32::from(port) {
            return call.stream();
        }
    }
}

fn name(policy: &PortPolicy) -> (String, Basis) {
    let current = policy.updates().borrow().clone();
    (current.policy.meta.name().to_owned(), current.basis)
}

fn is(name: &str, basis: Basis) -> (String, Basis) {
    (name.to_owned(), basis)
}

/// Sweeps find everything idle that is not in use.
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

/// A paused clock jumps to the next timer while only sockets are waited for, but not while a
/// thread of the runtime is blocked.
fn stand_still() -> std::sync::mpsc::Sender<()> {
    let (release, released) = std::sync::mpsc::channel();
    tokio::task::spawn_blocking(move || released.recv_timeout(Duration::from_secs(60)));
    release
}

/// What holds once nothing is waited for any more.
async fn after_the_wait(policy: &PortPolicy) -> Basis {
    tokio::join!(policy.wait_for_policy(), advance(FIRST_ANSWER)).0
}

async fn becomes(policy: &PortPolicy, name: &str, basis: Basis) {
    let is = |current: &Current| current.policy.meta.name() == name && current.basis == basis;
    policy.updates().wait_for(is).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_port_that_is_not_answered_for_is_waited_for_once() {
    let _still = stand_still();
    let (discovery, mut control) = start().await;
    let policy = discovery.inbound(5000).unwrap();
    let start = Instant::now();
    assert_eq!(after_the_wait(&policy).await, Basis::Default);
    assert_eq!(
        name(&policy),
        is("all-unauthenticated", Basis::Default),
        "the configured one"
    );
    let again = discovery.inbound(5000).unwrap();
    assert_eq!(again.wait_for_policy().await, Basis::Default);
    let waited = start.elapsed();
    assert_eq!(waited, FIRST_ANSWER, "later connections do not wait");

    let _stream = answer(&mut control, 5000, "own").await;
    becomes(&policy, "own", Basis::Answer).await;
    assert_eq!(policy.wait_for_policy().await, Basis::Answer);
}

#[tokio::test]
async fn a_policy_that_cannot_be_read_refuses_and_is_not_known() {
    let (discovery, mut control) = start_with(&[("INBOUND_PORTS", Some("8080"))]).await;
    let stream = asked(&mut control, 8080).await;
    let policy = discovery.inbound(8080).unwrap();
    let unreadable = || Server {
        protocol: None,
        ..named("own")
    };
    stream.send(Ok(unreadable())).unwrap();
    becomes(&policy, "unreadable", Basis::Answer).await;
    assert!(discovery.ports_without_policy().contains(&8080));

    stream.send(Ok(named("own"))).unwrap();
    becomes(&policy, "own", Basis::Answer).await;
    assert!(!discovery.ports_without_policy().contains(&8080));

    stream.send(Ok(unreadable())).unwrap();
    becomes(&policy, "unreadable", Basis::Answer).await;
    assert_refuses(&policy);
}

fn assert_refuses(policy: &PortPolicy) {
    let authorizations = policy.updates().borrow().policy.authorizations.clone();
    let names: Vec<_> = authorizations.iter().map(|a| a.meta.name()).collect();
    assert_eq!(names, ["localhost"], "no other client passes");
}

#[tokio::test(start_paused = true)]
async fn what_was_answered_outlives_the_idle_time_while_the_control_plane_is_away() {
    let _still = stand_still();
    let (discovery, mut control) = start().await;
    let policy = discovery.inbound(5000).unwrap();
    let stream = answer(&mut control, 5000, "own").await;
    becomes(&policy, "own", Basis::Answer).await;
    stream.send(Err(Status::unavailable("away"))).unwrap();
    let refusing = tokio::spawn(async move {
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
        Basis::Answer,
        "without waiting"
    );
    assert_eq!(name(&policy), is("own", Basis::Answer));
    refusing.abort();
}

#[tokio::test(start_paused = true)]
async fn a_port_out_of_use_is_watched_no_more_and_its_last_answer_is_remembered() {
    let _still = stand_still();
    let (discovery, mut control) = start().await;
    let used = discovery.inbound(5000).unwrap();
    assert!(used.enter());
    let _used = answer(&mut control, 5000, "used").await;
    let idle = discovery.inbound(5001).unwrap();
    let stream = answer(&mut control, 5001, "own").await;
    becomes(&idle, "own", Basis::Answer).await;
    idle_time_passes().await;
    stream.closed().await;
    assert!(!idle.enter(), "it has to be looked up anew");
    assert!(used.enter(), "it has a connection");

    let again = discovery.inbound(5001).unwrap();
    assert_eq!(name(&again), is("own", Basis::LastAnswer));
    assert_eq!(after_the_wait(&again).await, Basis::LastAnswer);
    let _stream = answer(&mut control, 5001, "new").await;
    becomes(&again, "new", Basis::Answer).await;
}

/// What a scan of ports leaves behind.
#[tokio::test(start_paused = true)]
async fn the_number_of_ports_is_bounded() {
    let _still = stand_still();
    let (discovery, mut control) = start_with(&[("INBOUND_PORTS", Some("8080"))]).await;
    let declared = answer(&mut control, 8080, "declared").await;
    let used = discovery.inbound(1).unwrap();
    assert!(used.enter());
    let _used = answer(&mut control, 1, "used").await;
    let known = discovery.inbound(2).unwrap();
    let _known = answer(&mut control, 2, "known").await;
    becomes(&known, "known", Basis::Answer).await;
    let scanned = 3..u16::try_from(9 * MAX_PORTS).unwrap();
    for port in scanned.filter(|port| ![4191, 8080].contains(port)) {
        discovery.inbound(port).unwrap();
        // Those that are given up end.
        tokio::task::yield_now().await;
    }
    // The declared one and the admin port are beside the limit.
    assert_eq!(discovery.inner.inbound.counts(), (MAX_PORTS + 2, 0));
    assert!(used.enter() && known.enter(), "what is known goes last");
    assert!(!declared.is_closed());

    for port in 10_000..10_000 + MAX_PORTS - 2 {
        let port = u16::try_from(port).unwrap();
        assert!(discovery.inbound(port).unwrap().enter(), "{port}");
    }
    let error = discovery.inbound(3).unwrap_err();
    assert_eq!(error, TooManyPorts);
    assert!(discovery.inbound(10_000).is_ok() && discovery.inbound(8080).is_ok());
    used.leave();
    used.leave();
    assert!(discovery.inbound(3).is_ok());
    assert!(!used.enter());
}

/// More answers than are remembered: a port whose own is gone is not opened.
#[tokio::test(start_paused = true)]
async fn a_port_whose_answer_is_gone_refuses_until_it_is_answered_for_again() {
    let _still = stand_still();
    let (discovery, mut control) = start().await;
    let mut streams = Vec::new();
    for port in 1..=u16::try_from(2 * MAX_PORTS + 1).unwrap() {
        // So that it is known which was used least recently.
        advance(Duration::from_millis(1)).await;
        let policy = discovery.inbound(port).unwrap();
        streams.push(answer(&mut control, port, "own").await);
        becomes(&policy, "own", Basis::Answer).await;
    }
    assert_eq!(
        discovery.inner.inbound.counts(),
        (MAX_PORTS + 1, MAX_PORTS),
        "and the admin port"
    );
    let again = discovery.inbound(1).unwrap();
    assert_eq!(after_the_wait(&again).await, Basis::Forgotten);
    assert_eq!(name(&again), is("forgotten", Basis::Forgotten));
    assert_refuses(&again);
    let second = discovery.inbound(3).unwrap();
    assert_eq!(name(&second), is("own", Basis::LastAnswer));
    let _stream = answer(&mut control, 1, "new").await;
    becomes(&again, "new", Basis::Answer).await;
}

//! Discovery against a control plane whose responses each test scripts.

use std::collections::HashMap;
use std::net::SocketAddr;

use mesh_core::endpoint::EndpointUpdate;
use mesh_core::policy::outbound::OutboundProtocol;
use mesh_runtime::metrics::Registry;
use tonic::Status;

use super::*;
use crate::config::tests::with_control_plane;
use crate::control::dns::Resolver;
use crate::control::{Client, Trust};
use crate::tests::fake_control_plane::ControlPlane;

mod ports;

const DST: &str = "10.0.0.7:80";

async fn start() -> (Discovery, ControlPlane) {
    start_with(&[]).await
}

async fn start_with(changes: &[(&str, Option<&str>)]) -> (Discovery, ControlPlane) {
    let control_plane = ControlPlane::start().await;
    let config = Arc::new(with_control_plane(control_plane.addr, changes));
    let registry = Registry::new();
    let discovery = discovery(&config, &registry);
    (discovery, control_plane)
}

/// Discovery with the configured control plane, which is dialled without TLS.
pub(crate) fn discovery(config: &Arc<Config>, registry: &Registry) -> Discovery {
    let resolver = Resolver::from_system(&config.control, registry).unwrap();
    let (_, credentials) = watch::channel(None);
    let client = |name, addr| {
        let trust = Trust::Certified(credentials.clone());
        Client::new(name, addr, &config.control, trust, &resolver, registry)
    };
    Discovery::new(
        config,
        client("destination", &config.discovery.destination),
        client("policy", &config.discovery.policy),
        Handle::current(),
    )
}

fn dst() -> SocketAddr {
    DST.parse().unwrap()
}

/// A policy whose parent has this name.
fn policy(name: &str) -> mesh_api::outbound::ExtendedPolicy {
    let mut policy = fallback::policy(&dst().into(), None, None, Duration::from_secs(1)).unwrap();
    policy.parent = mesh_core::meta::Meta::new_default(name);
    mesh_api::outbound::extended_to_proto(&policy)
}

fn endpoints(ports: &[u16]) -> mesh_api::proto::destination::Update {
    let endpoint = |port: &u16| Endpoint {
        addr: SocketAddr::from(([10, 1, 0, 1], *port)),
        weight: 1,
        labels: Default::default(),
        tls: None,
        hint: Default::default(),
        opaque_transport_port: None,
        authority_override: None,
        http2: None,
    };
    mesh_api::destination::update_to_proto(&EndpointUpdate::Add {
        endpoints: ports.iter().map(endpoint).collect(),
        set_labels: Default::default(),
    })
}

fn ports(set: &EndpointSet) -> Vec<u16> {
    set.endpoints.iter().map(|e| e.addr.port()).collect()
}

#[tokio::test]
async fn lookup_waits_for_first_snapshot_and_receives_updates() {
    let (discovery, mut control) = start().await;
    let looking = tokio::spawn({
        let discovery = discovery.clone();
        async move { discovery.outbound(dst()).await }
    });
    let profile = control.profiles.recv().await.unwrap();
    assert_eq!(profile.request.path, DST);
    assert_eq!(profile.request.context_token, "context");
    let profile = profile.stream();
    let stream = control.outbound.recv().await.unwrap();
    assert_eq!(stream.request.source_workload, "workload");
    let stream = stream.stream();
    stream.send(Ok(policy("one"))).unwrap();
    assert!(!looking.is_finished(), "the profile is still missing");
    let opaque = mesh_api::proto::destination::DestinationProfile {
        opaque_protocol: true,
        ..Default::default()
    };
    profile.send(Ok(opaque)).unwrap();

    let mut target = looking.await.unwrap().unwrap();
    assert_eq!(target.borrow().policy.parent.name(), "one");
    assert!(target.borrow().profile.as_ref().unwrap().opaque);
    stream.send(Ok(policy("two"))).unwrap();
    let changed = target.wait_for(|target| target.policy.parent.name() == "two");
    changed.await.unwrap();

    let again = discovery.outbound(dst()).await.unwrap();
    assert_eq!(again.borrow().policy.parent.name(), "two");
    assert!(
        control.outbound.try_recv().is_err(),
        "the destination is looked up once"
    );
}

#[tokio::test]
async fn destination_unknown_to_policy_service_is_forwarded() {
    let (discovery, mut control) = start().await;
    let (target, ()) = tokio::join!(discovery.outbound(dst()), async {
        let call = control.outbound.recv().await.unwrap();
        call.refuse(Status::not_found("no such service"));
        let call = control.profiles.recv().await.unwrap();
        call.refuse(Status::invalid_argument("no such address"));
    });
    let target = target.unwrap().borrow().clone();
    assert_eq!(
        (&target.destination, &target.profile),
        (&dst().into(), &None)
    );
    assert_eq!(target.policy.parent.name(), "fallback");
    assert!(matches!(
        target.policy.protocol,
        OutboundProtocol::Detect { .. }
    ));
}

/// The policy service knows only Services; the destination service tells whether a pod has a proxy.
#[tokio::test]
async fn pod_lookup_waits_while_destination_service_is_unavailable() {
    let (discovery, mut control) = start().await;
    let looking = tokio::spawn({
        let discovery = discovery.clone();
        async move { discovery.outbound(dst()).await }
    });
    let call = control.outbound.recv().await.unwrap();
    call.refuse(Status::not_found("no such service"));
    let call = control.profiles.recv().await.unwrap();
    call.refuse(Status::unavailable("restarting"));
    let again = control.profiles.recv().await.unwrap();
    assert!(!looking.is_finished(), "it completed without a profile");
    let meshed = Endpoint {
        hint: mesh_core::endpoint::ProtocolHint::Http2,
        ..Endpoint::plain("10.1.0.1:8080".parse().unwrap())
    };
    let profile = Profile {
        endpoint: Some(meshed.clone()),
        ..Profile::default()
    };
    let message = mesh_api::destination::profile_to_proto(&profile);
    again.stream().send(Ok(message)).unwrap();
    let target = looking.await.unwrap().unwrap().borrow().clone();
    assert_eq!(target.policy.parent.name(), "endpoint");
    let profile = target.profile.as_ref().unwrap();
    assert_eq!(profile.endpoint.as_ref(), Some(&meshed));
}

#[tokio::test]
async fn addresses_outside_profile_networks_have_no_profile() {
    let networks = ("DESTINATION_PROFILE_NETWORKS", Some("192.0.2.0/24"));
    let (discovery, mut control) = start_with(&[networks]).await;
    let (target, ()) = tokio::join!(discovery.outbound(dst()), async {
        let stream = control.outbound.recv().await.unwrap().stream();
        stream.send(Ok(policy("one"))).unwrap();
    });
    assert_eq!(target.unwrap().borrow().profile, None);
    assert!(control.profiles.try_recv().is_err());
}

#[tokio::test]
async fn rejected_lookup_fails_and_is_retried_by_next_connection() {
    let networks = ("DESTINATION_PROFILE_NETWORKS", Some(""));
    let (discovery, mut control) = start_with(&[networks]).await;
    let (target, ()) = tokio::join!(discovery.outbound(dst()), async {
        let call = control.outbound.recv().await.unwrap();
        call.refuse(Status::failed_precondition("bad workload"));
    });
    let error = target.unwrap_err().to_string();
    assert!(
        error.contains(DST) && error.contains("bad workload"),
        "{error}"
    );

    let (target, ()) = tokio::join!(discovery.outbound(dst()), async {
        let stream = control.outbound.recv().await.unwrap().stream();
        stream.send(Ok(policy("one"))).unwrap();
    });
    assert_eq!(target.unwrap().borrow().policy.parent.name(), "one");
}

#[tokio::test]
async fn endpoints_stay_in_force_during_control_plane_outage() {
    let networks = ("DESTINATION_PROFILE_NETWORKS", Some(""));
    let (discovery, mut control) = start_with(&[networks]).await;
    let authority = "web.shop.svc.cluster.local:80".into();
    let mut set = discovery.endpoints(&authority, None);
    assert_eq!(set.borrow().state, EndpointState::Pending);
    let stream = control.endpoints.recv().await.unwrap();
    assert_eq!(stream.request.path, &*authority);
    let stream = stream.stream();
    stream.send(Ok(endpoints(&[1, 2]))).unwrap();
    set.changed().await.unwrap();
    assert_eq!(ports(&set.borrow_and_update()), [1, 2]);

    stream.send(Err(Status::unavailable("restarting"))).unwrap();
    let again = control.endpoints.recv().await.unwrap();
    assert_eq!(ports(&set.borrow()), [1, 2]);
    again.refuse(Status::unavailable("still restarting"));
    let again = control.endpoints.recv().await.unwrap();
    assert!(!set.has_changed().unwrap());
    again.stream().send(Ok(endpoints(&[2, 3]))).unwrap();
    set.changed().await.unwrap();
    assert_eq!(
        ports(&set.borrow()),
        [2, 3],
        "the first update replaces all endpoints"
    );
}

#[tokio::test]
async fn endpoints_are_removed_when_authority_has_none() {
    for (exists, state) in [
        (true, EndpointState::Known),
        (false, EndpointState::DoesNotExist),
    ] {
        let (discovery, mut control) = start().await;
        let mut set = discovery.endpoints(&"web:80".into(), None);
        let stream = control.endpoints.recv().await.unwrap().stream();
        stream.send(Ok(endpoints(&[1, 2]))).unwrap();
        set.changed().await.unwrap();
        assert_eq!(ports(&set.borrow_and_update()), [1, 2]);
        drop(stream);
        let again = control.endpoints.recv().await.unwrap().stream();
        let none = mesh_api::destination::update_to_proto(&EndpointUpdate::Empty { exists });
        again.send(Ok(none)).unwrap();
        set.changed().await.unwrap();
        assert!(ports(&set.borrow()).is_empty(), "exists: {exists}");
        assert_eq!(set.borrow().state, state, "exists: {exists}");
    }
}

#[tokio::test]
async fn ended_stream_is_reopened_immediately() {
    let (discovery, mut control) = start().await;
    let mut set = discovery.endpoints(&"web:80".into(), None);
    let stream = control.endpoints.recv().await.unwrap().stream();
    stream.send(Ok(endpoints(&[1]))).unwrap();
    set.changed().await.unwrap();
    drop(stream);
    control.endpoints.recv().await.unwrap();
    assert_eq!(set.borrow().state, EndpointState::Known);
}

#[tokio::test]
async fn rejected_authority_does_not_exist() {
    let (discovery, mut control) = start().await;
    let mut set = discovery.endpoints(&"example.com:80".into(), None);
    let call = control.endpoints.recv().await.unwrap();
    call.refuse(Status::invalid_argument("not a service"));
    set.changed().await.unwrap();
    assert_eq!(set.borrow().state, EndpointState::DoesNotExist);
}

#[tokio::test]
async fn declared_ports_are_watched_from_start_with_default_policy() {
    let changes = [
        ("INBOUND_PORTS", Some("8080-8081")),
        ("INBOUND_DEFAULT_POLICY", Some("all-authenticated")),
        ("INBOUND_PORTS_DISABLE_PROTOCOL_DETECTION", Some("3306")),
    ];
    let (discovery, mut control) = start_with(&changes).await;
    let mut watched = HashMap::new();
    for _ in 0..3 {
        let call = control.inbound.recv().await.unwrap();
        watched.insert(call.request.port, call.stream());
    }
    let mut declared: Vec<_> = watched.keys().copied().collect();
    declared.sort_unstable();
    assert_eq!(declared, [4191, 8080, 8081]);

    let mut policy = discovery.inbound(8080).unwrap().updates();
    assert_eq!(policy.borrow().policy.meta.name(), "all-authenticated");
    let mut new = inbound::default_policy(&with_control_plane(control.addr, &[]).inbound, 8080);
    new.meta = mesh_core::meta::Meta::new_default("web");
    watched[&8080]
        .send(Ok(mesh_api::inbound::to_proto(&new)))
        .unwrap();
    policy.changed().await.unwrap();
    assert_eq!(policy.borrow().policy.meta.name(), "web");

    let opaque = discovery.inbound(3306).unwrap().updates();
    let protocol = opaque.borrow().policy.protocol.clone();
    assert_eq!(protocol, mesh_core::policy::inbound::ServerProtocol::Opaque);
    assert_eq!(control.inbound.recv().await.unwrap().request.port, 3306);
}

#[tokio::test]
async fn unwatched_entries_are_evicted() {
    let idle = ("OUTBOUND_DISCOVERY_IDLE_TIMEOUT", Some("10ms"));
    let (discovery, mut control) = start_with(&[idle]).await;
    let authority = "web:80".into();
    let set = discovery.endpoints(&authority, None);
    let stream = control.endpoints.recv().await.unwrap().stream();
    stream.send(Ok(endpoints(&[1]))).unwrap();
    drop(set);
    stream.closed().await;
    assert_eq!(
        discovery.endpoints(&authority, None).borrow().state,
        EndpointState::Pending
    );
}

#[tokio::test]
async fn declared_policies_are_complete_when_each_port_has_one() {
    let (discovery, mut control) = start_with(&[("INBOUND_PORTS", Some("8080"))]).await;
    let known = tokio::spawn({
        let discovery = discovery.clone();
        async move { discovery.wait_for_declared_policies().await }
    });
    let mut streams = Vec::new();
    for _ in 0..2 {
        let call = control.inbound.recv().await.unwrap();
        assert!(
            !known.is_finished(),
            "{:?}",
            discovery.ports_without_policy()
        );
        let port = u16::try_from(call.request.port).unwrap();
        assert!(discovery.ports_without_policy().contains(&port));
        // Equal to the policy in force before the response: nothing changes, but the port counts.
        let same = inbound::default_policy(&discovery.inner.context.config.inbound, port);
        let stream = call.stream();
        stream.send(Ok(mesh_api::inbound::to_proto(&same))).unwrap();
        streams.push(stream);
    }
    known.await.unwrap();
    assert!(discovery.ports_without_policy().is_empty());
}

#[tokio::test]
async fn number_of_inbound_profiles_is_bounded_until_one_is_unused() {
    let idle = ("INBOUND_DISCOVERY_IDLE_TIMEOUT", Some("100ms"));
    let (discovery, mut control) = start_with(&[idle]).await;
    let name = |n: usize| -> NameAddr { format!("{n}.svc.cluster.local:80").parse().unwrap() };
    let mut used: Vec<_> = (0..MAX_PROFILES)
        .map(|n| discovery.inbound_profile(&name(n)).unwrap())
        .collect();
    assert!(discovery.inbound_profile(&name(MAX_PROFILES)).is_none());
    assert!(discovery.inbound_profile(&name(0)).is_some());
    let mut streams = Vec::new();
    while streams.len() < MAX_PROFILES {
        streams.push(control.profiles.recv().await.unwrap().stream());
    }
    assert!(control.profiles.try_recv().is_err(), "one stream for each");
    used.pop();
    while discovery.inbound_profile(&name(MAX_PROFILES)).is_none() {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn number_of_names_is_bounded() {
    let (discovery, mut control) = start().await;
    let name = |n: usize| Destination::Name(format!("{n}.test:80").parse().unwrap());
    let mut pending = Vec::new();
    for n in 0..MAX_NAMES {
        let discovery = discovery.clone();
        let lookup_task = tokio::spawn(async move { discovery.outbound(name(n)).await });
        let lookup = control.outbound.recv().await.unwrap();
        let target = mesh_api::outbound::target(lookup.request.target.clone());
        let expected =
            mesh_core::policy::outbound::Target::Authority(format!("{n}.test:80").into());
        assert_eq!(target.unwrap(), expected);
        let stream = lookup.stream();
        if n == 0 {
            stream.send(Ok(policy("first"))).unwrap();
        }
        pending.push((lookup_task, stream));
    }
    let refused = discovery.outbound(name(MAX_NAMES)).await;
    assert_eq!(refused.unwrap_err(), DiscoveryError::TooManyNames);
    let first = discovery.outbound(name(0)).await.unwrap();
    assert_eq!(first.borrow().policy.parent.name(), "first");
}

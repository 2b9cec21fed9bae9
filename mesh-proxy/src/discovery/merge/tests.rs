//! Tests the rules of docs/reference/outbound-targets.md.

use std::net::SocketAddr;

use mesh_core::endpoint::{Endpoint, TlsPeer};
use mesh_core::identity::Identity;
use mesh_core::policy::outbound::{GrpcRoutes, HttpRoutes};
use mesh_core::profile::{ProfileRoute, RequestMatch};

use super::*;

const DST: &str = "10.0.0.7:80";
const WAIT: Duration = Duration::from_secs(10);

fn dst() -> SocketAddr {
    DST.parse().unwrap()
}

fn name() -> Destination {
    Destination::Name("web.shop.svc.cluster.local:80".parse().unwrap())
}

fn meshed() -> Endpoint {
    Endpoint {
        tls: Some(TlsPeer {
            id: Identity::parse("web.shop").unwrap(),
            server_name: "web.shop".into(),
        }),
        opaque_transport_port: Some(4143),
        ..Endpoint::plain("10.1.0.1:8080".parse().unwrap())
    }
}

fn of_service(opaque: bool) -> Profile {
    Profile {
        fqn: Some("web.shop.svc.cluster.local".into()),
        opaque,
        ..Profile::default()
    }
}

fn of_endpoint(endpoint: Endpoint) -> Profile {
    Profile {
        endpoint: Some(endpoint),
        ..Profile::default()
    }
}

fn service() -> BackendTarget {
    BackendTarget::Balance {
        authority: "web.shop.svc.cluster.local:80".into(),
        load: PeakEwma::default(),
        queue: Queue::default(),
    }
}

fn plain() -> BackendTarget {
    BackendTarget::Forward(Box::new(Endpoint::plain(dst())))
}

/// A policy that detects the protocol and sends everything to one backend.
fn detect(target: BackendTarget) -> OutboundProtocol {
    fallback::policy(&dst().into(), None, Some(target), WAIT)
        .unwrap()
        .protocol
}

fn opaque(target: BackendTarget, verdict: TcpVerdict) -> OutboundProtocol {
    let OutboundProtocol::Detect { opaque, .. } = detect(target) else {
        panic!("it is detected");
    };
    OutboundProtocol::Opaque(opaque.map(|route| TcpRoute { verdict, ..route }))
}

fn http1(target: BackendTarget) -> OutboundProtocol {
    let OutboundProtocol::Detect { http1, .. } = detect(target) else {
        panic!("it is detected");
    };
    OutboundProtocol::Http1(http1)
}

fn policy(protocol: OutboundProtocol) -> PolicyResponse {
    let parent = Meta::new_default("policy");
    PolicyResponse::Policy(Box::new(OutboundPolicy { parent, protocol }))
}

fn profile(profile: Profile) -> ProfileResponse {
    ProfileResponse::Profile(Box::new(profile))
}

/// The protocol of a target and the targets of its backends, without duplicates.
fn summary(merged: Option<Result<OutboundTarget, DiscoveryError>>) -> String {
    let mut target = match merged {
        None => return "wait".to_owned(),
        Some(Err(error)) => return format!("error: {error}"),
        Some(Ok(target)) => target,
    };
    let protocol = match &target.policy.protocol {
        OutboundProtocol::Detect { .. } => "detect",
        OutboundProtocol::Http1(_) => "http1",
        OutboundProtocol::Http2(_) => "http2",
        OutboundProtocol::Grpc(_) => "grpc",
        OutboundProtocol::Opaque(_) => "opaque",
        OutboundProtocol::Tls(_) => "tls",
    };
    let mut targets: Vec<String> = distributions(&mut target.policy.protocol)
        .into_iter()
        .flat_map(backends)
        .map(|backend| match &backend.backend.target {
            BackendTarget::Balance { authority, .. } => authority.to_string(),
            BackendTarget::None => "nowhere".to_owned(),
            BackendTarget::Forward(endpoint) if endpoint.tls.is_some() => {
                format!("TLS {}", endpoint.addr)
            }
            BackendTarget::Forward(endpoint) => format!("plain {}", endpoint.addr),
        })
        .collect();
    targets.sort();
    targets.dedup();
    format!("{protocol} {}", targets.join(" "))
}

fn check(profile: ProfileResponse, policy: PolicyResponse, expect: &str) {
    let case = format!("{profile:?} and {policy:?}");
    assert_eq!(
        summary(merge(&dst().into(), profile, policy, WAIT)),
        expect,
        "{case}"
    );
}

const SERVICE: &str = "web.shop.svc.cluster.local:80";

#[test]
fn opaque_profile_applies_only_if_policy_detects_protocol() {
    let both = |opaque: bool, protocol: OutboundProtocol, expect: &str| {
        check(profile(of_service(opaque)), policy(protocol), expect);
    };
    both(false, detect(service()), &format!("detect {SERVICE}"));
    both(true, detect(service()), &format!("opaque {SERVICE}"));
    // The port's appProtocol is HTTP, but the port is also in the list of opaque ports.
    both(true, http1(service()), &format!("http1 {SERVICE}"));
    let http2 = OutboundProtocol::Http2(HttpRoutes::default());
    both(true, http2, "http2 ");
    let grpc = OutboundProtocol::Grpc(GrpcRoutes::default());
    both(true, grpc, "grpc ");
    both(true, OutboundProtocol::Tls(Vec::new()), "tls ");
    for is_opaque in [true, false] {
        let protocol = opaque(service(), TcpVerdict::Forward);
        both(is_opaque, protocol, &format!("opaque {SERVICE}"));
    }
    // Opaque connections without a route are refused, not sent to the address.
    let OutboundProtocol::Detect { http1, http2, .. } = detect(service()) else {
        panic!("it is detected");
    };
    let without = OutboundProtocol::Detect {
        timeout: WAIT,
        opaque: None,
        http1,
        http2,
    };
    both(true, without, "opaque ");
}

#[test]
fn profile_target_replaces_passthrough_backend() {
    let unmeshed = Endpoint::plain(dst());
    let at = |of: Profile, answer: PolicyResponse, expect: &str| {
        check(profile(of), answer, expect);
    };
    let passthrough = || policy(detect(plain()));
    for answer in [PolicyResponse::Unknown, passthrough()] {
        let expect = format!("detect {SERVICE}");
        at(of_service(false), answer.clone(), &expect);
        at(
            of_endpoint(meshed()),
            answer.clone(),
            "detect TLS 10.1.0.1:8080",
        );
        at(
            of_endpoint(unmeshed.clone()),
            answer.clone(),
            "detect plain 10.0.0.7:80",
        );
        at(
            Profile::default(),
            answer.clone(),
            "detect plain 10.0.0.7:80",
        );
        let opaque_endpoint = Profile {
            opaque: true,
            ..of_endpoint(meshed())
        };
        at(opaque_endpoint, answer, "opaque TLS 10.1.0.1:8080");
    }
    // A policy with another backend is not changed, and a forbidding policy still forbids.
    at(
        of_endpoint(meshed()),
        policy(detect(service())),
        &format!("detect {SERVICE}"),
    );
    let forbidden = policy(opaque(plain(), TcpVerdict::Forbidden));
    let merged = merge(
        &dst().into(),
        profile(of_endpoint(meshed())),
        forbidden,
        WAIT,
    );
    let target = merged.unwrap().unwrap();
    let OutboundProtocol::Opaque(Some(route)) = target.policy.protocol else {
        panic!("it stays opaque");
    };
    assert_eq!(route.verdict, TcpVerdict::Forbidden);
}

#[test]
fn missing_profile_is_tolerated_only_with_own_backends() {
    let rejected = || ProfileResponse::Rejected("two pods".to_owned());
    let rejection = "error: the destination service rejected the lookup of 10.0.0.7:80: two pods";
    let service = || policy(detect(service()));
    let balanced = format!("detect {SERVICE}");
    check(ProfileResponse::None, service(), &balanced);
    check(ProfileResponse::Unavailable, service(), &balanced);
    check(rejected(), service(), &balanced);
    for open in [PolicyResponse::Unknown, policy(detect(plain()))] {
        check(
            ProfileResponse::None,
            open.clone(),
            "detect plain 10.0.0.7:80",
        );
        check(ProfileResponse::Unavailable, open.clone(), "wait");
        check(rejected(), open, rejection);
    }
    let rejected = PolicyResponse::Rejected("no".to_owned());
    let expect = "error: the policy service rejected the lookup of 10.0.0.7:80: no";
    check(profile(of_endpoint(meshed())), rejected, expect);
}

#[test]
fn profile_overrides_apply_only_if_policy_allows_connections() {
    let split = Profile {
        overrides: vec![WeightedAuthority {
            authority: "other.shop.svc.cluster.local:80".into(),
            weight: 1,
        }],
        ..of_service(true)
    };
    let other = "opaque other.shop.svc.cluster.local:80";
    check(profile(split.clone()), policy(detect(service())), other);
    let forbidden = policy(opaque(service(), TcpVerdict::Forbidden));
    let expect = format!("opaque {SERVICE}");
    check(profile(split.clone()), forbidden, &expect);
    check(
        profile(split),
        policy(OutboundProtocol::Opaque(None)),
        "opaque ",
    );
}

/// Such routes would forward to the address itself and bypass the policy.
#[test]
fn routes_of_profile_without_service_and_endpoint_are_dropped() {
    let routes = |of: Profile| {
        let route = ProfileRoute {
            condition: RequestMatch::All(Vec::new()),
            response_classes: Vec::new(),
            labels: Default::default(),
            retryable: false,
            timeout: None,
        };
        let with_route = Profile {
            routes: [route].into(),
            ..of
        };
        let merged = merge(
            &dst().into(),
            profile(with_route),
            policy(detect(service())),
            WAIT,
        );
        merged.unwrap().unwrap().profile.unwrap().routes.len()
    };
    assert_eq!(routes(Profile::default()), 0);
    assert_eq!(routes(of_service(false)), 1);
    assert_eq!(routes(of_endpoint(meshed())), 1);
}

#[test]
fn name_needs_policy_or_profile() {
    let unknown = || Err(DiscoveryError::UnknownName { dst: name() });
    for profile in [
        ProfileResponse::None,
        ProfileResponse::Profile(Box::default()),
    ] {
        let merged = merge(&name(), profile, PolicyResponse::Unknown, WAIT);
        assert_eq!(merged.unwrap(), unknown());
    }
    let waiting = merge(
        &name(),
        ProfileResponse::Unavailable,
        PolicyResponse::Unknown,
        WAIT,
    );
    assert!(waiting.is_none());
    let policy = policy(detect(service()));
    let by_policy = merge(&name(), ProfileResponse::None, policy, WAIT);
    assert_eq!(by_policy.unwrap().unwrap().destination, name());
    let by_profile = merge(
        &name(),
        profile(of_service(false)),
        PolicyResponse::Unknown,
        WAIT,
    );
    let by_profile = by_profile.unwrap().unwrap().policy.protocol;
    assert_eq!(by_profile, detect(service()));
}

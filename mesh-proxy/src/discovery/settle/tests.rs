//! The table of docs/reference/outbound-targets.md.

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
    }
}

fn plain() -> BackendTarget {
    BackendTarget::Forward(Box::new(Endpoint::plain(dst())))
}

/// A policy that finds out what is spoken and sends all of it to one backend.
fn detect(target: BackendTarget) -> OutboundProtocol {
    fallback::policy(dst(), None, Some(target), WAIT).protocol
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

fn policy(protocol: OutboundProtocol) -> PolicyAnswer {
    let parent = Meta::new_default("policy");
    PolicyAnswer::Policy(Box::new(OutboundPolicy { parent, protocol }))
}

fn profile(profile: Profile) -> ProfileAnswer {
    ProfileAnswer::Profile(Box::new(profile))
}

/// How connections are taken, and where each backend leads, once each.
fn summary(settled: Option<Result<OutboundTarget, DiscoveryError>>) -> String {
    let mut target = match settled {
        None => return "wait".to_owned(),
        Some(Err(error)) => return format!("refuse: {error}"),
        Some(Ok(target)) => target,
    };
    let how = match &target.policy.protocol {
        OutboundProtocol::Detect { .. } => "detect",
        OutboundProtocol::Http1(_) => "http1",
        OutboundProtocol::Http2(_) => "http2",
        OutboundProtocol::Grpc(_) => "grpc",
        OutboundProtocol::Opaque(_) => "opaque",
        OutboundProtocol::Tls(_) => "tls",
    };
    let mut places: Vec<String> = distributions(&mut target.policy.protocol)
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
    places.sort();
    places.dedup();
    format!("{how} {}", places.join(" "))
}

fn check(profile: ProfileAnswer, policy: PolicyAnswer, expect: &str) {
    let case = format!("{profile:?} and {policy:?}");
    assert_eq!(
        summary(settle(dst(), profile, policy, WAIT)),
        expect,
        "{case}"
    );
}

const SERVICE: &str = "web.shop.svc.cluster.local:80";

#[test]
fn an_opaque_profile_decides_only_what_the_policy_leaves_open() {
    let both = |opaque: bool, protocol: OutboundProtocol, expect: &str| {
        let known = profile(of_service(opaque));
        check(known, policy(protocol), expect);
    };
    both(false, detect(service()), &format!("detect {SERVICE}"));
    both(true, detect(service()), &format!("opaque {SERVICE}"));
    // The port's appProtocol says HTTP, and the list of opaque ports has it too.
    both(true, http1(service()), &format!("http1 {SERVICE}"));
    let http2 = OutboundProtocol::Http2(HttpRoutes::default());
    both(true, http2, "http2 ");
    let grpc = OutboundProtocol::Grpc(GrpcRoutes::default());
    both(true, grpc, "grpc ");
    both(true, OutboundProtocol::Tls(Vec::new()), "tls ");
    for said in [true, false] {
        let protocol = opaque(service(), TcpVerdict::Forward);
        both(said, protocol, &format!("opaque {SERVICE}"));
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
fn what_is_known_of_the_address_takes_the_place_of_the_address() {
    let unmeshed = Endpoint::plain(dst());
    let at = |known: Profile, answer: PolicyAnswer, expect: &str| {
        check(profile(known), answer, expect);
    };
    let passage = || policy(detect(plain()));
    for answer in [PolicyAnswer::Unknown, passage()] {
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
    // A policy that knows where to send is not corrected, and one that forbids still does.
    at(
        of_endpoint(meshed()),
        policy(detect(service())),
        &format!("detect {SERVICE}"),
    );
    let forbidden = policy(opaque(plain(), TcpVerdict::Forbidden));
    let settled = settle(dst(), profile(of_endpoint(meshed())), forbidden, WAIT);
    let target = settled.unwrap().unwrap();
    let OutboundProtocol::Opaque(Some(route)) = target.policy.protocol else {
        panic!("it stays opaque");
    };
    assert_eq!(route.verdict, TcpVerdict::Forbidden);
}

#[test]
fn without_a_profile_only_a_policy_that_says_where_to_send_is_enough() {
    let refused = || ProfileAnswer::Refused("two pods".to_owned());
    let refusal = "refuse: the destination service refuses to answer for 10.0.0.7:80: two pods";
    let service = || policy(detect(service()));
    let balanced = format!("detect {SERVICE}");
    check(ProfileAnswer::None, service(), &balanced);
    check(ProfileAnswer::Unavailable, service(), &balanced);
    check(refused(), service(), &balanced);
    for open in [PolicyAnswer::Unknown, policy(detect(plain()))] {
        check(
            ProfileAnswer::None,
            open.clone(),
            "detect plain 10.0.0.7:80",
        );
        check(ProfileAnswer::Unavailable, open.clone(), "wait");
        check(refused(), open, refusal);
    }
    let no = PolicyAnswer::Refused("no".to_owned());
    let said = "refuse: the policy service refuses to answer for 10.0.0.7:80: no";
    check(profile(of_endpoint(meshed())), no, said);
}

#[test]
fn a_split_applies_where_the_policy_lets_connections_pass() {
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

/// They would be routes to the address itself, whatever the policy says of it.
#[test]
fn routes_of_a_profile_that_names_nothing_are_dropped() {
    let routes = |known: Profile| {
        let route = ProfileRoute {
            condition: RequestMatch::All(Vec::new()),
            response_classes: Vec::new(),
            labels: Default::default(),
            retryable: false,
            timeout: None,
        };
        let known = Profile {
            routes: vec![route],
            ..known
        };
        let settled = settle(dst(), profile(known), policy(detect(service())), WAIT);
        settled.unwrap().unwrap().profile.unwrap().routes.len()
    };
    assert_eq!(routes(Profile::default()), 0);
    assert_eq!(routes(of_service(false)), 1);
    assert_eq!(routes(of_endpoint(meshed())), 1);
}

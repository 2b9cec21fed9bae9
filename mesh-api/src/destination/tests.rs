//! Round trips of random endpoints and profiles, and partly invalid messages.

use std::sync::Arc;
use std::time::Duration;

use mesh_core::profile::{
    Profile, ProfileRoute, RequestMatch, ResponseClass, ResponseMatch, WeightedAuthority,
};
use mesh_core::resilience::RetryBudget;
use mesh_core::route::AnchoredRegex;
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

use super::*;
use crate::tests::arbitrary::{self, record};

fn updates() -> impl Strategy<Value = EndpointUpdate> {
    prop_oneof![
        record!(EndpointUpdate::Add {
            endpoints: vec(arbitrary::endpoint(), 0..3),
            set_labels: arbitrary::labels(),
        }),
        vec(arbitrary::socket_addr(), 0..3).prop_map(EndpointUpdate::Remove),
        any::<bool>().prop_map(|exists| EndpointUpdate::Empty { exists }),
    ]
}

fn request_matches() -> impl Strategy<Value = RequestMatch> {
    let leaf = prop_oneof![
        Just(RequestMatch::Path(AnchoredRegex::new("/a.*").unwrap())),
        arbitrary::method().prop_map(RequestMatch::Method),
    ];
    leaf.prop_recursive(3, 12, 3, |part| {
        prop_oneof![
            vec(part.clone(), 0..3).prop_map(RequestMatch::All),
            vec(part.clone(), 0..3).prop_map(RequestMatch::Any),
            part.prop_map(|part| RequestMatch::Not(Box::new(part))),
        ]
    })
}

fn response_matches() -> impl Strategy<Value = ResponseMatch> {
    let leaf = arbitrary::statuses().prop_map(|range| ResponseMatch::Status {
        min: *range.start(),
        max: *range.end(),
    });
    leaf.prop_recursive(3, 12, 3, |part| {
        prop_oneof![
            vec(part.clone(), 0..3).prop_map(ResponseMatch::All),
            vec(part.clone(), 0..3).prop_map(ResponseMatch::Any),
            part.prop_map(|part| ResponseMatch::Not(Box::new(part))),
        ]
    })
}

fn profile_routes() -> impl Strategy<Value = ProfileRoute> {
    let class = record!(ResponseClass {
        condition: response_matches(),
        is_failure: any::<bool>(),
    });
    record!(ProfileRoute {
        condition: request_matches(),
        response_classes: vec(class, 0..3),
        labels: arbitrary::labels(),
        retryable: any::<bool>(),
        timeout: option::of(arbitrary::duration()),
    })
}

fn profiles() -> impl Strategy<Value = Profile> {
    let budget = record!(RetryBudget {
        ttl: (1u64..=60).prop_map(Duration::from_secs),
        min_per_second: any::<u32>(),
        ratio: (0u16..=1000).prop_map(f32::from),
    });
    let overrides = record!(WeightedAuthority {
        authority: "[a-z]{1,5}(:[0-9]{1,4})?".prop_map(Arc::from),
        weight: 1u32..,
    });
    let fqn = "[a-z]{1,5}(\\.[a-z]{1,5}){0,3}".prop_map(Arc::from);
    record!(Profile {
        fqn: option::of(fqn),
        opaque: any::<bool>(),
        routes: vec(profile_routes(), 0..3).prop_map(Arc::from),
        retry_budget: option::of(budget),
        overrides: vec(overrides, 0..3),
        endpoint: option::of(arbitrary::endpoint()),
        parent: option::of(arbitrary::meta()),
        source: option::of(arbitrary::meta()),
        uid: option::of("[a-f0-9-]{1,36}".prop_map(Arc::from)),
    })
}

proptest! {
    #[test]
    fn updates_survive_the_wire(update in updates()) {
        let seen = endpoint_update(update_to_proto(&update));
        prop_assert_eq!(seen, Ok(Update { update, skipped: Vec::new() }));
    }

    #[test]
    fn profiles_survive_the_wire(sent in profiles()) {
        prop_assert_eq!(extended_profile(extended_profile_to_proto(&sent)), Ok(sent));
    }
}

fn meshed_address() -> wire::WeightedAddr {
    use wire::tls_identity::{DnsLikeIdentity, Strategy};
    let addr: SocketAddr = "10.0.0.1:80".parse().unwrap();
    wire::WeightedAddr {
        addr: Some(addr.into()),
        tls_identity: Some(wire::TlsIdentity {
            server_name: None,
            strategy: Some(Strategy::DnsLikeIdentity(DnsLikeIdentity {
                name: "web.ns.example".to_owned(),
            })),
        }),
        ..wire::WeightedAddr::default()
    }
}

#[test]
fn server_name_defaults_to_identity() {
    let tls = endpoint(meshed_address()).unwrap().tls.unwrap();
    assert_eq!(&*tls.server_name, "web.ns.example");
}

/// An invalid address does not affect others, and is never used with its valid fields alone.
#[test]
fn invalid_addresses_are_skipped_and_named() {
    let broken = |change: fn(&mut wire::WeightedAddr)| {
        let mut addr = meshed_address();
        change(&mut addr);
        addr
    };
    let update = wire::Update {
        update: Some(update::Update::Add(wire::WeightedAddrSet {
            addrs: vec![
                broken(|addr| addr.addr = None),
                broken(|addr| addr.tls_identity = Some(wire::TlsIdentity::default())),
                meshed_address(),
                broken(|addr| {
                    let transport = wire::protocol_hint::OpaqueTransport {
                        inbound_port: 65536,
                    };
                    addr.protocol_hint = Some(wire::ProtocolHint {
                        opaque_transport: Some(transport),
                        protocol: None,
                    });
                }),
            ],
            metric_labels: Default::default(),
        })),
    };
    let seen = endpoint_update(update).unwrap();
    let EndpointUpdate::Add { endpoints, .. } = seen.update else {
        panic!("{seen:?}");
    };
    assert_eq!(endpoints, [endpoint(meshed_address()).unwrap()]);
    let skipped: Vec<String> = seen.skipped.iter().map(ToString::to_string).collect();
    assert_eq!(
        skipped,
        [
            "add.addrs[0].addr: is missing",
            "add.addrs[1].tls_identity.strategy: has a kind that this version does not support",
            "add.addrs[3].protocol_hint.opaque_transport.inbound_port: 65536 is not a valid port",
        ]
    );
}

#[test]
fn invalid_optional_parts_of_profile_are_omitted() {
    let seen = profile(wire::DestinationProfile {
        fully_qualified_name: "not a name".to_owned(),
        retry_budget: Some(wire::RetryBudget {
            retry_ratio: 0.2,
            min_retries_per_second: 10,
            ttl: None,
        }),
        dst_overrides: vec![
            wire::WeightedDst {
                authority: "a:80".to_owned(),
                weight: 0,
                backend_ref: None,
            },
            wire::WeightedDst {
                authority: "not an authority".to_owned(),
                weight: 1,
                backend_ref: None,
            },
        ],
        ..wire::DestinationProfile::default()
    });
    assert_eq!(seen, Ok(Profile::default()));
}

#[test]
fn invalid_field_of_profile_is_named() {
    let route = |condition| wire::DestinationProfile {
        routes: vec![wire::Route {
            condition,
            ..wire::Route::default()
        }],
        ..wire::DestinationProfile::default()
    };
    let error = |message| profile(message).unwrap_err().to_string();
    assert_eq!(error(route(None)), "routes[0].condition: is missing");
    let path = wire::RequestMatch {
        r#match: Some(wire::request_match::Match::Path(wire::PathMatch {
            regex: "[".to_owned(),
        })),
    };
    assert_eq!(
        error(route(Some(wire::RequestMatch {
            r#match: Some(wire::request_match::Match::Not(Box::new(path))),
        }))),
        "routes[0].condition.not.path.regex: \"[\" is not a valid regular expression"
    );
}

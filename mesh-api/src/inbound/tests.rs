//! Round trips of random policies, and the errors of invalid messages.

use std::time::Duration;

use mesh_core::meta::{Meta, Resource};
use mesh_core::policy::inbound::{DefaultPolicy, InboundRule};
use mesh_core::route::{Route, Rule};
use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::tests::arbitrary::{self, record};

fn authorizations() -> impl Strategy<Value = Arc<[Authorization]>> {
    let network = record!(Network {
        net: arbitrary::network(),
        except: vec(arbitrary::network(), 0..2),
    });
    let suffix = vec(arbitrary::text(), 0..3).prop_map(Suffix);
    let authentication = prop_oneof![
        Just(Authentication::Unauthenticated),
        Just(Authentication::TlsUnauthenticated),
        record!(Authentication::TlsAuthenticated {
            identities: vec(arbitrary::identity(), 0..2),
            suffixes: vec(suffix, 0..2),
        }),
    ];
    let authorization = record!(Authorization {
        meta: arbitrary::meta(),
        networks: vec(network, 0..3),
        authentication,
    });
    vec(authorization, 0..3).prop_map(Into::into)
}

fn route<M: Clone + std::fmt::Debug + 'static>(
    matches: impl Strategy<Value = M> + 'static,
    filter: impl Strategy<Value = mesh_core::route::filter::Filter> + 'static,
) -> impl Strategy<Value = Route<M, InboundRule>> {
    let rule = (vec(matches, 0..3), vec(filter, 0..2));
    (
        arbitrary::meta(),
        vec(arbitrary::host(), 0..2),
        authorizations(),
        vec(rule, 1..3),
    )
        .prop_map(|(meta, hosts, authorizations, rules)| Route {
            meta,
            hosts,
            rules: rules
                .into_iter()
                .map(|(matches, filters)| Rule {
                    matches,
                    action: InboundRule {
                        filters,
                        authorizations: authorizations.clone(),
                    },
                })
                .collect(),
        })
}

fn protocols() -> impl Strategy<Value = ServerProtocol> {
    let rate_limit = record!(RateLimit {
        meta: arbitrary::meta(),
        total: prop::option::of(1u32..1000),
        identity: prop::option::of(1u32..1000),
        overrides: vec((vec(arbitrary::identity(), 0..2), 1u32..1000), 0..2),
    });
    let http_filter = prop_oneof![
        arbitrary::request_headers(),
        arbitrary::redirect(),
        arbitrary::http_failure(),
    ];
    let http = record!(HttpServer {
        routes: vec(route(arbitrary::http_match(), http_filter), 0..3),
        rate_limit: prop::option::of(rate_limit),
    })
    .boxed();
    let grpc_filter = prop_oneof![arbitrary::request_headers(), arbitrary::grpc_failure()];
    let grpc = vec(route(arbitrary::grpc_match(), grpc_filter), 0..3);
    prop_oneof![
        record!(ServerProtocol::Detect {
            timeout: arbitrary::duration(),
            http: http.clone(),
        }),
        http.clone().prop_map(ServerProtocol::Http1),
        http.prop_map(ServerProtocol::Http2),
        grpc.prop_map(ServerProtocol::Grpc),
        Just(ServerProtocol::Opaque),
        Just(ServerProtocol::Tls),
    ]
}

/// The labels of a server do not contain the namespace.
fn server_meta() -> impl Strategy<Value = Meta> {
    prop_oneof![
        arbitrary::text().prop_map(Meta::Default),
        (arbitrary::text(), arbitrary::text(), arbitrary::text())
            .prop_map(|(group, kind, name)| Meta::Resource(Resource::new(&group, &kind, "", name))),
    ]
}

proptest! {
    #[test]
    fn policies_survive_the_wire(
        meta in server_meta(),
        protocol in protocols(),
        authorizations in authorizations(),
        is_terminating in any::<bool>(),
    ) {
        let policy = ServerPolicy { meta, protocol, authorizations, is_terminating };
        prop_assert_eq!(server_policy(to_proto(&policy)), Ok(policy));
    }
}

fn server() -> wire::Server {
    let networks = ["10.0.0.0/8".parse().unwrap()];
    to_proto(&DefaultPolicy::ClusterAuthenticated.server_policy(
        &networks,
        Duration::from_secs(10),
        false,
    ))
}

#[test]
fn invalid_field_is_named() {
    let check = |change: fn(&mut wire::Server), expect: &str| {
        let mut server = server();
        change(&mut server);
        assert_eq!(server_policy(server).unwrap_err().to_string(), expect);
    };
    check(|s| s.protocol = None, "protocol: is missing");
    check(
        |s| s.protocol = Some(wire::ProxyProtocol { kind: None }),
        "protocol.kind: has a kind that this version does not support",
    );
    check(|s| s.labels.clear(), "labels[\"kind\"]: is missing");
    check(
        |s| s.authorizations[0].authentication = None,
        "authorizations[0].authentication: is missing",
    );
    check(
        |s| {
            if let Some(net) = &mut s.authorizations[0].networks[0].net {
                net.prefix_len = 33;
            }
        },
        "authorizations[0].networks[0].net.prefix_len: 33 is not a valid prefix length of this address",
    );
    check(
        |s| {
            if let Some(wire::ProxyProtocol {
                kind: Some(Kind::Detect(detect)),
            }) = &mut s.protocol
                && let Some(path) = &mut detect.http_routes[0].rules[0].matches[0].path
            {
                path.kind = Some(crate::proto::http_route::path_match::Kind::Regex(
                    "(".into(),
                ));
            }
        },
        "protocol.detect.http_routes[0].rules[0].matches[0].path.regex: \"(\" is not a valid regular expression",
    );
    check(
        |s| {
            if let Some(wire::ProxyProtocol {
                kind: Some(Kind::Detect(detect)),
            }) = &mut s.protocol
            {
                detect.timeout = None;
            }
        },
        "protocol.detect.timeout: is missing",
    );
}

#[test]
fn authorization_is_named_by_metadata_or_labels() {
    let server = server();
    let authz = &server.authorizations[0];
    let name = "cluster-authenticated";
    assert_eq!(authz.labels["name"], name);
    assert_eq!(authz.labels["kind"], "default");
    assert_eq!(authz.labels["group"], "");
    assert_eq!((server.labels.len(), server.server_ips.len()), (3, 0));
    assert_eq!(
        meta(authz.metadata.clone().unwrap()),
        Ok(Meta::new_default(name))
    );
}

/// An unsupported filter fails the rule's requests; it neither invalidates the policy nor is it
/// ignored.
#[test]
fn unknown_filter_fails_requests() {
    let filter = route::http::filter(wire::http_route::Filter { kind: None }).unwrap();
    assert!(matches!(
        filter,
        mesh_core::route::filter::Filter::InternalError(_)
    ));
}

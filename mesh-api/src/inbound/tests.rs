//! Round trips of random policies, and the errors of invalid messages.

use std::time::Duration;

use mesh_core::meta::{Meta, Resource};
use mesh_core::policy::inbound::DefaultPolicy;
use proptest::prelude::*;

use super::*;
use crate::arbitrary;

fn authorizations() -> impl Strategy<Value = Arc<[Authorization]>> {
    let network = (
        arbitrary::network(),
        prop::collection::vec(arbitrary::network(), 0..2),
    )
        .prop_map(|(net, except)| Network { net, except });
    let suffix = prop::collection::vec(arbitrary::text(), 0..3).prop_map(Suffix);
    let authentication = prop_oneof![
        Just(Authentication::Unauthenticated),
        Just(Authentication::TlsUnauthenticated),
        (
            prop::collection::vec(arbitrary::identity(), 0..2),
            prop::collection::vec(suffix, 0..2),
        )
            .prop_map(|(identities, suffixes)| Authentication::TlsAuthenticated {
                identities,
                suffixes,
            }),
    ];
    let authorization = (
        arbitrary::meta(),
        prop::collection::vec(network, 0..3),
        authentication,
    )
        .prop_map(|(meta, networks, authentication)| Authorization {
            meta,
            networks,
            authentication,
        });
    prop::collection::vec(authorization, 0..3).prop_map(Into::into)
}

fn route<M: Clone + std::fmt::Debug + 'static>(
    matches: impl Strategy<Value = M> + 'static,
    filter: impl Strategy<Value = mesh_core::route::filter::Filter> + 'static,
) -> impl Strategy<Value = Route<M, InboundRule>> {
    let rule = (
        prop::collection::vec(matches, 0..3),
        prop::collection::vec(filter, 0..2),
    );
    (
        arbitrary::meta(),
        prop::collection::vec(arbitrary::host(), 0..2),
        authorizations(),
        prop::collection::vec(rule, 1..3),
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
    let limit = prop::option::of(1u32..1000);
    let rate_limit = (
        arbitrary::meta(),
        limit.clone(),
        limit,
        prop::collection::vec(
            (
                prop::collection::vec(arbitrary::identity(), 0..2),
                1u32..1000,
            ),
            0..2,
        ),
    )
        .prop_map(|(meta, total, identity, overrides)| RateLimit {
            meta,
            total,
            identity,
            overrides,
        });
    let http_filter = prop_oneof![
        arbitrary::request_headers(),
        arbitrary::redirect(),
        arbitrary::http_failure(),
    ];
    let http = (
        prop::collection::vec(route(arbitrary::http_match(), http_filter), 0..3),
        prop::option::of(rate_limit),
    )
        .prop_map(|(routes, rate_limit)| HttpServer { routes, rate_limit })
        .boxed();
    let grpc_filter = prop_oneof![arbitrary::request_headers(), arbitrary::grpc_failure()];
    let grpc = prop::collection::vec(route(arbitrary::grpc_match(), grpc_filter), 0..3);
    prop_oneof![
        (arbitrary::duration(), http.clone())
            .prop_map(|(timeout, http)| ServerProtocol::Detect { timeout, http }),
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
        (arbitrary::text(), arbitrary::text(), arbitrary::text()).prop_map(
            |(group, kind, name)| {
                Meta::Resource(Resource {
                    group,
                    kind,
                    namespace: "".into(),
                    name,
                    section: "".into(),
                    port: None,
                })
            }
        ),
    ]
}

proptest! {
    #[test]
    fn policies_survive_the_wire(
        meta in server_meta(),
        protocol in protocols(),
        authorizations in authorizations(),
    ) {
        let policy = ServerPolicy { meta, protocol, authorizations };
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
    assert_eq!(
        meta(authz.metadata.clone().unwrap()),
        Ok(Meta::new_default(name))
    );
}

/// An unsupported filter fails the rule's requests; it neither invalidates the policy nor is it
/// ignored.
#[test]
fn unknown_filter_fails_requests() {
    let filter = filter::http(wire::http_route::Filter { kind: None }).unwrap();
    assert!(matches!(
        filter,
        mesh_core::route::filter::Filter::InternalError(_)
    ));
}

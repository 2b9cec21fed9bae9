//! Tables of single decisions, and random decisions compared with a second, slower implementation.

use std::sync::Arc;

use proptest::prelude::*;

use super::*;
use crate::meta::Meta;
use crate::policy::inbound::DefaultPolicy;

fn network(net: &str, except: &[&str]) -> Network {
    Network {
        net: net.parse().unwrap(),
        except: except.iter().map(|net| net.parse().unwrap()).collect(),
    }
}

fn id(text: &str) -> Identity {
    Identity::parse(text).unwrap()
}

fn suffix(parts: &[&str]) -> Suffix {
    Suffix(parts.iter().map(|part| Arc::from(*part)).collect())
}

fn authorization(networks: Vec<Network>, authentication: Authentication) -> Authorization {
    Authorization {
        meta: Meta::new_default("test"),
        networks,
        authentication,
    }
}

#[test]
fn networks_match_except_exceptions() {
    let check = |net: &str, except: &[&str], ip: &str, expect: bool| {
        let admitted = network(net, except).matches(ip.parse().unwrap());
        assert_eq!(admitted, expect, "{ip} in {net} but not {except:?}");
    };
    check("10.0.0.0/8", &[], "10.1.2.3", true);
    check("10.0.0.0/8", &[], "11.0.0.1", false);
    check("10.0.0.0/8", &["10.1.0.0/16"], "10.1.2.3", false);
    check(
        "10.0.0.0/8",
        &["10.2.0.0/16", "10.1.2.3/32"],
        "10.1.2.3",
        false,
    );
    check("10.0.0.0/8", &["10.2.0.0/16"], "10.1.2.3", true);
    check("0.0.0.0/0", &[], "2001:db8::1", false);
    check("::/0", &[], "2001:db8::1", true);
    // The same host may appear as IPv4 or as v4-mapped IPv6; both are one address.
    check("10.0.0.0/8", &[], "::ffff:10.1.2.3", true);
    check("::ffff:10.0.0.0/104", &[], "10.1.2.3", true);
    check(
        "0.0.0.0/0",
        &["::ffff:10.0.0.0/104"],
        "::ffff:10.1.2.3",
        false,
    );
    check("::/0", &[], "10.1.2.3", false);
    check("::/0", &[], "::ffff:10.1.2.3", false);
}

#[test]
fn suffixes_match_whole_labels() {
    let check = |parts: &[&str], name: &str, expect: bool| {
        assert_eq!(suffix(parts).matches(&id(name)), expect, "{name} {parts:?}");
    };
    check(&["ns", "example"], "web.ns.example", true);
    check(&["NS", "Example"], "web.ns.example", true);
    check(&["ns.example"], "web.ns.example", true);
    check(&["ns", "example"], "ns.example", false);
    check(&["ns", "example"], "xns.example", false);
    check(&["ns", "example"], "web.ns.example.org", false);
    check(&[], "web.ns.example", true);
    check(&[""], "web.ns.example", false);
    check(&["", "example"], "web.ns.example", false);
    check(&[], "spiffe://example/web", false);
    check(&["web"], "spiffe://example/a.web", false);
    // The length of the suffix falls inside a character of a longer name.
    check(&["é"], "web.ns.example", false);
}

#[test]
fn authentication_matches_tls_state() {
    let web = id("web.ns.example");
    let spiffe = id("spiffe://example/web");
    let any = Authentication::TlsAuthenticated {
        identities: Vec::new(),
        suffixes: vec![suffix(&[])],
    };
    let named = Authentication::TlsAuthenticated {
        identities: vec![spiffe.clone()],
        suffixes: Vec::new(),
    };
    let no_identity = Authentication::TlsAuthenticated {
        identities: Vec::new(),
        suffixes: Vec::new(),
    };
    let table = [
        (&Authentication::Unauthenticated, [true, true, true, true]),
        (
            &Authentication::TlsUnauthenticated,
            [false, true, true, true],
        ),
        (&any, [false, false, true, false]),
        (&named, [false, false, false, true]),
        (&no_identity, [false, false, false, false]),
    ];
    for (authentication, expect) in table {
        let seen = [
            ClientTls::None,
            ClientTls::Anonymous,
            ClientTls::Identified(&web),
            ClientTls::Identified(&spiffe),
        ]
        .map(|tls| authentication.matches(tls));
        assert_eq!(seen, expect, "{authentication:?}");
    }
}

/// The proxy has verified the names by the roots of their trust domain.
#[test]
fn star_and_default_policies_admit_foreign_identities_and_the_own_trust_domain_does_not() {
    let own = id("web.shop.serviceaccount.identity.linkerd.cluster.local");
    let foreign = id("web.shop.serviceaccount.identity.linkerd.east.example");
    let of_suffix = |parts: &[&str]| {
        let authentication = Authentication::TlsAuthenticated {
            identities: Vec::new(),
            suffixes: vec![suffix(parts)],
        };
        vec![authorization(
            vec![network("0.0.0.0/0", &[])],
            authentication,
        )]
    };
    let cluster = ["10.0.0.0/8".parse().unwrap()];
    for (authorizations, expect) in [
        (of_suffix(&[]), [true, true]),
        (of_suffix(&["cluster", "local"]), [true, false]),
        (of_suffix(&["east", "example"]), [false, true]),
        (
            DefaultPolicy::AllAuthenticated.authorizations(&cluster),
            [true, true],
        ),
        (
            DefaultPolicy::ClusterAuthenticated.authorizations(&cluster),
            [true, true],
        ),
        (DefaultPolicy::Deny.authorizations(&cluster), [false, false]),
    ] {
        let admitted = [&own, &foreign].map(|id| {
            let client = Client {
                ip: "10.0.0.1".parse().unwrap(),
                tls: ClientTls::Identified(id),
            };
            authorize(&authorizations, &client).is_some()
        });
        assert_eq!(admitted, expect, "{authorizations:?}");
    }
}

#[test]
fn first_matching_authorization_is_returned() {
    let all = |name: &str, net: &str| Authorization {
        meta: Meta::new_default(name),
        ..authorization(vec![network(net, &[])], Authentication::Unauthenticated)
    };
    let list = [
        all("narrow", "10.1.0.0/16"),
        all("wide", "10.0.0.0/8"),
        all("wider", "0.0.0.0/0"),
    ];
    let name = |ip: &str| {
        let client = Client {
            ip: ip.parse().unwrap(),
            tls: ClientTls::None,
        };
        authorize(&list, &client).map(|found| found.meta.name())
    };
    assert_eq!(name("10.1.0.1"), Some("narrow"));
    assert_eq!(name("10.2.0.1"), Some("wide"));
    assert_eq!(name("192.0.2.1"), Some("wider"));
    assert_eq!(name("2001:db8::1"), None);
}

#[test]
fn authorization_without_networks_matches_no_client() {
    let list = [authorization(Vec::new(), Authentication::Unauthenticated)];
    let client = Client {
        ip: "127.0.0.1".parse().unwrap(),
        tls: ClientTls::None,
    };
    assert_eq!(authorize(&list, &client), None);
}

/// A reference implementation with strings and bit masks instead of the types above.
fn reference(list: &[Authorization], ip: IpAddr, id: Option<&str>, tls: bool) -> Option<usize> {
    let bits = |ip: IpAddr| match ip {
        IpAddr::V4(v4) => (4, u128::from(u32::from(v4)) << 96),
        IpAddr::V6(v6) => match v6.to_ipv4_mapped() {
            Some(v4) => (4, u128::from(u32::from(v4)) << 96),
            None => (6, u128::from(v6)),
        },
    };
    let within = |net: &IpNet| {
        let (family, base) = bits(net.addr());
        let shift = if matches!(net, IpNet::V6(_)) && family == 4 {
            96
        } else {
            0
        };
        let Some(length) = u32::from(net.prefix_len()).checked_sub(shift) else {
            return false;
        };
        let (client_family, client) = bits(ip);
        let mask = if length == 0 {
            0
        } else {
            u128::MAX << (128 - length)
        };
        family == client_family && (base & mask) == (client & mask)
    };
    list.iter().position(|authorization| {
        let near = authorization
            .networks
            .iter()
            .any(|network| within(&network.net) && !network.except.iter().any(within));
        let known = match &authorization.authentication {
            Authentication::Unauthenticated => true,
            Authentication::TlsUnauthenticated => tls,
            Authentication::TlsAuthenticated {
                identities,
                suffixes,
            } => id.is_some_and(|id| {
                tls && (identities.iter().any(|known| known.as_str() == id)
                    || !id.contains("://")
                        && suffixes.iter().any(|suffix| {
                            suffix.0.is_empty()
                                || id.ends_with(&format!(".{}", suffix.0.join(".")).to_lowercase())
                        }))
            }),
        };
        near && known
    })
}

const NAMES: [&str; 5] = [
    "web.a.example",
    "web.b.example",
    "a.example",
    "spiffe://example/web",
    "b",
];

fn nets() -> impl Strategy<Value = IpNet> {
    prop_oneof![
        (0u32..4, 0u8..=32).prop_map(|(ip, len)| {
            IpNet::new(Ipv4Addr::from(0x0a00_0000 | ip).into(), len).unwrap()
        }),
        (0u32..4, 96u8..=128).prop_map(|(ip, len)| {
            let mapped = Ipv4Addr::from(0x0a00_0000 | ip).to_ipv6_mapped();
            IpNet::new(mapped.into(), len).unwrap()
        }),
        (0u128..4, 0u8..=128).prop_map(|(ip, len)| IpNet::new(
            std::net::Ipv6Addr::from(ip).into(),
            len
        )
        .unwrap()),
    ]
}

fn addresses() -> impl Strategy<Value = IpAddr> {
    prop_oneof![
        (0u32..4).prop_map(|ip| IpAddr::from(Ipv4Addr::from(0x0a00_0000 | ip))),
        (0u32..4).prop_map(|ip| IpAddr::from(Ipv4Addr::from(0x0a00_0000 | ip).to_ipv6_mapped())),
        (0u128..4).prop_map(|ip| IpAddr::from(std::net::Ipv6Addr::from(ip))),
    ]
}

fn authentications() -> impl Strategy<Value = Authentication> {
    let identities = prop::collection::vec(prop::sample::select(&NAMES[..]).prop_map(id), 0..3);
    let part = prop::sample::select(&["a", "b", "example", "", "eXample"][..]).prop_map(Arc::from);
    let suffixes = prop::collection::vec(prop::collection::vec(part, 0..3).prop_map(Suffix), 0..3);
    prop_oneof![
        Just(Authentication::Unauthenticated),
        Just(Authentication::TlsUnauthenticated),
        (identities, suffixes).prop_map(|(identities, suffixes)| {
            Authentication::TlsAuthenticated {
                identities,
                suffixes,
            }
        }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(20_000))]

    #[test]
    fn agrees_with_a_second_evaluator(
        list in prop::collection::vec(
            (
                prop::collection::vec(
                    (nets(), prop::collection::vec(nets(), 0..2))
                        .prop_map(|(net, except)| Network { net, except }),
                    0..3,
                ),
                authentications(),
            ).prop_map(|(networks, authentication)| authorization(networks, authentication)),
            0..4,
        ),
        ip in addresses(),
        name in prop::option::of(prop::sample::select(&NAMES[..])),
        tls in any::<bool>(),
    ) {
        let identity = name.map(id);
        let seen = match (&identity, tls) {
            (Some(identity), true) => ClientTls::Identified(identity),
            (None, true) => ClientTls::Anonymous,
            (_, false) => ClientTls::None,
        };
        let found = authorize(&list, &Client { ip, tls: seen })
            .and_then(|found| list.iter().position(|entry| std::ptr::eq(entry, found)));
        prop_assert_eq!(found, reference(&list, ip, name, tls));
    }
}

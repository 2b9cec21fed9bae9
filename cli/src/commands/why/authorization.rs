//! Explains a decision of the inbound policy, with the functions that decide in the proxy.

use http::HeaderMap;
use mesh_core::identity::Identity;
use mesh_core::meta::Meta;
use mesh_core::policy::inbound::{
    Authentication, Authorization, Client, ClientTls, InboundRule, ServerPolicy, Suffix,
    all_networks, authorize,
};

use super::facts::RequestLine;

/// The decision about a client.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Decision {
    Admitted {
        route: Option<Meta>,
        authorization: Meta,
    },
    Refused {
        route: Option<Meta>,
        /// Each authorization with the reason why it does not admit the client.
        mismatches: Vec<Mismatch>,
    },
    /// No route matches the request.
    NoRoute,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Mismatch {
    pub(super) authorization: Meta,
    pub(super) reason: Reason,
}

/// Why an authorization does not admit a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Reason {
    /// The address is in none of its networks.
    Network(Vec<String>),
    /// It requires TLS of the mesh, and the connection has none.
    NeedsTls,
    /// It requires an identity, and the client has none.
    NeedsIdentity,
    /// It names other identities.
    OtherIdentity(Vec<String>),
}

/// Returns the decision of `policy`, completed as the proxy completes it, about a request, or about
/// a connection that is not HTTP.
pub(super) fn decide(
    policy: &ServerPolicy,
    client: &Client<'_>,
    request: Option<(&RequestLine, &str)>,
) -> Decision {
    let none = InboundRule::default();
    let (route, rule) = match request {
        Some((line, authority)) => {
            let headers = HeaderMap::new();
            let Some(at) = policy.find(&line.head(authority, &headers)) else {
                return Decision::NoRoute;
            };
            let (route, rule) = policy.rule(at);
            (Some(route.clone()), rule)
        }
        None => (None, &none),
    };
    match policy.authorize(rule, client) {
        Some(authorization) => Decision::Admitted {
            route,
            authorization: authorization.meta.clone(),
        },
        None => Decision::Refused {
            route,
            mismatches: rule
                .authorizations
                .iter()
                .chain(policy.authorizations.iter())
                .filter(|it| !is_of_host(it))
                .map(|authorization| mismatch(authorization, client))
                .collect(),
        },
    }
}

fn mismatch(authorization: &Authorization, client: &Client<'_>) -> Mismatch {
    let in_networks = Authorization {
        authentication: Authentication::Unauthenticated,
        ..authorization.clone()
    };
    let reason = if authorize(&[in_networks], client).is_none() {
        Reason::Network(networks(authorization))
    } else {
        authentication_mismatch(authorization, client.tls)
    };
    Mismatch {
        authorization: authorization.meta.clone(),
        reason,
    }
}

/// Returns the networks of an authorization.
fn networks(authorization: &Authorization) -> Vec<String> {
    let networks = authorization.networks.iter().map(|network| {
        let except: Vec<String> = network.except.iter().map(ToString::to_string).collect();
        if except.is_empty() {
            network.net.to_string()
        } else {
            format!("{} except {}", network.net, except.join(", "))
        }
    });
    networks.collect()
}

fn names(identities: &[Identity], suffixes: &[Suffix]) -> Vec<String> {
    let exact = identities.iter().map(Identity::to_string);
    let suffixes = suffixes.iter().map(|suffix| {
        if suffix.0.is_empty() {
            "*".to_owned()
        } else {
            format!("*.{}", suffix.0.join("."))
        }
    });
    exact.chain(suffixes).collect()
}

/// Whether an authorization is the proxy's own, of clients on the host itself.
pub(super) fn is_of_host(authorization: &Authorization) -> bool {
    authorization.meta == Authorization::localhost().meta
}

/// Describes the clients that an authorization admits.
pub(super) fn describe(authorization: &Authorization, name: impl Fn(&Meta) -> String) -> String {
    let clients = match &authorization.authentication {
        Authentication::Unauthenticated => "every client".to_owned(),
        Authentication::TlsUnauthenticated => "clients with TLS of the mesh".to_owned(),
        Authentication::TlsAuthenticated {
            identities,
            suffixes,
        } => names(identities, suffixes).join(", "),
    };
    let of_networks = if authorization.networks == all_networks() {
        String::new()
    } else {
        format!(" from {}", networks(authorization).join(", "))
    };
    let name = name(&authorization.meta);
    format!("{name} admits {clients}{of_networks}")
}

fn authentication_mismatch(authorization: &Authorization, tls: ClientTls<'_>) -> Reason {
    match (&authorization.authentication, tls) {
        (_, ClientTls::None) => Reason::NeedsTls,
        (_, ClientTls::Anonymous) => Reason::NeedsIdentity,
        (
            Authentication::TlsAuthenticated {
                identities,
                suffixes,
            },
            ClientTls::Identified(_),
        ) => Reason::OtherIdentity(names(identities, suffixes)),
        // Both admit a client with an identity, so that the networks are the reason.
        (
            Authentication::Unauthenticated | Authentication::TlsUnauthenticated,
            ClientTls::Identified(_),
        ) => Reason::Network(Vec::new()),
    }
}

#[cfg(test)]
mod tests {
    use http::Method;
    use mesh_core::policy::inbound::{HttpServer, ServerProtocol};

    use super::*;

    const CLIENT: &str = "client.shop.serviceaccount.identity.linkerd.cluster.local";
    const OTHER: &str = "other.shop.serviceaccount.identity.linkerd.cluster.local";

    fn authorization(name: &str, identity: &str) -> Authorization {
        Authorization {
            meta: Meta::new_default(name),
            networks: all_networks(),
            authentication: Authentication::TlsAuthenticated {
                identities: vec![Identity::parse(identity).unwrap()],
                suffixes: Vec::new(),
            },
        }
    }

    /// Returns the policy of a Server that admits one identity, and whose route admits another.
    fn policy(server: &str, route: &str) -> ServerPolicy {
        let mut policy = ServerPolicy {
            meta: Meta::new_default("server"),
            protocol: ServerProtocol::Http1(HttpServer::default()),
            authorizations: [authorization("of-server", server)].into(),
            is_terminating: false,
        }
        .completed();
        if let ServerProtocol::Http1(http) = &mut policy.protocol {
            let rule = &mut http.routes[0].rules[0].action;
            rule.authorizations = [authorization("of-route", route)].into();
        }
        policy
    }

    #[test]
    fn request_is_admitted_by_its_route_or_its_server_and_a_connection_by_its_server() {
        let identity = Identity::parse(CLIENT).unwrap();
        let client = Client {
            ip: "10.1.0.2".parse().unwrap(),
            tls: ClientTls::Identified(&identity),
        };
        let line = RequestLine {
            method: Method::GET,
            path: "/".to_owned(),
            marker: String::new(),
        };
        let request = Some((&line, "web"));
        let all = ["of-route", "of-server"];
        for (server, route, request, expected) in [
            (OTHER, CLIENT, request, Ok("of-route")),
            (CLIENT, OTHER, request, Ok("of-server")),
            (OTHER, OTHER, request, Err(&all[..])),
            (CLIENT, OTHER, None, Ok("of-server")),
            (OTHER, CLIENT, None, Err(&all[1..])),
        ] {
            let name = |meta: &Meta| meta.name().to_owned();
            let found = match decide(&policy(server, route), &client, request) {
                Decision::Admitted { authorization, .. } => Ok(name(&authorization)),
                Decision::Refused { mismatches, .. } => {
                    let mismatches = mismatches.iter();
                    Err(mismatches
                        .map(|it| name(&it.authorization))
                        .collect::<Vec<_>>())
                }
                Decision::NoRoute => panic!("the default route matches"),
            };
            let expected = expected.map(str::to_owned).map_err(|names| {
                names
                    .iter()
                    .map(|name| (*name).to_owned())
                    .collect::<Vec<_>>()
            });
            assert_eq!(found, expected, "{server} {route} {request:?}");
        }
    }
}

//! Explains a decision of the inbound policy, with the functions that decide in the proxy.

use http::HeaderMap;
use mesh_core::identity::Identity;
use mesh_core::meta::Meta;
use mesh_core::policy::inbound::{
    Authentication, Authorization, Client, ClientTls, InboundRule, ServerPolicy, authorize,
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
                .filter(|it| it.meta != Authorization::localhost().meta)
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
        let networks = authorization.networks.iter().map(|network| {
            let except: Vec<String> = network.except.iter().map(ToString::to_string).collect();
            if except.is_empty() {
                network.net.to_string()
            } else {
                format!("{} except {}", network.net, except.join(", "))
            }
        });
        Reason::Network(networks.collect())
    } else {
        authentication_mismatch(authorization, client.tls)
    };
    Mismatch {
        authorization: authorization.meta.clone(),
        reason,
    }
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
        ) => {
            let exact = identities.iter().map(Identity::to_string);
            let suffixes = suffixes.iter().map(|suffix| {
                if suffix.0.is_empty() {
                    "*".to_owned()
                } else {
                    format!("*.{}", suffix.0.join("."))
                }
            });
            Reason::OtherIdentity(exact.chain(suffixes).collect())
        }
        // Both admit a client with an identity, so that the networks are the reason.
        (
            Authentication::Unauthenticated | Authentication::TlsUnauthenticated,
            ClientTls::Identified(_),
        ) => Reason::Network(Vec::new()),
    }
}

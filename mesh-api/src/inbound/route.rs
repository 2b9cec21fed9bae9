//! Inbound routes. The API defines the same messages (route, rule, filter) for HTTP and gRPC, so a
//! macro generates their conversions.

macro_rules! conversions {
    ($kind:ident, $route:ident, $match:ident, $match_to_proto:ident) => {
        use mesh_core::policy::inbound::{InboundRule, $route};
        use mesh_core::route::filter::Filter;
        use mesh_core::route::{Route, Rule};

        use crate::field::{FieldContext, each, required};
        use crate::inbound::{authorizations, authorizations_to_proto};
        use crate::meta::{self, meta};
        use crate::proto::inbound as wire;
        use crate::{InvalidField, route};

        pub(in crate::inbound) fn route(wire: wire::$route) -> Result<$route, InvalidField> {
            let authorizations = authorizations(wire.authorizations)?;
            Ok(Route {
                meta: required("metadata", wire.metadata, meta)?,
                hosts: each("hosts", wire.hosts, route::host)?,
                rules: each("rules", wire.rules, |rule| {
                    Ok(Rule {
                        matches: each("matches", rule.matches, route::$match)?,
                        action: InboundRule {
                            filters: each("filters", rule.filters, filter)?,
                            authorizations: authorizations.clone(),
                        },
                    })
                })?,
            })
        }

        pub(in crate::inbound) fn route_to_proto(route: &$route) -> wire::$route {
            // The rules of a route share its authorizations.
            let authorizations = route.rules.first().map(|rule| &rule.action.authorizations);
            let rules = route.rules.iter().map(|rule| wire::$kind::Rule {
                matches: rule.matches.iter().map(route::$match_to_proto).collect(),
                filters: rule.action.filters.iter().map(filter_to_proto).collect(),
            });
            wire::$route {
                metadata: Some(meta::to_proto(&route.meta)),
                hosts: route.hosts.iter().map(route::host_to_proto).collect(),
                authorizations: authorizations
                    .map(|authorizations| authorizations_to_proto(authorizations))
                    .unwrap_or_default(),
                rules: rules.collect(),
            }
        }
    };
}

pub(super) mod http {
    conversions!(http_route, HttpRoute, http_match, http_match_to_proto);
    crate::route::filter_conversions!(
        inbound::http_route, http_failure, http_failure_to_proto,
        Redirect: "redirect" = Redirect(redirect, redirect_to_proto)
    );
}

pub(super) mod grpc {
    conversions!(grpc_route, GrpcRoute, grpc_match, grpc_match_to_proto);
    crate::route::filter_conversions!(inbound::grpc_route, grpc_failure, grpc_failure_to_proto);
}

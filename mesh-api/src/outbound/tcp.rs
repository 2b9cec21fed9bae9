//! Routes of connections that are not HTTP: opaque ones, and TLS that is passed through.

use mesh_core::meta::Meta;
use mesh_core::policy::outbound::{Distribution, TcpRoute, TcpVerdict, TlsRoute};
use mesh_core::route::HostMatch;

use crate::InvalidField;
use crate::field::{each, required};
use crate::meta::{self, meta};
use crate::proto::outbound as wire;
use crate::proto::tls_route::{SniMatch, sni_match};

/// Returns a route that rejects every connection.
pub(super) fn nowhere() -> TcpRoute {
    TcpRoute {
        meta: Meta::new_default("none"),
        backends: Distribution::Empty,
        verdict: TcpVerdict::Forbidden,
    }
}

pub(super) fn opaque_route(wire: wire::OpaqueRoute) -> Result<TcpRoute, InvalidField> {
    let rule = the_one_rule(wire.rules)?;
    Ok(TcpRoute {
        meta: required("metadata", wire.metadata, meta)?,
        backends: required("rules[0].backends", rule.backends, opaque::distribution)?,
        verdict: opaque::verdict(rule.filters),
    })
}

pub(super) fn opaque_route_to_proto(route: &TcpRoute) -> wire::OpaqueRoute {
    wire::OpaqueRoute {
        metadata: Some(meta::to_proto(&route.meta)),
        rules: vec![wire::opaque_route::Rule {
            backends: Some(opaque::distribution_to_proto(&route.backends)),
            filters: opaque::verdict_to_proto(&route.verdict),
        }],
    }
}

pub(super) fn tls_route(wire: wire::TlsRoute) -> Result<TlsRoute, InvalidField> {
    let rule = the_one_rule(wire.rules)?;
    Ok(TlsRoute {
        meta: required("metadata", wire.metadata, meta)?,
        snis: each("snis", wire.snis, sni)?,
        backends: required("rules[0].backends", rule.backends, tls::distribution)?,
        verdict: tls::verdict(rule.filters),
    })
}

pub(super) fn tls_route_to_proto(route: &TlsRoute) -> wire::TlsRoute {
    wire::TlsRoute {
        metadata: Some(meta::to_proto(&route.meta)),
        snis: route.snis.iter().map(sni_to_proto).collect(),
        rules: vec![wire::tls_route::Rule {
            backends: Some(tls::distribution_to_proto(&route.backends)),
            filters: tls::verdict_to_proto(&route.verdict),
        }],
    }
}

/// The API has a list, although only one rule is used.
fn the_one_rule<R>(rules: Vec<R>) -> Result<R, InvalidField> {
    let count = rules.len();
    match <[R; 1]>::try_from(rules) {
        Ok([rule]) => Ok(rule),
        Err(_) => Err(InvalidField::not_a(
            "list of exactly one rule",
            "rules",
            count,
        )),
    }
}

fn sni(wire: SniMatch) -> Result<HostMatch, InvalidField> {
    match wire.r#match {
        Some(sni_match::Match::Exact(name)) => Ok(HostMatch::Exact(name.into())),
        Some(sni_match::Match::Suffix(suffix)) => Ok(HostMatch::Suffix(
            suffix.reverse_labels.into_iter().map(Into::into).collect(),
        )),
        None => Err(InvalidField::unknown_kind("match")),
    }
}

fn sni_to_proto(sni: &HostMatch) -> SniMatch {
    let sni = match sni {
        HostMatch::Exact(name) => sni_match::Match::Exact(name.to_string()),
        HostMatch::Suffix(labels) => sni_match::Match::Suffix(sni_match::Suffix {
            reverse_labels: labels.iter().map(ToString::to_string).collect(),
        }),
    };
    SniMatch { r#match: Some(sni) }
}

/// Both kinds of routes have the same filters under different names.
macro_rules! filters {
    ($kind:ident) => {
        use mesh_core::{policy::outbound::TcpVerdict, route::filter::Filter};

        use crate::{
            InvalidField,
            proto::{
                opaque_route::{Forbidden, Invalid as WireInvalid},
                outbound::$kind::{Filter as WireFilter, filter::Kind},
            },
        };

        crate::outbound::distribution::conversions!($kind, filters, filters_to_proto);

        /// The first filter determines the decision.
        pub(super) fn verdict(wire: Vec<WireFilter>) -> TcpVerdict {
            match wire.into_iter().next().map(|filter| filter.kind) {
                None => TcpVerdict::Forward,
                Some(Some(Kind::Forbidden(_))) => TcpVerdict::Forbidden,
                Some(Some(Kind::Invalid(invalid))) => TcpVerdict::Invalid(invalid.message.into()),
                Some(None) => TcpVerdict::Invalid("unsupported filter in the policy".into()),
            }
        }

        pub(super) fn verdict_to_proto(verdict: &TcpVerdict) -> Vec<WireFilter> {
            let kind = match verdict {
                TcpVerdict::Forward => return Vec::new(),
                TcpVerdict::Forbidden => Kind::Forbidden(Forbidden {}),
                TcpVerdict::Invalid(message) => Kind::Invalid(WireInvalid {
                    message: message.to_string(),
                }),
            };
            vec![WireFilter { kind: Some(kind) }]
        }

        fn filters(wire: Vec<WireFilter>) -> Result<(Vec<Filter>, TcpVerdict), InvalidField> {
            Ok((Vec::new(), verdict(wire)))
        }

        fn filters_to_proto(_http: &[Filter], verdict: &TcpVerdict) -> Vec<WireFilter> {
            verdict_to_proto(verdict)
        }
    };
}

mod opaque {
    filters!(opaque_route);
}

mod tls {
    filters!(tls_route);
}

//! The distribution of a rule's traffic over backends.
//!
//! The API defines the same four messages (distribution, its two lists, weighted backend) for each
//! kind of route, so a macro generates their conversions. The kinds differ in their filters, and in
//! a deprecated field that proxies ignore and `rest` fills.

macro_rules! conversions {
    ($kind:ident, $filters:path, $filters_to_proto:path $(, ..$rest:expr)?) => {
        use crate::proto::outbound::$kind as wire;
        use mesh_core::policy::outbound::{Distribution, RouteBackend};

        pub(super) fn distribution(
            wire: wire::Distribution,
        ) -> Result<Distribution, crate::InvalidField> {
            use crate::field::each;
            use wire::distribution::Kind;
            match wire.kind {
                Some(Kind::Empty(_)) => Ok(Distribution::Empty),
                Some(Kind::FirstAvailable(list)) => {
                    each("first_available.backends", list.backends, route_backend)
                        .map(Distribution::FirstAvailable)
                }
                Some(Kind::RandomAvailable(list)) => {
                    // A backend of weight 0 receives no traffic.
                    let weighted = list.backends.into_iter().filter(|entry| entry.weight > 0);
                    each("random_available.backends", weighted, |entry| {
                        let backend =
                            crate::field::required("backend", entry.backend, route_backend)?;
                        Ok((backend, entry.weight))
                    })
                    .map(Distribution::RandomAvailable)
                }
                None => Err(crate::InvalidField::unknown_kind("kind")),
            }
        }

        fn route_backend(
            wire: wire::RouteBackend,
        ) -> Result<crate::outbound::SharedBackend, crate::InvalidField> {
            let (filters, verdict) = $filters(wire.filters)?;
            let backend =
                crate::field::required("backend", wire.backend, crate::outbound::backend::backend)?;
            Ok(std::sync::Arc::new(RouteBackend {
                backend,
                filters,
                verdict,
            }))
        }

        pub(super) fn distribution_to_proto(distribution: &Distribution) -> wire::Distribution {
            use wire::distribution::{Empty, FirstAvailable, Kind, RandomAvailable};
            let kind = match distribution {
                Distribution::FirstAvailable(backends) => Kind::FirstAvailable(FirstAvailable {
                    backends: backends.iter().map(|b| route_backend_to_proto(b)).collect(),
                }),
                // Proxies reject a list whose weights are all 0.
                Distribution::RandomAvailable(backends)
                    if backends.iter().any(|(_, weight)| *weight > 0) =>
                {
                    Kind::RandomAvailable(RandomAvailable {
                        backends: backends
                            .iter()
                            .map(|(backend, weight)| wire::WeightedRouteBackend {
                                backend: Some(route_backend_to_proto(backend)),
                                weight: *weight,
                            })
                            .collect(),
                    })
                }
                Distribution::RandomAvailable(_) | Distribution::Empty => Kind::Empty(Empty {}),
            };
            wire::Distribution { kind: Some(kind) }
        }

        fn route_backend_to_proto(backend: &RouteBackend) -> wire::RouteBackend {
            wire::RouteBackend {
                backend: Some(crate::outbound::backend::to_proto(&backend.backend)),
                filters: $filters_to_proto(&backend.filters, &backend.verdict),
                $(..$rest)?
            }
        }
    };
}

pub(super) use conversions;

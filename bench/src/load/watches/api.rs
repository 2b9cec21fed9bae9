//! The APIs with watches: their addresses, their requests, and the layout of the messages to count.

use anyhow::Context as _;

use super::scan::Layout;
use crate::load::grpc::{framed, put};

/// An API with watches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::load) enum Api {
    /// Endpoints of a Service, of Linkerd's destination API: a stream for each.
    Destinations,
    /// Policies of clients of a Service, of Linkerd's outbound policy API: a stream for each.
    Policies,
    /// Endpoints of Services by incremental xDS, as Istio's proxies get them: one stream for all.
    Endpoints,
}

pub(super) const DESTINATIONS: Layout = Layout {
    // `add` of `Update`, `addrs` of `WeightedAddrSet`.
    endpoint: &[1, 1],
    name: None,
    nonce: None,
};
pub(super) const POLICIES: Layout = Layout {
    endpoint: &[],
    name: None,
    nonce: None,
};
pub(super) const ENDPOINTS: Layout = Layout {
    // `resources` of `DeltaDiscoveryResponse`, `resource` of `Resource`, `value` of `Any`,
    // `endpoints` of `ClusterLoadAssignment`, `lb_endpoints` of `LocalityLbEndpoints`.
    endpoint: &[2, 2, 2, 2, 2],
    name: Some(3),
    nonce: Some(5),
};

const ASSIGNMENT: &str = "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment";
/// The client that asks for policies.
const WORKLOAD: &str = "shop-0:client";

impl Api {
    pub(super) fn layout(self) -> &'static Layout {
        match self {
            Self::Destinations => &DESTINATIONS,
            Self::Policies => &POLICIES,
            Self::Endpoints => &ENDPOINTS,
        }
    }

    /// Returns the path of the gRPC method.
    pub(super) fn method(self) -> &'static str {
        match self {
            Self::Destinations => "io.linkerd.proxy.destination.Destination/Get",
            Self::Policies => "io.linkerd.proxy.outbound.OutboundPolicies/Watch",
            Self::Endpoints => {
                "envoy.service.discovery.v3.AggregatedDiscoveryService/DeltaAggregatedResources"
            }
        }
    }

    /// Returns how many paths are watched by one stream.
    pub(super) fn paths_per_stream(self) -> usize {
        match self {
            Self::Destinations | Self::Policies => 1,
            Self::Endpoints => usize::MAX,
        }
    }

    /// Returns the name of the watch of a path.
    pub(super) fn resource(self, path: &str) -> anyhow::Result<String> {
        match self {
            Self::Destinations | Self::Policies => Ok(path.to_owned()),
            Self::Endpoints => {
                let (host, port) = path.rsplit_once(':').context("the path has no port")?;
                Ok(format!("outbound|{port}||{host}"))
            }
        }
    }

    /// Returns the first message of a stream, as gRPC frames it.
    pub(super) fn request(self, connection: usize, resources: &[&str]) -> Vec<u8> {
        let mut message = Vec::new();
        match self {
            Self::Destinations => {
                put(&mut message, 1, b"k8s");
                for path in resources {
                    put(&mut message, 2, path.as_bytes());
                }
            }
            Self::Policies => {
                put(&mut message, 1, WORKLOAD.as_bytes());
                for authority in resources {
                    put(&mut message, 3, authority.as_bytes());
                }
            }
            Self::Endpoints => {
                put(&mut message, 1, &node(connection));
                put(&mut message, 2, ASSIGNMENT.as_bytes());
                for name in resources {
                    put(&mut message, 3, name.as_bytes());
                }
            }
        }
        framed(&message)
    }

    /// Returns the acknowledgement of a message, if the API has any.
    pub(super) fn acknowledgement(self, nonce: &[u8]) -> Option<Vec<u8>> {
        (self == Self::Endpoints).then(|| {
            let mut message = Vec::new();
            put(&mut message, 2, ASSIGNMENT.as_bytes());
            put(&mut message, 6, nonce);
            framed(&message)
        })
    }
}

/// Returns the node of Envoy's API for a sidecar.
fn node(connection: usize) -> Vec<u8> {
    let (high, low) = (connection / 250, connection % 250 + 1);
    let id =
        format!("sidecar~10.255.{high}.{low}~client-{connection}.shop-0~shop-0.svc.cluster.local");
    let mut node = Vec::new();
    put(&mut node, 1, id.as_bytes());
    put(&mut node, 2, b"client.shop-0");
    node
}

#[cfg(test)]
mod tests {
    use mesh_api::proto::destination::GetDestination;
    use mesh_api::proto::outbound::TrafficSpec;
    use mesh_api::proto::outbound::traffic_spec::Target;
    use prost::Message as _;

    use super::*;

    #[test]
    fn requests_are_the_messages_of_linkerds_api() {
        let long = format!("{}.shop.svc.cluster.local:80", "a".repeat(200));
        let request = Api::Destinations.request(0, &[&long]);
        let decoded = GetDestination::decode(&request[5..]).expect("a GetDestination");
        assert_eq!(
            (decoded.scheme.as_str(), decoded.path),
            ("k8s", long.clone())
        );
        let request = Api::Policies.request(0, &[&long]);
        let decoded = TrafficSpec::decode(&request[5..]).expect("a TrafficSpec");
        assert_eq!(decoded.source_workload, WORKLOAD);
        assert_eq!(decoded.target, Some(Target::Authority(long)));
    }

    #[test]
    fn service_is_a_cluster_in_the_names_of_istio() {
        let cluster = Api::Endpoints.resource("web.shop.svc.cluster.local:80");
        assert_eq!(
            cluster.expect("a name"),
            "outbound|80||web.shop.svc.cluster.local"
        );
        assert!(Api::Endpoints.resource("web").is_err());
        let request = Api::Endpoints.request(251, &["a", "b"]);
        assert_eq!(&request[..5], [0, 0, 0, 0, (request.len() - 5) as u8]);
        let text = String::from_utf8_lossy(&request);
        assert!(
            text.contains("sidecar~10.255.1.2~client-251.shop-0~"),
            "{text}"
        );
        assert!(text.ends_with("\u{1a}\u{1}a\u{1a}\u{1}b"), "{text}");
    }
}

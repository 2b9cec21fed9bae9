//! Linkerd's custom resources, one file for each kind.
//!
//! Each struct deserializes every version of its kind that Linkerd has served: later versions only
//! added fields, and each added field has a default here. A struct serializes as the version that
//! its documentation names.

pub mod authorization_policy;
pub mod egress_network;
pub mod external_workload;
pub mod http_local_rate_limit_policy;
pub mod http_route;
pub mod link;
pub mod mesh_tls_authentication;
pub mod network_authentication;
pub mod server;
pub mod server_authorization;
pub mod service_profile;
pub mod target_ref;

pub use authorization_policy::{AuthorizationPolicy, AuthorizationPolicySpec};
pub use egress_network::{EgressNetwork, EgressNetworkSpec, TrafficPolicy};
pub use external_workload::{ExternalWorkload, ExternalWorkloadSpec};
pub use http_local_rate_limit_policy::{
    HttpLocalRateLimitPolicy, HttpLocalRateLimitPolicySpec, RateOverride, RequestRate,
};
pub use http_route::{HttpRoute as PolicyHttpRoute, HttpRouteSpec as PolicyHttpRouteSpec};
pub use link::{Link, LinkSpec, LinkStatus};
pub use mesh_tls_authentication::{MeshTLSAuthentication, MeshTLSAuthenticationSpec};
pub use network_authentication::{
    Network, NetworkAuthentication, NetworkAuthenticationSpec, NetworkError,
};
pub use server::{PortRef, ProxyProtocol, Server, ServerSpec};
pub use server_authorization::{ServerAuthorization, ServerAuthorizationSpec};
pub use service_profile::{ServiceProfile, ServiceProfileSpec};
pub use target_ref::{LocalTargetRef, NamespacedTargetRef, ParentKind};

/// The API group of the policy kinds.
pub const GROUP: &str = "policy.linkerd.io";

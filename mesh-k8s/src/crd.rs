//! The `policy.linkerd.io` resources, one file a kind.
//!
//! Each struct reads every version of its kind that Linkerd ever served: fields were only added,
//! and what an older version lacks has a default here. They are written in the version named at the
//! struct.

pub mod authorization_policy;
pub mod http_route;
pub mod mesh_tls_authentication;
pub mod network_authentication;
pub mod server;
pub mod target_ref;

pub use authorization_policy::{AuthorizationPolicy, AuthorizationPolicySpec};
pub use http_route::{HttpRoute as PolicyHttpRoute, HttpRouteSpec as PolicyHttpRouteSpec};
pub use mesh_tls_authentication::{MeshTLSAuthentication, MeshTLSAuthenticationSpec};
pub use network_authentication::{Network, NetworkAuthentication, NetworkAuthenticationSpec};
pub use server::{PortRef, ProxyProtocol, Server, ServerSpec};
pub use target_ref::{LocalTargetRef, NamespacedTargetRef};

/// The API group of every kind here.
pub const GROUP: &str = "policy.linkerd.io";

//! A small mesh for one test: pods (network namespaces on a bridge of their own), their proxies,
//! and one control plane.
//!
//! ```ignore
//! let Some(mesh) = Mesh::new() else { return };
//! let server = mesh.pod("server").meshed().await;
//! let client = mesh.pod("client").meshed().await;
//! ```
//!
//! Everything a test starts ends with the [`Mesh`], also when the test fails.

mod app;
mod control;
mod net;
mod pod;
mod proxy;

pub(crate) use self::app::{HttpApp, echo};
pub(crate) use self::control::{ControlPlane, Issuing, policies};
pub(crate) use self::net::Mesh;
pub(crate) use self::pod::{Pod, sample};
pub(crate) use self::proxy::{AS_PROXY_USER, WORKLOAD_API};

use std::time::Duration;

pub(crate) use mesh_test_support::eventually::eventually_async as eventually;

/// How long anything that must happen may take before the test counts as failed. Generous: nothing
/// passes by being fast enough.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(60);

/// Awaits `event`, or fails the test.
pub(crate) async fn within<T>(what: &str, event: impl Future<Output = T>) -> T {
    match tokio::time::timeout(TIMEOUT, event).await {
        Ok(happened) => happened,
        Err(_elapsed) => panic!("{what}: did not happen within {TIMEOUT:?}"),
    }
}

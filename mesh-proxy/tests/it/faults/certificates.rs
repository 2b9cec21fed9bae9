//! Certificates of a clock that differs from the proxy's.

use mesh_test_support::campaign::measured;

use crate::harness::Mesh;

/// The clock skew that the identity service allows for in every certificate.
const ALLOWED_SKEW: i64 = 20;
const HOUR: i64 = 3600;

/// The clock of the identity service differs from the proxy's by so many seconds.
#[tokio::test]
async fn clock_skew_beyond_the_allowed_is_named_and_ends_when_the_clock_is_right() {
    let Some(mesh) = Mesh::new() else { return };
    let issue = |skew: i64| mesh.control.issue_valid(skew - ALLOWED_SKEW, skew + HOUR);
    for skew in [-ALLOWED_SKEW, 0, ALLOWED_SKEW - 1, -300] {
        issue(skew);
        let pod = mesh.pod("good").meshed().await;
        pod.proxy().logged("Certified identity").await;
    }
    for skew in [300, 26 * HOUR, -26 * HOUR] {
        issue(skew);
        let pod = mesh.pod("bad").with_proxy(&[]).await;
        let line = pod.proxy().logged("Failed to certify identity").await;
        assert!(line.contains("certificate"), "{line}");
        let failed = ["control_identity_cert_refreshes_total", "result=\"error\""];
        assert!(pod.metric(&failed).await >= 1.0);
        issue(0);
        pod.wait_for_proxy("/ready").await;
    }
    measured("skews of -20, 0, 19 and -300 s certified, of 300 s and 26 h refused until set right");
}

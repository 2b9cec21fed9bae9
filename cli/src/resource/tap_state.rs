//! Whether a pod can be tapped.

use mesh_k8s::inject::{DISABLE_TAP, TAP_ENABLED};
use mesh_k8s::kinds::Pod;
use mesh_k8s::pod;

/// Whether a meshed pod can be tapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TapState {
    Enabled,
    /// An annotation disables tap.
    Disabled,
    /// Injected before the extension was installed.
    Missing,
}

impl TapState {
    /// Decides as the tap API does: `disable-tap` takes precedence.
    pub(crate) fn of_pod(pod: &Pod) -> Self {
        let is_true = |key: &str| pod::is_annotated(&pod.metadata, key);
        if is_true(DISABLE_TAP) {
            Self::Disabled
        } else if is_true(TAP_ENABLED) {
            Self::Enabled
        } else {
            Self::Missing
        }
    }
}

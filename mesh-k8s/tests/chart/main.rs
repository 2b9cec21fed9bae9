//! Compares the charts of `helm/` with the Rust types that read the rendered objects.
//!
//! The files generated from the values structs (`values.yaml`, the schema, the reference page) are
//! compared; `MESH_UPDATE_GOLDEN=1 cargo test -p mesh-k8s --test chart` rewrites them; review the
//! diff. Tests that need the program `helm` are skipped without it.
#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test fails by panicking, and a skipped one prints why"
)]

/// Returns from a test, and prints that it is skipped, if `helm` is not on the PATH.
macro_rules! require_helm {
    ($test:literal) => {
        if !crate::helm::is_available($test) {
            return;
        }
    };
}

mod arguments;
mod coverage;
mod crds;
mod generated;
mod helm;
mod linkerd_check;
mod multicluster;
mod namespaces;
mod ports;
mod proxy;
mod rules;
mod viz;

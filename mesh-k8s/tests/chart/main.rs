//! The charts of `helm/`, held against the Rust types that read what they render.
//!
//! What is written from the values struct (`values.yaml`, the schema, the reference page) is
//! compared, and written anew with `MESH_UPDATE_GOLDEN=1 cargo test -p mesh-k8s --test chart`; the
//! diff is the review. What needs the program `helm` is skipped without it.
#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test that cannot go on has failed, and a skipped one says why on its output"
)]

mod arguments;
mod coverage;
mod crds;
mod generated;
mod helm;
mod proxy;
mod rules;

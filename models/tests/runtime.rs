//! Models of the metrics that all threads of a process share: the files of mesh-runtime, with
//! loom's atomics.
#![allow(
    dead_code,
    unreachable_pub,
    reason = "the models use a part of each file"
)]

use mesh_models::sync;

#[path = "../../mesh-runtime/src/metrics"]
mod metrics {
    pub(crate) mod cell;
    pub(crate) mod exemplar;
    pub(crate) mod native;
}

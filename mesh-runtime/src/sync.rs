//! The atomics of the metrics, whose models mesh-models compiles with this module replaced by
//! loom's types (docs/adr/0213).

pub(crate) use std::sync::OnceLock;
pub(crate) use std::sync::atomic::{AtomicI64, AtomicU64, Ordering, fence};

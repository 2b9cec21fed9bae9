//! The atomics and locks of state that data threads share, where models check it: `models.rs`
//! beside a file is compiled by mesh-models with this module replaced by loom's types
//! (docs/adr/0213).

pub(crate) use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence};

pub(crate) use parking_lot::Mutex;

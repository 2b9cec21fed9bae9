//! The per-pod proxy.

//! The kernel programs for systemd units of a host without Kubernetes.

mod hook;
mod kernel_types;
mod members;

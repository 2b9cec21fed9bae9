//! The node agent and its CNI plugin.

pub mod ebpf;
pub mod redirect;
pub mod sys;

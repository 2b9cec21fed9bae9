//! The node agent and its CNI plugin.

pub mod ebpf;
pub mod iptables;
pub mod netlink;
pub mod nft;
pub mod redirect;
pub mod rules;
pub mod sys;

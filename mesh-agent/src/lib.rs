//! The node agent and its CNI plugin.
//!
//! `config` → `daemon` is the agent's entry point, `cni` the plugin's; both redirect pods through
//! `node`. `dial` and `trace` are commands beside a running agent. Below it are the mechanisms:
//! `ebpf` (kernel programs), `nft` and `iptables` (packet filters, from the list of `rules`).
//! `tier` determines which of them work on this node. On a host without Kubernetes `machine`
//! redirects systemd units, and `membership` joins the host to a mesh.

pub mod cni;
pub mod config;
pub mod daemon;
pub mod dial;
pub mod ebpf;
pub mod host;
pub mod init;
pub mod install;
pub mod iptables;
pub mod kubernetes;
pub mod listening;
pub mod machine;
mod machine_worker;
pub mod membership;
pub mod metrics;
pub mod netlink;
pub mod nft;
pub mod node;
pub mod node_api;
pub mod node_handle;
mod node_worker;
pub mod redirect;
pub mod registry;
pub mod repairs;
pub mod rules;
pub mod sandbox;
pub mod selftest;
pub mod shared_status;
pub mod sys;
pub mod tier;
pub mod trace;
pub mod traces;

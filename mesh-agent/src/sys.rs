//! The only module of the agent with `unsafe`: system calls that neither `nix` nor `aya` wraps.
//! `netns` (used by every tier and the daemon), `bpf` (links and pins, used by [`crate::ebpf`]),
//! `capability` (used by `mesh-init`), `clock` and `listening` (used by [`crate::ebpf`]), `process`
//! (file descriptors and user namespaces of other processes), `notify` (used by the daemon),
//! `readiness` (used by `traces`), `socket` and `loopback` (used by the self-test).

pub mod bpf;
pub mod capability;
pub mod clock;
pub mod listening;
pub mod loopback;
pub mod netns;
pub mod notify;
pub mod process;
pub mod readiness;
pub mod socket;

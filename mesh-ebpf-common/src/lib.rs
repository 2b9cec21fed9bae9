//! Types and decisions that the kernel programs and the agent share: map keys and values with
//! asserted layouts, and the verdicts (redirect, steer, original destination) as pure functions
//! that run and are tested on the host. The programs in `mesh-ebpf` are thin shells around these
//! functions; the agent (`mesh-agent::ebpf`) writes the maps.
//!
//! Addresses are always 16 bytes, IPv4 as `::ffff:a.b.c.d`, so that one key serves both families.
//! Ports are in host order unless a comment states otherwise.

#![cfg_attr(not(any(feature = "user", test)), no_std)]
#![warn(missing_docs)]

pub mod address;
pub mod counter;
pub mod decision;
pub mod layout;
pub mod packet;
pub mod prefix;
pub mod quota;
pub mod unit;
pub mod verdict;

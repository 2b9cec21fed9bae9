//! The kernel programs: one file per hook, each a thin shell around `mesh_ebpf_common::verdict`.
//! All of them start with a lookup of the network namespace's cookie, so that they do nothing else
//! for pods that are not enrolled, and for processes of a pod's cgroup in a nested namespace.
//!
//! ```text
//! connect ──original destination──▶ client socket's storage ──(sock_ops: CONNECT)──▶ IN_FLIGHT
//!    │ rewritten to own-IP:4140                                                          │
//!    ▼                                                              (sock_ops: ESTABLISHED)
//! steer (sk_lookup) ──▶ proxy's 4140 listener ──accept──▶ accepted socket's storage ◀────┘
//!                                                              └─▶ getsockopt(SO_ORIGINAL_DST)
//! ```
//!
//! The proxy is identified by the cgroup whose process, with the proxy's uid, has an open listener
//! on the inbound or outbound port. `bind` stores the binder's cgroup with the socket; `sock_ops`
//! registers the listener and its cgroup once the socket listens. While one cgroup has an open
//! listener, `bind` rejects other cgroups with the same uid on these ports, so that the identity
//! can only change after the old proxy has closed its listeners. While no proxy listens, `connect`
//! treats a process with the uid as a proxy that connects before it listens; otherwise such a
//! process is redirected like any other. One gap remains: a process with that uid counts as the
//! proxy until the proxy listens. An admission policy must therefore reserve the uid for the
//! proxy's container, and a native sidecar starts first.
//!
//! `open_ports` records the ports where the pod's sockets listen; `steer` refuses connections to
//! others.
//!
//! While a pod is traced, `trace` reports what `connect`, `steer` and `sock_ops` decide about it.
//!
//! `machine` has the programs for systemd units, which share the network namespace of their host.
//! They are in an object of their own, with the feature `machine`.
//!
//! `mesh-agent::ebpf` loads, pins and attaches the programs and writes the maps.

#![no_std]
#![no_main]
// For the atomic addition in `maps`; aya-ebpf requires it, too.
#![feature(asm_experimental_arch)]

mod bind;
mod connect;
mod context;
mod getsockopt;
mod guard;
#[cfg(feature = "machine")]
mod machine;
mod maps;
mod open_ports;
mod peer;
mod sock_ops;
mod steer;
mod trace;

/// Dual, so that helpers that are reserved for GPL programs can be used: kernels before 5.10
/// reserve `bpf_ktime_get_ns`.
#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 13] = *b"Dual MIT/GPL\0";

#[panic_handler]
fn panic(_info: &core::panic::PanicInfo<'_>) -> ! {
    // Never reached: the programs contain no panicking operation, and the verifier would reject the
    // endless loop otherwise.
    loop {}
}

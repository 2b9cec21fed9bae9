//! The kernel programs: one file per hook, each a thin shell around `mesh_ebpf_common::verdict`.
//! All of them are gated by the network namespace's cookie, so a process of the pod's cgroup in a
//! nested namespace, and every pod that is not enrolled, sees nothing but one failed map lookup.
//!
//! ```text
//! connect ──original destination──▶ client socket's storage ──(sock_ops: TCP_CONNECT)──▶ IN_FLIGHT
//!    │ rewritten to own-IP:4140                                                             │
//!    ▼                                                                  (sock_ops: PASSIVE_ESTABLISHED)
//! steer (sk_lookup) ──▶ proxy's 4140 listener ──accept──▶ accepted socket's storage ◀───────┘
//!                                                              └─▶ getsockopt(SO_ORIGINAL_DST)
//! ```
//!
//! Who the proxy is: the cgroup whose process, with the proxy's uid, has an open listener on the
//! inbound or outbound port. `bind` stamps the socket with the binder's cgroup; `sock_ops` believes
//! the stamp once the socket really listens, and registers it. While one cgroup has a listener
//! open, `bind` refuses the ports to other cgroups with the same uid, so the identity can change
//! hands only after the old proxy is gone. While no proxy listens, `connect` takes a process with
//! the uid for a proxy that dials before it listens; while one does, a process that merely has the
//! uid is redirected like any other. What is left: a process with that uid is the proxy until the
//! proxy listens; an admission policy has to keep the uid to the proxy's container, and a native
//! sidecar starts first.
//!
//! `mesh-agent::ebpf` loads, pins and attaches the programs and writes the maps.

#![no_std]
#![no_main]
// For the atomic addition in `maps`; aya-ebpf needs it, too.
#![feature(asm_experimental_arch)]

mod bind;
mod connect;
mod context;
mod getsockopt;
mod guard;
mod maps;
mod peer;
mod sock_ops;
mod steer;

/// Dual, so that helpers that are reserved for GPL programs could be used; none is used.
#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 13] = *b"Dual MIT/GPL\0";

#[panic_handler]
fn panic(_info: &core::panic::PanicInfo<'_>) -> ! {
    // Never reached: the programs contain no panicking operation, and the verifier would reject the
    // endless loop otherwise.
    loop {}
}

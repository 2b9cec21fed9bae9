//! Inbound, and the second half of outbound: assigns connections to the proxies of units, as
//! `crate::steer` does in pods.
//!
//! * hook: `sk_lookup`; one instance, attached to the host's network namespace
//! * minimum kernel: 5.9
//! * reads PROXY_PORTS, UNIT_PORTS, ADOPTED_PORTS, CGROUPS, UNITS, PODS, ADDRESSES, PORT_SKIPS,
//!   SUBNET_SKIPS, LISTENERS, IN_FLIGHT, IN_FLIGHT_COUNTS; writes STATS
//! * absent: connections reach the unit in clear text and are severed, and redirected ones are
//!   refused
//!
//! Runs for the first packet of every connection to the host, and leaves those to ports that belong
//! to no unit.

use aya_ebpf::bindings::sk_action;
use aya_ebpf::macros::sk_lookup;
use aya_ebpf::programs::SkLookupContext;
use mesh_ebpf_common::layout::INBOUND;
use mesh_ebpf_common::verdict::SocketLookup;
use mesh_ebpf_common::verdict::unit::{PortUse, inbound};

use super::ports;
use crate::context::{self, load};
use crate::maps;
use crate::steer::{carry_out, is_in_flight, is_published};

const IPPROTO_TCP: u32 = 6;

#[sk_lookup]
pub fn mesh_unit_steer(ctx: SkLookupContext) -> u32 {
    steer(&ctx).unwrap_or(sk_action::SK_PASS)
}

#[inline(always)]
fn steer(ctx: &SkLookupContext) -> Option<u32> {
    if load!((*ctx.lookup).protocol) != IPPROTO_TCP {
        return None;
    }
    let lookup = SocketLookup {
        remote: context::lookup_remote(ctx.lookup)?,
        local: context::lookup_local(ctx.lookup)?,
        local_port: load!((*ctx.lookup).local_port) as u16,
    };
    // On loopback the kernel's own lookup finds every listener.
    if lookup.remote.is_loopback() && lookup.local.is_loopback() {
        return None;
    }
    let (cookie, port_use) = ports::owner(&lookup.local, lookup.local_port)?;
    let unit = super::maps::unit(cookie)?;
    let pod = maps::pod(cookie)?;
    let verdict = inbound(
        pod,
        &lookup,
        port_use,
        || match port_use {
            // A port of the proxy's own.
            PortUse::Redirect => is_in_flight(ctx, pod, cookie, &lookup),
            _ => is_published(ctx, pod, cookie, &lookup),
        },
        |address| maps::is_own_address(unit.netns, address),
        |port| maps::is_skipped_port(cookie, INBOUND, port),
        |address| maps::is_skipped_source(cookie, address),
    );
    carry_out(ctx, pod, cookie, &lookup, verdict)
}

//! Inbound, and the second half of outbound: assigns arriving connections to the proxy's listeners.
//!
//! * hook: `sk_lookup`; one instance for each pod, attached to the pod's network namespace
//! * minimum kernel: 5.9
//! * reads PODS, ADDRESSES, PORT_SKIPS, SUBNET_SKIPS, LISTENERS, IN_FLIGHT, IN_FLIGHT_COUNTS,
//!   OPEN_PORTS; writes STATS, PORT_TRACKING
//! * absent: connections reach the application in clear text, and redirected ones are refused
//!
//! The hook provides no netns cookie, so that each pod has its own instance with the cookie as a
//! constant. A shared instance would have to find the pod by local address; it could then assign
//! another pod's listener, or miss connections to an unregistered address.
//!
//! Without a listener the connection is reset (SK_DROP), so that no connection bypasses the proxy,
//! unless the pod is configured to fail open. A connection to a port without a listener is reset,
//! too: passed instead, it could reach an application that begins to listen at this moment around
//! the proxy.

use aya_ebpf::Global;
use aya_ebpf::bindings::sk_action;
use aya_ebpf::macros::sk_lookup;
use aya_ebpf::programs::SkLookupContext;
use mesh_ebpf_common::address::Family;
use mesh_ebpf_common::counter::Counter;
use mesh_ebpf_common::decision::{Decision, Endpoint, Hook};
use mesh_ebpf_common::layout::{
    FLAG_INBOUND_FAIL_OPEN, FlowKey, INBOUND, LISTENER_SLOTS, ListenerKey, PodConfig, Role,
};
use mesh_ebpf_common::verdict::{self, LookupVerdict, SocketLookup};

use crate::context::{self, load};
use crate::{maps, trace};

const IPPROTO_TCP: u32 = 6;

/// The cookie of the network namespace that this instance, or one of `guard`, is attached to; set
/// by the loader.
#[unsafe(no_mangle)]
pub static POD_COOKIE: Global<u64> = Global::new(0);

#[sk_lookup]
pub fn mesh_steer(ctx: SkLookupContext) -> u32 {
    steer(&ctx).unwrap_or(sk_action::SK_PASS)
}

#[inline(always)]
fn steer(ctx: &SkLookupContext) -> Option<u32> {
    if load!((*ctx.lookup).protocol) != IPPROTO_TCP {
        return None;
    }
    let cookie = POD_COOKIE.load();
    let pod = maps::pod(cookie)?;
    let lookup = SocketLookup {
        remote: context::lookup_remote(ctx.lookup)?,
        local: context::lookup_local(ctx.lookup)?,
        local_port: load!((*ctx.lookup).local_port) as u16,
    };
    let verdict = verdict::inbound(
        pod,
        &lookup,
        || is_in_flight(ctx, pod, cookie, &lookup),
        |address| maps::is_own_address(cookie, address),
        |port| maps::is_skipped_port(cookie, INBOUND, port),
        |address| maps::is_skipped_source(cookie, address),
        || maps::is_closed(pod, cookie, &lookup.local, lookup.local_port),
    );
    carry_out(ctx, pod, cookie, &lookup, verdict)
}

/// Assigns the connection to the proxy's listener, refuses it or leaves it, and counts it.
#[inline(always)]
pub fn carry_out(
    ctx: &SkLookupContext,
    pod: &PodConfig,
    cookie: u64,
    lookup: &SocketLookup,
    verdict: LookupVerdict,
) -> Option<u32> {
    // A trace names the proxy's port, as a trace of the connect hook does.
    let port = match verdict {
        LookupVerdict::Proxy(Role::Outbound) => pod.outbound_port,
        _ => lookup.local_port,
    };
    let lookup = SocketLookup {
        local_port: port,
        ..*lookup
    };
    let role = match verdict {
        LookupVerdict::Pass(counter) => {
            maps::count(cookie, counter);
            report(ctx, pod, cookie, &lookup, counter, 0);
            return None;
        }
        LookupVerdict::Refuse(counter) => {
            maps::count_refused_port(cookie);
            report(ctx, pod, cookie, &lookup, counter, 0);
            return Some(sk_action::SK_DROP);
        }
        LookupVerdict::Proxy(role) => role,
    };
    let assigned = assign(ctx, cookie, role, lookup.local.family());
    let port = match role {
        Role::Outbound => pod.outbound_port,
        Role::Inbound => pod.inbound_port,
    };
    let target_port = if assigned { port } else { 0 };
    let (action, counter) = match (assigned, role) {
        // Counted when it was redirected.
        (true, Role::Outbound) => {
            let counter = Counter::OutboundRedirected;
            report(ctx, pod, cookie, &lookup, counter, target_port);
            return None;
        }
        (true, Role::Inbound) => (sk_action::SK_PASS, Counter::InboundSteered),
        (false, Role::Outbound) => (sk_action::SK_DROP, Counter::OutboundRefused),
        (false, Role::Inbound) if pod.flags & FLAG_INBOUND_FAIL_OPEN != 0 => {
            (sk_action::SK_PASS, Counter::InboundFailedOpen)
        }
        (false, Role::Inbound) => (sk_action::SK_DROP, Counter::InboundRefused),
    };
    maps::count(cookie, counter);
    report(ctx, pod, cookie, &lookup, counter, target_port);
    Some(action)
}

/// While a connection of the pod is untracked, any could be it: the proxy rejects those that have
/// no destination, and none reaches an application by mistake.
#[inline(always)]
pub fn is_in_flight(
    ctx: &SkLookupContext,
    pod: &PodConfig,
    cookie: u64,
    lookup: &SocketLookup,
) -> bool {
    is_published(ctx, pod, cookie, lookup) || maps::has_untracked(cookie)
}

/// Whether the connection is in IN_FLIGHT.
#[inline(always)]
pub fn is_published(
    ctx: &SkLookupContext,
    pod: &PodConfig,
    cookie: u64,
    lookup: &SocketLookup,
) -> bool {
    let client = (lookup.remote, context::lookup_remote_port(ctx.lookup));
    let key = FlowKey::new(cookie, client, lookup.local_port, pod.outbound_port);
    maps::in_flight(&key).is_some()
}

/// Reports a decision if the pod is traced. `target_port` is the port of the proxy's listener; 0
/// for a connection that it does not get.
#[inline(always)]
fn report(
    ctx: &SkLookupContext,
    pod: &PodConfig,
    cookie: u64,
    lookup: &SocketLookup,
    counter: Counter,
    target_port: u16,
) {
    if !trace::is_traced(pod) {
        return;
    }
    trace::report(&mut Decision::new(
        Hook::Lookup,
        cookie,
        counter,
        Endpoint::new(lookup.remote, context::lookup_remote_port(ctx.lookup)),
        Endpoint::new(lookup.local, lookup.local_port),
        Endpoint::new(lookup.local, target_port),
    ));
}

/// Selects the first open listener that accepts this family; a dual-stack one accepts IPv4 too.
#[inline(always)]
fn assign(ctx: &SkLookupContext, cookie: u64, role: Role, family: Family) -> bool {
    (family == Family::V4 && assign_from(ctx, cookie, role, Family::V4))
        || assign_from(ctx, cookie, role, Family::V6)
}

#[inline(always)]
fn assign_from(ctx: &SkLookupContext, cookie: u64, role: Role, family: Family) -> bool {
    for slot in 0..LISTENER_SLOTS {
        let key = ListenerKey::new(cookie, role, family, slot);
        if maps::LISTENERS.redirect_sk_lookup(ctx, key, 0).is_ok() {
            return true;
        }
    }
    false
}

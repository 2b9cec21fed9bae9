//! Tests of whole proxies between applications in one process, after Linkerd's own tests, with a
//! scripted control plane. The clock is paused unless a test advances it, so waiting is observable
//! and results do not depend on the machine's speed.
//!
//! The modules follow Linkerd's tests: discovery, direct connections, identity, HTTP/1 upgraded to
//! HTTP/2, shutdown, transparency. `policy` tests authorization.

mod admin;
mod answers;
mod app;
mod breaker;
mod cors;
mod direct;
mod discovery;
mod egress;
mod exclusion;
pub(crate) mod fake_control_plane;
mod faults;
mod filters;
mod gateway;
mod goaway;
mod http1_bodies;
mod http2_peer;
mod identity;
mod inbound_profiles;
mod ingress;
mod lenient;
mod limits;
mod line_ends;
mod mirrors;
mod orig_proto;
mod outside;
mod policy;
mod port_scan;
mod queue;
mod restarts;
mod retries;
mod reused_addresses;
mod shutdown;
mod tap;
mod tcp_routes;
mod tls_routes;
pub(crate) mod trace;
mod transparency;
mod uploads;
mod world;

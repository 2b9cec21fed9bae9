//! Whole proxies: the real binary in network namespaces with real redirection, real TLS between
//! proxies, and a control plane that says what the test says.
//!
//! Needs root, `ip` and `nft`; without them each test says so and passes.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test that cannot go on has failed"
)]

mod harness;

mod accept;
mod balance;
mod denied;
mod exemplars;
mod faults;
mod foreign;
mod http;
mod load;
mod opaque;
mod policy;
mod programs;
mod redirection;
mod rotation;
mod routes;
mod shutdown;
mod spiffe;
mod start;

//! What the tests and benchmarks of several packages share.
//!
//! `control_plane` serves Linkerd's proxy API from a script, `certificates` issues them, `verifier`
//! accepts any, and `eventually` waits for a state that another process or task brings about. No
//! program of the mesh depends on this package.

#![expect(
    clippy::expect_used,
    reason = "code of tests: a panic fails the test, with its reason"
)]

pub mod certificates;
pub mod control_plane;
pub mod eventually;
pub mod tls;

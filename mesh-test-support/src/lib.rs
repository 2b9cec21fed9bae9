//! What the tests and benchmarks of several packages share.
//!
//! `control_plane` serves Linkerd's proxy API from a script, `certificates` issues them, `verifier`
//! accepts any, and `eventually` waits for a state that another process or task brings about. No
//! program of the mesh depends on this package.

pub mod certificates;
pub mod control_plane;
pub mod eventually;
pub mod tls;

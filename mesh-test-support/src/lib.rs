//! Code that the tests and benchmarks of several packages share.
//!
//! `control_plane` serves Linkerd's proxy API from a script, `certificates` issues them, and `tls`
//! contains peers. `controller` starts a real one. `machine` and `network` create and remove a
//! test's resources on the machine. `command` and `program` run programs, `cni` runs plugins, and
//! `http` asks servers, and `http2` has frames of hand-made peers. `cluster` installs a mesh into a
//! real cluster. `kube_api` plays API servers, and `installation` has the objects of a mesh for
//! one. `eventually` waits for a state that another process or task brings about. `campaign` is for
//! tests that plant a fault, `policies` generates random sets of policies, and `rights` reads those
//! that a chart grants. `systemd` boots a host. No program of the mesh depends on this package.

#![expect(
    clippy::expect_used,
    clippy::print_stdout,
    reason = "code of tests: a panic fails the test, with its reason, and the output shows why a test was skipped"
)]

pub mod campaign;
pub mod certificates;
pub mod cluster;
pub mod cni;
pub mod command;
pub mod control_plane;
pub mod controller;
pub mod eventually;
pub mod http;
pub mod http2;
pub mod installation;
pub mod kube_api;
pub mod machine;
pub mod network;
pub mod policies;
pub mod program;
pub mod rights;
pub mod systemd;
pub mod tls;

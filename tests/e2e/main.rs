//! The end-to-end tests: a real cluster, a real installation, third-party applications.
//!
//! `MESH_TEST_CLUSTER` names the context of a cluster that has the images (`cargo xtask test --e2e`
//! loads them) and no installation of the mesh. Without it every test is skipped.
//! `MESH_TEST_KEEP=1` keeps the state of a failed test.

#![expect(
    clippy::expect_used,
    clippy::print_stdout,
    reason = "a failed precondition fails the test, and a skipped test prints the reason"
)]

mod addresses;
mod admission;
mod application;
mod definitions;
mod families;
mod faults;
mod linked;
mod linked_faults;
mod linked_rotation;
mod load;
mod node;
mod outages;
mod probes;
mod repairs;
mod restarts;
mod rotation;
mod routes;
mod shop;
mod snapshot;
mod statuses;
mod stops;
mod validation;
mod viz;

//! The end-to-end tests: a real cluster, a real installation, programs that nobody here wrote.
//!
//! `MESH_TEST_CLUSTER` names the context of a cluster on which nothing of the mesh is installed and
//! which has the images (`cargo xtask test --e2e` sees to them). Without it every test says that it
//! is skipped. `MESH_TEST_KEEP=1` leaves everything as it was when a story failed.

#![expect(
    clippy::expect_used,
    clippy::print_stdout,
    reason = "a test that cannot go on has failed, and a skipped one says why on its output"
)]

mod addresses;
mod admission;
mod application;
mod cluster;
mod faults;
mod installation;
mod load;
mod node;
mod outages;
mod repairs;
mod restarts;
mod shop;
mod stops;

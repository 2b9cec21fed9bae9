//! Runs containers as processes. A container has the network namespace of its pod, its own mount
//! and UTS namespaces, a cgroup, and an overlay over the files of the machine. [`plan`] computes
//! its specification, [`shim`] sets it up and executes its program, and [`run`] supervises it. A
//! container is not a security boundary: it has no PID and user namespace, so that root in a
//! container is root on the machine.

pub mod data_sources;
pub mod env;
pub mod plan;
pub mod probe;
pub mod run;
pub mod shim;
pub mod state;
pub mod volume;

//! Containers as processes.
//!
//! A container is a process with a network namespace shared with its pod, a mount namespace and a
//! host name of its own, a cgroup, and files that are the machine's with its own changes on top.
//! [`plan`](plan::Plan) says what to start, [`stub`] is what the started program does before it
//! becomes the container's, [`run`](run::run) keeps it running. It is no security boundary: process
//! ids are the machine's and root in a container is root.

pub mod env;
pub mod plan;
pub mod probe;
pub mod run;
pub mod state;
pub mod stub;
pub mod volume;

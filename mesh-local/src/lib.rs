//! A mesh node without Kubernetes: Pod manifests as processes.
//!
//! `meshctl local up DIR` reads ordinary Kubernetes YAML and starts a node daemon ([`node`]). Each
//! Pod becomes processes ([`container`]) in a network namespace and a cgroup of its own, patched by
//! the same injector as on a cluster ([`workload`]) and wired by a chain of CNI plugins ([`cni`]).
//! The controllers run as ordinary meshed pods ([`control_plane`]) and read the folder together
//! with the objects that the node writes ([`objects`]); Services get addresses and names that
//! unmeshed pods can use too ([`service`]). The demo, the end-to-end tests and `meshctl local`
//! stand on this crate.
//!
//! It is no orchestrator and no sandbox: one machine, no scheduling, no rolling updates, no images,
//! processes of root where the manifest does not say otherwise.

pub mod cgroup;
pub mod clean;
pub mod client;
pub mod cni;
pub mod command;
pub mod container;
pub mod control_plane;
pub mod digest;
pub mod file;
pub mod host;
pub mod image;
pub mod instance;
pub mod manifest;
pub mod netns;
pub mod network;
pub mod node;
pub mod objects;
pub mod pki;
pub mod pod;
pub mod service;
pub mod settings;
pub mod token;
pub mod workload;

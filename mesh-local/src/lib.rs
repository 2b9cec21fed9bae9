//! A mesh node without Kubernetes, which runs Pod manifests as processes. `meshctl local up DIR`
//! reads Kubernetes YAML and starts a node daemon ([`node`]). The containers of a Pod run as
//! processes ([`container`]) in a network namespace and cgroups of their own. Pods are patched by
//! the injector of clusters ([`workload`]) and connected by a chain of CNI plugins ([`cni`]). The
//! controllers run as meshed pods ([`control_plane`]) and read the directory and the objects that
//! the node writes ([`objects`]). Services have addresses and names, for unmeshed pods, too
//! ([`service`]). The demo, the end-to-end tests and `meshctl local` use this crate. This crate is
//! not an orchestrator and not a sandbox: there is one machine, no scheduling, no rolling updates
//! and no images, and processes run as root unless the manifest sets a user.

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
pub mod manifest;
pub mod netns;
pub mod network;
pub mod node;
pub mod node_paths;
pub mod objects;
pub mod observer;
pub mod pki;
pub mod pod;
pub mod service;
pub mod settings;
pub mod token;
pub mod workload;

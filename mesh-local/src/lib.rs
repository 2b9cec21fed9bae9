//! A mesh node without Kubernetes: Pod manifests as processes.

pub mod paths;

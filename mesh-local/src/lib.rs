//! A mesh node without Kubernetes: Pod manifests as processes.
pub mod command;
pub mod digest;
pub mod file;
pub mod host;
pub mod image;
pub mod instance;
pub mod manifest;
pub mod network;
pub mod objects;
pub mod pki;
pub mod service;
pub mod settings;
pub mod token;
pub mod workload;

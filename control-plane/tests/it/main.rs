//! The controllers as processes: real folders, real gRPC clients, real signals.

mod controller;
mod destination;
mod identity;
mod lifecycle;
mod manifests;
mod policy;

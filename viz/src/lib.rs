//! The viz extension: the metrics API, tap, the tap injector, and the dashboard.
//!
//! It holds no key and decides no policy; the controllers (`mesh-control-plane`) contain none of
//! it. The [inventory](mesh_objects::inventory) has the objects that the [metrics API](metrics_api)
//! and `tap` select; [`metrics`] queries Prometheus or the proxies. [`daemon`] runs the parts of
//! one process, as configured by [`config`].

pub mod config;
pub mod daemon;
mod inventory;
pub mod metrics;
pub mod metrics_api;
mod tap;
mod tap_injector;
mod web;

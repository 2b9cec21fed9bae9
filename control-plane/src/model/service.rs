//! Services and the endpoints behind them.

use std::{net::IpAddr, sync::Arc};

use mesh_core::{
    ports::PortSet,
    resilience::{FailureAccrual, FailurePenalty, Timeouts},
};

use super::{Name, route::Retries};

#[derive(Clone, Debug, PartialEq)]
pub struct Service {
    pub name: Name,
    pub external_name: bool,
    /// Empty for a headless Service.
    pub cluster_ips: Vec<IpAddr>,
    pub ports: Vec<ServicePort>,
    /// What its annotation makes opaque, names resolved; absent without annotation.
    pub opaque_ports: Option<PortSet>,
    /// `internalTrafficPolicy: Local`
    pub local_traffic: bool,
    pub traffic: TrafficSettings,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServicePort {
    pub name: Option<Arc<str>>,
    pub number: u16,
    /// Lower case.
    pub app_protocol: Option<Arc<str>>,
}

/// What the annotations of a Service say about requests to it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TrafficSettings {
    pub timeouts: Timeouts,
    pub retries: Option<Retries>,
    pub failure_accrual: Option<FailureAccrual>,
    pub failure_penalty: Option<FailurePenalty>,
}

/// An EndpointSlice.
#[derive(Clone, Debug, PartialEq)]
pub struct Slice {
    pub name: Name,
    /// The Service of the same namespace it belongs to.
    pub service: Option<Arc<str>>,
    pub ports: Vec<SlicePort>,
    pub endpoints: Vec<SliceEndpoint>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlicePort {
    pub name: Option<Arc<str>>,
    pub number: Option<u16>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct SliceEndpoint {
    pub addresses: Vec<IpAddr>,
    pub ready: bool,
    pub target: SliceTarget,
    pub hostname: Option<Arc<str>>,
    pub zone: Option<Arc<str>>,
    pub zone_hints: Vec<Arc<str>>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SliceTarget {
    Pod(Name),
    /// Of a kind the mesh has no record of.
    Other,
    None,
}

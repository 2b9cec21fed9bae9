//! The objects of the controller that writes EndpointSlices of ExternalWorkloads.
//!
//! The index has records of the same objects with the fields that decide about traffic.

use std::net::IpAddr;
use std::sync::Arc;

use super::{Kind, Labels, Name};

/// An object that decides about EndpointSlices of ExternalWorkloads.
#[derive(Clone, Debug, PartialEq)]
pub struct ExternalObject {
    pub kind: ExternalKind,
    pub name: Name,
    /// `None` if the object has no influence: a Service without a selector, a slice of another
    /// controller.
    pub spec: Option<ExternalSpec>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ExternalKind {
    Service,
    Workload,
    Slice,
}

#[derive(Clone, Debug, PartialEq)]
pub enum ExternalSpec {
    Service(Arc<SelectingService>),
    Workload(Arc<SelectedWorkload>),
    Slice(Arc<WrittenSlice>),
}

/// A Service that selects workloads by their labels.
#[derive(Clone, Debug, PartialEq)]
pub struct SelectingService {
    pub uid: Arc<str>,
    pub labels: Labels,
    /// Never empty.
    pub selector: Labels,
    pub headless: bool,
    pub families: Vec<AddressFamily>,
    pub ports: Vec<TargetedPort>,
}

/// A port of a Service, and its port of the workload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TargetedPort {
    pub name: Option<Arc<str>>,
    /// For example `TCP`
    pub protocol: Arc<str>,
    /// As it was written.
    pub app_protocol: Option<Arc<str>>,
    pub target: TargetPort,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TargetPort {
    Number(u16),
    Name(Arc<str>),
}

/// A workload that Services may select.
#[derive(Clone, Debug, PartialEq)]
pub struct SelectedWorkload {
    pub uid: Arc<str>,
    pub labels: Labels,
    pub ips: Vec<IpAddr>,
    pub ports: Vec<NamedPort>,
    /// Whether its condition `Ready` is `True`.
    pub ready: bool,
    pub zone: Option<Arc<str>>,
}

/// A port of a workload that has a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedPort {
    pub name: Arc<str>,
    pub protocol: Arc<str>,
    pub number: u16,
}

/// A slice that the controller has written.
#[derive(Clone, Debug, PartialEq)]
pub struct WrittenSlice {
    pub resource_version: Option<Arc<str>>,
    /// `None` for a slice that another client has spoilt: without a field, or with an invalid one.
    pub content: Option<ExternalSlice>,
}

/// The fields of a slice that its controller decides about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExternalSlice {
    /// The name of its Service.
    pub service: Arc<str>,
    pub service_uid: Arc<str>,
    pub labels: Labels,
    pub family: AddressFamily,
    pub ports: Vec<EndpointPort>,
    pub endpoints: Vec<ExternalEndpoint>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum AddressFamily {
    V4,
    V6,
}

/// A port of the endpoints of a slice.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct EndpointPort {
    pub name: Option<Arc<str>>,
    pub protocol: Arc<str>,
    pub number: u16,
    pub app_protocol: Option<Arc<str>>,
}

/// An endpoint of a slice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExternalEndpoint {
    /// The ExternalWorkload, in the namespace of the slice.
    pub workload: Arc<str>,
    pub workload_uid: Arc<str>,
    pub addresses: Vec<IpAddr>,
    /// Its conditions `ready` and `serving`.
    pub ready: bool,
    pub hostname: Option<Arc<str>>,
    pub zone: Option<Arc<str>>,
}

impl AddressFamily {
    /// Returns the `addressType` of an EndpointSlice, and the IP family of a Service.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::V4 => "IPv4",
            Self::V6 => "IPv6",
        }
    }

    /// Returns the family with this name in EndpointSlices and Services.
    pub fn find(name: &str) -> Option<Self> {
        let mut all = [Self::V4, Self::V6].into_iter();
        all.find(|family| family.as_str() == name)
    }

    pub fn contains(self, ip: IpAddr) -> bool {
        match self {
            Self::V4 => ip.is_ipv4(),
            Self::V6 => ip.is_ipv6(),
        }
    }
}

impl ExternalKind {
    /// Returns the kind of the record in the index.
    pub const fn indexed(self) -> Kind {
        match self {
            Self::Service => Kind::Service,
            Self::Workload => Kind::ExternalWorkload,
            Self::Slice => Kind::EndpointSlice,
        }
    }

    pub fn group(self) -> &'static str {
        self.indexed().group()
    }

    pub fn as_str(self) -> &'static str {
        self.indexed().as_str()
    }
}

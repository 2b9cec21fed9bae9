//! Why a unit is not enrolled, or the host cannot be reconciled.

use std::path::PathBuf;

use mesh_core::node::RefusalReason;
use mesh_ebpf_common::quota::UNITS_MAX;

use super::addresses::AddressesError;
use super::identities::IdentityError;
use super::ports::PortsError;
use super::systemd::SystemdError;
use super::unit_name::UnitNameError;
use crate::ebpf;
use crate::listening::ListeningError;
use crate::membership::MembershipError;
use crate::redirect::AnnotationError;
use crate::registry::RegistryError;
use crate::sys::netns::NetnsError;

#[derive(Debug, thiserror::Error)]
pub enum MachineError {
    #[error(transparent)]
    Name(#[from] UnitNameError),
    #[error(transparent)]
    Records(#[from] RegistryError),
    #[error(transparent)]
    Annotation(#[from] AnnotationError),
    #[error(transparent)]
    Ports(#[from] PortsError),
    #[error(transparent)]
    Systemd(#[from] SystemdError),
    #[error("{UNITS_MAX} units are enrolled, which is the limit of a host; withdraw one first")]
    TooManyUnits,
    #[error(
        "cgroup {cgroup} of {unit} is not below {root}, where the programs for units are attached; start the agent with --cgroup-root and a cgroup above it that systemd never removes"
    )]
    OutsideOfRoot {
        unit: String,
        cgroup: String,
        root: PathBuf,
    },
    #[error(
        "cgroup {cgroup} of the proxy of {unit} is not below {root}, where the programs for proxies are attached; set Slice= in the proxy's unit, or start the agent with --proxy-root"
    )]
    ProxyOutsideOfRoot {
        unit: String,
        cgroup: String,
        root: PathBuf,
    },
    #[error("{unit} cannot be enrolled beside the other units")]
    Conflict {
        unit: String,
        source: Box<ebpf::Error>,
    },
    #[error(
        "unit {0} is not redirected; `meshctl machine status` shows whether it is enrolled, and what it waits for"
    )]
    NotRedirected(String),
    #[error("{unit} cannot be redirected: {problem}")]
    Incomplete { unit: String, problem: String },
    #[error("{0} is below the root of no cgroup hierarchy of version 2")]
    NoHierarchy(PathBuf),
    #[error("cannot create {path}, the cgroup of the proxies")]
    ProxyRoot {
        path: PathBuf,
        source: std::io::Error,
    },
    #[error(transparent)]
    Identity(#[from] IdentityError),
    #[error(transparent)]
    Membership(#[from] MembershipError),
    #[error(transparent)]
    Addresses(#[from] AddressesError),
    #[error(transparent)]
    Listening(#[from] ListeningError),
    #[error(transparent)]
    Netns(#[from] NetnsError),
    #[error("the kernel programs cannot be used")]
    Programs(#[source] Box<ebpf::Error>),
}

impl From<ebpf::Error> for MachineError {
    fn from(error: ebpf::Error) -> Self {
        Self::Programs(Box::new(error))
    }
}

impl MachineError {
    /// Returns the reason that the agent's refusal carries.
    pub fn reason(&self) -> RefusalReason {
        match self {
            Self::Membership(error) => error.reason(),
            Self::Identity(
                IdentityError::NotJoined { .. }
                | IdentityError::Account(_)
                | IdentityError::NoAccount
                | IdentityError::ExternalWorkload(_)
                | IdentityError::NoUser(_),
            ) => RefusalReason::Invalid,
            Self::Name(_)
            | Self::Annotation(_)
            | Self::Ports(_)
            | Self::TooManyUnits
            | Self::OutsideOfRoot { .. }
            | Self::ProxyOutsideOfRoot { .. }
            | Self::Conflict { .. }
            | Self::Systemd(SystemdError::NoUnit(_)) => RefusalReason::Invalid,
            Self::NotRedirected(_) => RefusalReason::NotEnrolled,
            Self::Systemd(SystemdError::TimedOut) => RefusalReason::TryAgain,
            Self::Records(_)
            | Self::Identity(_)
            | Self::Systemd(_)
            | Self::Incomplete { .. }
            | Self::NoHierarchy(_)
            | Self::ProxyRoot { .. }
            | Self::Addresses(_)
            | Self::Listening(_)
            | Self::Netns(_)
            | Self::Programs(_) => RefusalReason::Failed,
        }
    }
}

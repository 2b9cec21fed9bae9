//! The redirection of systemd units of a host without Kubernetes.

mod addresses;
mod ports;
mod records;
mod systemd;
mod unit_name;

pub use self::addresses::{AddressChanges, AddressesError};
pub use self::ports::PortsError;

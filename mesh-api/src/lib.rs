//! The wire: Linkerd's proxy API and its conversions to mesh-core.
//!
//! Both directions live side by side. From the wire (proxy): strict, an error names the field that
//! cannot be used. To the wire (controllers): total, and never a message that a proxy of the API
//! would refuse. The functions read like the messages; what a field means is said in mesh-core.

pub use linkerd2_proxy_api as proto;

#[cfg(test)]
mod arbitrary;
mod field;
mod route;
mod value;

pub mod destination;
pub mod identity;
pub mod inbound;
pub mod meta;
pub mod outbound;

pub use self::field::{InvalidField, Reason};

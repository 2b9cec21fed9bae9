//! Linkerd's proxy API and its conversions to and from mesh-core, the API of its viz extension
//! ([`linkerd2`]), the project's extensions of messages ([`mesh`]), what collectors of spans
//! receive ([`trace`]), the SPIFFE Workload API ([`spiffe`]), and what gRPC code may see of a peer
//! ([`grpc`]).
//!
//! Conversions from protobuf (for the proxy) are strict: an error names the field that is invalid.
//! Conversions to protobuf (for the controllers) always succeed, and never return a message that a
//! proxy of the API would reject. Functions are named after the messages; mesh-core documents the
//! meaning of the fields.

#![warn(missing_docs)]

/// The generated protobuf types.
pub use linkerd2_proxy_api as proto;

mod extended;
mod field;
mod route;
#[cfg(test)]
mod tests;
mod value;

pub mod destination;
pub mod grpc;
pub mod identity;
pub mod inbound;
pub mod linkerd2;
pub mod mesh;
pub mod meta;
pub mod opentelemetry;
pub mod outbound;
pub mod spiffe;
pub mod tap;
pub mod tap_conditions;
pub mod tap_events;
pub mod tap_frames;
pub mod tap_request;
pub mod trace;

pub use self::extended::Extended;
pub use self::field::{InvalidField, InvalidFieldKind};

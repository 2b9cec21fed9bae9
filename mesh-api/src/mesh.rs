//! The messages of this project, and the `OutboundPolicies` service of Linkerd's proxy API with
//! [`ExtendedPolicy`](crate::outbound::ExtendedPolicy) as its response.
//!
//! `tests/generated.rs` generates the code from the files below `proto`.

#![expect(
    missing_docs,
    unused_qualifications,
    clippy::allow_attributes_without_reason,
    reason = "generated code; the .proto files have comments"
)]

/// `mesh.destination`
pub mod destination {
    include!("generated/mesh.destination.rs");
}

/// `mesh.identity`
pub mod identity {
    include!("generated/mesh.identity.rs");
}

/// `mesh.outbound`
pub mod outbound {
    include!("generated/mesh.outbound.rs");
}

/// `io.linkerd.proxy.outbound.OutboundPolicies`
pub mod service {
    include!("generated/io.linkerd.proxy.outbound.OutboundPolicies.rs");
}

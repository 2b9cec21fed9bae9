//! The messages and services of Linkerd's viz extension, one module for each protobuf package.
//!
//! `tests/generated.rs` generates the code from the files below `proto`.

#![expect(
    missing_docs,
    unused_qualifications,
    clippy::all,
    clippy::allow_attributes_without_reason,
    reason = "generated code; the .proto files have comments"
)]

pub use prost_types::Duration;

/// `linkerd2.common`
pub mod common {
    /// `linkerd2.common.net`
    pub mod net {
        include!("generated/linkerd2.common.net.rs");
    }
}

/// `linkerd2.tap`
pub mod tap {
    include!("generated/linkerd2.tap.rs");
}

/// `linkerd2.viz`
pub mod viz {
    include!("generated/linkerd2.viz.rs");
}

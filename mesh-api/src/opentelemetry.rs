//! The messages and the service of the OpenTelemetry protocol (OTLP) for spans, one module for each
//! protobuf package.
//!
//! `tests/generated.rs` generates the code from the files below `proto`, which have the fields that
//! the proxy uses (docs/adr/0076).

#![expect(
    missing_docs,
    unused_qualifications,
    clippy::all,
    clippy::allow_attributes_without_reason,
    reason = "generated code; the .proto files have comments"
)]

/// `opentelemetry.proto.common`
pub mod common {
    /// `opentelemetry.proto.common.v1`
    pub mod v1 {
        include!("generated/opentelemetry.proto.common.v1.rs");
    }
}

/// `opentelemetry.proto.resource`
pub mod resource {
    /// `opentelemetry.proto.resource.v1`
    pub mod v1 {
        include!("generated/opentelemetry.proto.resource.v1.rs");
    }
}

/// `opentelemetry.proto.trace`
pub mod trace {
    /// `opentelemetry.proto.trace.v1`
    pub mod v1 {
        include!("generated/opentelemetry.proto.trace.v1.rs");
    }
}

/// `opentelemetry.proto.collector`
pub mod collector {
    /// `opentelemetry.proto.collector.trace`
    pub mod trace {
        /// `opentelemetry.proto.collector.trace.v1`
        pub mod v1 {
            include!("generated/opentelemetry.proto.collector.trace.v1.rs");
        }
    }
}

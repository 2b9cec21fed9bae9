//! The test suites.

use clap::ValueEnum;

/// A test suite.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub(crate) enum Suite {
    /// Conformance of HTTP/2 and HPACK, frame by frame
    H2spec,
    /// The interoperability tests of gRPC, with client and server of grpc-go
    GrpcInterop,
    /// Autobahn's WebSocket cases
    Kosoku,
    /// Tracing: the traces that Jaeger receives from instrumented applications and the proxies
    /// between them
    Jaeger,
    /// Request smuggling
    Smugglex,
    /// Slow HTTP attacks, with an honest client in parallel
    Slowhttptest,
    /// In-house attacks with valid but costly traffic, with an honest client in parallel
    Hostile,
}

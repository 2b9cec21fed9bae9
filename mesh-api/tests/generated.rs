//! Compares the generated code of `proto` with the files below `src/generated`. With
//! `MESH_GENERATE=1` it writes these files instead.
//!
//! The generator is a test and not a build script, so that no build needs it.

use std::fs;
use std::path::{Path, PathBuf};

use tonic_prost_build::manual;

const PROTOS: [&str; 8] = [
    "linkerd2/common_net.proto",
    "linkerd2/tap.proto",
    "linkerd2/viz.proto",
    "mesh/destination.proto",
    "mesh/identity.proto",
    "mesh/outbound.proto",
    "opentelemetry/proto/collector/trace/v1/trace_service.proto",
    "spiffe/workload.proto",
];

/// The generated files, one for each package or manually described service.
const GENERATED: [&str; 12] = [
    // The SPIFFE Workload API has no package.
    "_.rs",
    "io.linkerd.proxy.outbound.OutboundPolicies.rs",
    "linkerd2.common.net.rs",
    "linkerd2.tap.rs",
    "linkerd2.viz.rs",
    "mesh.destination.rs",
    "mesh.identity.rs",
    "mesh.outbound.rs",
    "opentelemetry.proto.collector.trace.v1.rs",
    "opentelemetry.proto.common.v1.rs",
    "opentelemetry.proto.resource.v1.rs",
    "opentelemetry.proto.trace.v1.rs",
];

fn package_path(relative: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(relative)
}

/// The service of Linkerd's outbound policies with responses that have an extension.
fn outbound_policies() -> manual::Service {
    let method = |name: &str, route: &str| {
        manual::Method::builder()
            .name(name)
            .route_name(route)
            .input_type("crate::proto::outbound::TrafficSpec")
            .output_type("crate::outbound::ExtendedPolicy")
            .codec_path("tonic_prost::ProstCodec")
    };
    manual::Service::builder()
        .name("OutboundPolicies")
        .package("io.linkerd.proxy.outbound")
        .method(method("get", "Get").build())
        .method(method("watch", "Watch").server_streaming().build())
        .build()
}

#[test]
fn generated_code_matches_proto_files() {
    let descriptors = protox::compile(PROTOS, [package_path("proto")]).unwrap();
    let directory = tempfile::tempdir().unwrap();
    tonic_prost_build::configure()
        .build_transport(false)
        .btree_map(".")
        .emit_rerun_if_changed(false)
        .out_dir(directory.path())
        .compile_fds(descriptors)
        .unwrap();
    manual::Builder::new()
        .build_transport(false)
        .out_dir(directory.path())
        .compile(&[outbound_policies()]);
    for file in GENERATED {
        let generated = fs::read_to_string(directory.path().join(file)).unwrap();
        let checked_in = package_path("src/generated").join(file);
        if std::env::var_os("MESH_GENERATE").is_some() {
            fs::write(&checked_in, generated).unwrap();
        } else {
            assert!(
                fs::read_to_string(&checked_in).unwrap_or_default() == generated,
                "{file} is not the code of its .proto file; run `MESH_GENERATE=1 cargo test -p mesh-api --test generated`"
            );
        }
    }
}

//! Server.

use mesh_core::policy::inbound::DefaultPolicy;

use super::{Node, selector};
use crate::crd::{PortRef, ProxyProtocol};

const SELECTORS: [&str; 2] = ["podSelector", "externalWorkloadSelector"];

pub(super) fn server(object: &Node<'_>) {
    let Some(spec) = object.require("spec", "describe the port of the Server") else {
        return;
    };
    if spec.object().is_none() {
        return;
    }
    let what = "a Server selects either pods or ExternalWorkloads";
    if let Some(workloads) = selector::exactly_one(&spec, SELECTORS, what) {
        selector::label_selector(&workloads);
    }
    let fix = "write a port number from 1 to 65535, or the name of a container port";
    if let Some(port) = spec.require("port", fix) {
        port.read::<PortRef>(fix);
    }
    if let Some(protocol) = spec.get("proxyProtocol") {
        protocol.read::<ProxyProtocol>("write unknown, HTTP/1, HTTP/2, gRPC, opaque or TLS");
    }
    if let Some(policy) = spec.get("accessPolicy") {
        policy.one_of(&DefaultPolicy::ALL.map(DefaultPolicy::as_str));
    }
}

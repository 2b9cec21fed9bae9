//! Inbound policies of pods that are being deleted.

use mesh_objects::policy::json;
use serde_json::Value;

use super::*;

#[test]
fn policies_of_a_port_tell_that_its_pod_is_being_deleted() {
    const SERVER: &str = "
---
apiVersion: policy.linkerd.io/v1beta3
kind: Server
metadata: {name: web, namespace: shop}
spec: {podSelector: {}, port: 8080}
";
    let deleted = web("").replacen(
        "name: web-1\n",
        "name: web-1\n  deletionTimestamp: '2026-01-01T00:00:00Z'\n",
        1,
    );
    let mut index = index(&(web("") + SERVER));
    let ports = [inbound(&mut index, 8080), inbound(&mut index, 8081)];
    let terminating = || {
        ports
            .each_ref()
            .map(|port| json::inbound(&current(port))["terminating"].clone())
    };
    assert_eq!(terminating(), [Value::Null, Value::Null]);
    index.apply(apply(&deleted));
    assert_eq!(terminating(), [Value::Bool(true), Value::Bool(true)]);
}

//! EgressNetwork.

use super::{Node, networks};

pub(super) fn egress_network(object: &Node<'_>) {
    let Some(spec) = object.require("spec", "describe the traffic that leaves the cluster") else {
        return;
    };
    let fix = "write Allow or Deny, for traffic that no route matches";
    if let Some(policy) = spec.require("trafficPolicy", fix) {
        policy.one_of(&["Allow", "Deny"]);
    }
    if let Some(list) = spec.get("networks") {
        let fix =
            "list at least one network, or remove the field for all addresses outside the cluster";
        networks::some_networks(&list, fix);
    }
}

//! The faults of the campaign, by part of the mesh. docs/reliability.md is written from this table,
//! and its tests are run by it.

mod control_plane;
mod identity;
mod node;
mod proxy;
mod webhooks;

use crate::fault::Group;

pub(crate) const GROUPS: [Group; 5] = [
    Group {
        title: "Control plane",
        faults: control_plane::FAULTS,
    },
    Group {
        title: "Identity",
        faults: identity::FAULTS,
    },
    Group {
        title: "Proxy",
        faults: proxy::FAULTS,
    },
    Group {
        title: "Node agent, CNI, eBPF",
        faults: node::FAULTS,
    },
    Group {
        title: "Webhooks, command line, disk",
        faults: webhooks::FAULTS,
    },
];

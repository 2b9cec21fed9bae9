//! An enrolled unit as data, for tests of all that shows or checks units.

use std::collections::BTreeMap;

use mesh_core::machine::{UnitPorts, UnitState, UnitStatus, proxy_unit};

/// Returns a redirected unit whose proxy listens, with the block of ports from `first` on.
pub(crate) fn redirected(unit: &str, first: u16) -> UnitStatus {
    UnitStatus {
        unit: unit.to_owned(),
        state: UnitState::Redirected,
        cgroups: vec![format!("system.slice/{unit}")],
        running: true,
        proxy_cgroup: format!("mesh.slice/{}", proxy_unit(unit)),
        proxy_listens: true,
        ports: UnitPorts {
            outbound: first,
            inbound: first + 1,
            control: first + 2,
            admin: first + 3,
            redirect_first: first + 4,
            redirect_last: first + 63,
        },
        listening: Vec::new(),
        connections: BTreeMap::new(),
        warnings: Vec::new(),
        identity: None,
        annotations: BTreeMap::new(),
        environment_file: None,
        foreign_listeners: Vec::new(),
    }
}

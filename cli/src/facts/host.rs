//! Facts about this machine as a host of systemd units, for `meshctl machine check`.

#[cfg(test)]
pub(crate) mod tests;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use mesh_core::exposition::Sample;
use mesh_core::machine::{DEFAULT_UNITS_DIR, MembershipStatus, UnitStatus, instance};
use mesh_core::node::NodeStatus;

use super::{Fact, not_queried};
use crate::host::control_plane::{Clocks, Service};
use crate::host::environment::{Content, Variables, proxy_variable};
use crate::host::process::Process;
use crate::host::systemd;
use crate::host::token::TokenFile;

/// This machine, its agent and its units.
#[derive(Debug)]
pub(crate) struct Host {
    /// The name of process 1.
    pub(crate) init: Fact<String>,
    /// The units of the mesh by name, as systemd knows them; an error where it cannot be asked.
    pub(crate) own_units: Fact<BTreeMap<&'static str, OwnUnit>>,
    /// The last lines that the agent has logged, if it does not run.
    pub(crate) agent_log: Vec<String>,
    pub(crate) agent: Fact<NodeStatus>,
    /// `Ok(None)` if the machine has not joined a mesh.
    pub(crate) membership: Fact<Option<MembershipStatus>>,
    /// The services that agent and proxies use.
    pub(crate) services: Vec<Reached>,
    pub(crate) clocks: Fact<Option<Clocks>>,
    /// The units to check.
    pub(crate) units: Fact<Vec<Unit>>,
    /// The names of all enrolled units.
    pub(crate) enrolled: Vec<String>,
}

/// A unit that is part of the mesh: the agent's, or the template of proxies.
#[derive(Clone, Debug)]
pub(crate) struct OwnUnit {
    pub(crate) unit: systemd::Unit,
    /// The text of its file.
    pub(crate) text: Fact<String>,
}

/// An attempt to reach a service.
#[derive(Debug)]
pub(crate) struct Reached {
    pub(crate) service: Service,
    /// The proxy or agent that has the address.
    pub(crate) user: String,
    /// The certificates that it presents, leaf first and in DER; `Ok(None)` if TLS was not tried,
    /// because no identity is known.
    pub(crate) chain: Fact<Option<Vec<Vec<u8>>>>,
}

/// An enrolled unit.
#[derive(Debug)]
pub(crate) struct Unit {
    pub(crate) status: UnitStatus,
    /// As systemd knows it; an error where it cannot be asked.
    pub(crate) systemd: Fact<systemd::Unit>,
    /// The unit of its proxy, by the cgroup.
    pub(crate) proxy_unit: String,
    pub(crate) proxy: Fact<systemd::Unit>,
    /// The proxy's process, if it runs.
    pub(crate) process: Option<Process>,
    /// The user that the proxy runs as, with its group.
    pub(crate) proxy_user: Option<(u32, u32)>,
    /// The environment files of the proxy in their order; later ones override earlier ones.
    pub(crate) files: Vec<EnvironmentFile>,
    /// Absent of a unit without a token.
    pub(crate) token: Option<Fact<TokenFile>>,
    pub(crate) ready: Fact<()>,
    pub(crate) metrics: Fact<Vec<Sample>>,
    /// Why the identity service issues no certificate for the token, if it was asked.
    pub(crate) refusal: Option<Refusal>,
}

/// Why the identity service issues no certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) message: String,
    /// Whether the service has decided so; otherwise it was not reached, or failed.
    pub(crate) is_denied: bool,
}

/// An environment file of a proxy.
#[derive(Clone, Debug)]
pub(crate) struct EnvironmentFile {
    pub(crate) path: PathBuf,
    /// `Ok(None)` if it does not exist.
    pub(crate) content: Fact<Option<Content>>,
}

/// The unit of the agent, and the template of the proxies' units.
pub(crate) const AGENT_UNIT: &str = "mesh-agent.service";
pub(crate) const PROXY_TEMPLATE: &str = "mesh-proxy@.service";

impl Host {
    pub(super) fn not_queried() -> Self {
        Self {
            init: not_queried(),
            own_units: not_queried(),
            agent_log: Vec::new(),
            agent: not_queried(),
            membership: not_queried(),
            services: Vec::new(),
            clocks: not_queried(),
            units: not_queried(),
            enrolled: Vec::new(),
        }
    }

    /// Returns a unit of the mesh, if systemd can be asked.
    pub(crate) fn own_unit(&self, name: &str) -> Option<&OwnUnit> {
        self.own_units.as_ref().ok()?.get(name)
    }
}

impl Unit {
    pub(crate) fn name(&self) -> &str {
        &self.status.unit
    }

    /// Returns the file that the agent writes for the proxy.
    pub(crate) fn written_file(&self) -> PathBuf {
        written_file(&self.status)
    }

    /// Returns the file of the token that the proxy reads, if it has one.
    pub(crate) fn token_path(&self) -> Option<PathBuf> {
        let of_agent = || self.status.identity.as_ref()?.token_file.clone();
        let environment = self.environment();
        let named = environment.get(&proxy_variable("IDENTITY_TOKEN_FILE"));
        named.map(PathBuf::from).or_else(of_agent)
    }

    /// Returns the name in the certificates of the proxy, if it is known.
    pub(crate) fn identity(&self) -> Option<String> {
        let environment = self.environment();
        let of_agent = self.status.identity.as_ref();
        let of_agent = of_agent.and_then(|identity| identity.name.clone());
        of_agent.or_else(|| {
            let names = ["IDENTITY_LOCAL_NAME", "IDENTITY_SERVER_ID"].map(proxy_variable);
            names.iter().find_map(|name| environment.get(name)).cloned()
        })
    }

    /// Returns the services of the control plane that the proxy uses.
    pub(crate) fn services(&self) -> Vec<Service> {
        let environment = self.environment();
        let value = |name: &str| {
            let value = environment.get(&proxy_variable(name));
            value.map(|value| value.trim().to_owned())
        };
        let service = |(service, prefix): (&str, &str)| {
            Some(Service {
                service: service.to_owned(),
                address: value(&format!("{prefix}_SVC_ADDR"))?,
                name: value(&format!("{prefix}_SVC_NAME")).unwrap_or_default(),
                anchors: value("IDENTITY_TRUST_ANCHORS").unwrap_or_default(),
            })
        };
        let all = [
            ("identity", "IDENTITY"),
            ("destination", "DESTINATION"),
            ("policy", "POLICY"),
        ];
        all.into_iter().filter_map(service).collect()
    }

    /// Returns what the proxy would start with now.
    pub(crate) fn environment(&self) -> Variables {
        let contents = self.files.iter().filter_map(|it| it.content.as_ref().ok());
        let contents = contents.flatten();
        contents
            .flat_map(|content| content.variables.clone())
            .collect()
    }
}

/// Returns the file that the agent writes for the proxy of a unit.
pub(crate) fn written_file(status: &UnitStatus) -> PathBuf {
    let default = || {
        let file = format!("{}.env", instance(&status.unit));
        Path::new(DEFAULT_UNITS_DIR).join("proxies").join(file)
    };
    status.environment_file.clone().unwrap_or_else(default)
}

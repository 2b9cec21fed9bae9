//! What the machine provides: rights, systemd, the kernel, and the unit files of the mesh.

use mesh_core::node::{SelfTestOutcome, Tier};

use super::super::framework::{CheckResult, Outcome};
use super::Findings;
use crate::facts::host::{AGENT_UNIT, PROXY_TEMPLATE};
use crate::facts::names::BTF;
use crate::facts::{Facts, fact_ref};

/// The unit files of this version.
const FILES: [(&str, &str); 2] = [
    (
        AGENT_UNIT,
        include_str!("../../../../mesh-agent/systemd/mesh-agent.service"),
    ),
    (
        PROXY_TEMPLATE,
        include_str!("../../../../mesh-agent/systemd/mesh-proxy@.service"),
    ),
];

const INSTALL: &str = "dpkg --install mesh-machine.deb, or rpm --install mesh-machine.rpm";

pub(super) fn root(facts: &Facts) -> CheckResult {
    Ok(if facts.machine.root {
        Outcome::ok("")
    } else {
        Outcome::fail("you are not root: the agent and the tokens of proxies are for root only")
    })
}

pub(super) fn systemd(facts: &Facts) -> CheckResult {
    Ok(match fact_ref(&facts.host.init)?.as_str() {
        "systemd" => Outcome::ok(""),
        other => Outcome::warn(format!(
            "process 1 is {other}: no unit is started, and the agent finds only cgroups that are named in the enrolment"
        )),
    })
}

/// The agent tries the kernel at its start, and ends if it does not redirect.
pub(super) fn kernel(facts: &Facts) -> CheckResult {
    let mut found = Findings::default();
    if facts.machine.mount_point("cgroup2").is_none() {
        found.fail(
            "no cgroup2 file system is mounted: units are recognised by their cgroups",
            "boot with systemd.unified_cgroup_hierarchy=1, or with version 2 beside version 1: mount -t cgroup2 none /sys/fs/cgroup/unified",
        );
    }
    if !facts.machine.btf {
        found.fail(
            format!("{BTF} is missing: the kernel programs cannot be loaded"),
            "use a kernel built with CONFIG_DEBUG_INFO_BTF=y, as distributions' kernels are",
        );
    }
    let mut ok = format!("kernel {}", facts.machine.kernel);
    if let Ok(status) = &facts.host.agent {
        ok = format!("{ok}, tier {}", status.tier);
        let fix = "meshctl check explain self-test shows which applications are affected";
        if status.tier != Tier::Full {
            let text = format!("the agent uses tier {}: {}", status.tier, status.reason);
            found.fail(text, fix);
        }
        let cases = status.self_test.iter();
        for case in cases.filter(|case| case.outcome == SelfTestOutcome::Failed) {
            let text = format!("self-test {} has failed: {}", case.name, case.detail);
            found.fail(text, fix);
        }
    }
    Ok(found.outcome(ok))
}

pub(super) fn unit_files(facts: &Facts) -> CheckResult {
    let mut found = Findings::default();
    let mut paths = Vec::new();
    for (name, expected) in FILES {
        let Some(own) = facts.host.own_unit(name) else {
            return Ok(Outcome::ok("not known: systemd cannot be asked"));
        };
        let text = match (&*own.unit.load, &own.text) {
            ("masked", _) => {
                let fix = format!("systemctl unmask {name}");
                found.fail(format!("{name} is masked: systemd does not start it"), fix);
                continue;
            }
            ("not-found", _) => {
                found.fail(format!("systemd has no unit {name}"), INSTALL);
                continue;
            }
            (_, Err(reason)) => {
                found.fail(reason, INSTALL);
                continue;
            }
            (_, Ok(text)) => text,
        };
        let path = own.unit.file.as_ref();
        let path = path.map_or_else(String::new, |path| path.display().to_string());
        if text.trim() != expected.trim() {
            found.warn(
                format!("{path} is not the file of version {}", facts.cli_version),
                format!("install the package mesh-machine again; systemctl edit {name} is the place of own settings"),
            );
        }
        if own.unit.needs_reload {
            found.warn(
                format!("the files of {name} have changed since systemd read them"),
                "systemctl daemon-reload",
            );
        }
        paths.push(path);
    }
    Ok(found.outcome(paths.join(", ")))
}

//! The records of enrolled units: one JSON file for each, readable by root only. They outlive the
//! host's boot: at the next one the agent enrols the units again before they start.
//!
//! ```text
//! <units dir>/units/<unit>.json    one enrolled unit
//! <units dir>/proxies/<name>.env   the environment of its proxy's unit: ports, and the identity
//! <units dir>/sequence             the number of the last unit that was enrolled
//! ```

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};

use mesh_core::machine::instance;
use mesh_ebpf_common::unit::UNIT_COOKIES;
use mesh_ebpf_common::verdict::{CHECK_PORT, CHECK_V4};
use mesh_runtime::file;
use serde::{Deserialize, Serialize};

use super::identities::UnitAccount;
use crate::redirect::UnitRedirect;
use crate::registry::{RegistryError, create_directory, files, read_json, remove, write_json};

#[derive(Debug)]
pub(super) struct Records {
    dir: PathBuf,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct UnitRecord {
    #[serde(flatten)]
    pub(super) redirect: UnitRedirect,
    pub(super) annotations: BTreeMap<String, String>,
    /// Whether the cgroups are those that systemd named, and may change.
    pub(super) asked_systemd: bool,
    /// Set once the proxy has listened, and kept.
    pub(super) is_redirected: bool,
    /// The ServiceAccount of its proxy. Records of earlier agents have none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) account: Option<UnitAccount>,
}

impl Records {
    /// Opens the records, creating their directories when they are missing.
    pub(super) fn open(dir: &Path) -> Result<Self, RegistryError> {
        let records = Self {
            dir: dir.to_owned(),
        };
        for dir in [dir, &records.units_dir(), &records.proxies_dir()] {
            create_directory(dir)?;
        }
        Ok(records)
    }

    /// Opens the records if there are any.
    pub(super) fn open_existing(dir: &Path) -> Option<Self> {
        let records = Self {
            dir: dir.to_owned(),
        };
        records.units_dir().is_dir().then_some(records)
    }

    /// Returns every record that can be read, and an error for each of the others.
    pub(super) fn all(&self) -> Result<(Vec<UnitRecord>, Vec<RegistryError>), RegistryError> {
        let mut records = Vec::new();
        let mut damaged = Vec::new();
        for path in files(&self.units_dir())? {
            match read_json(&path) {
                Ok(record) => records.extend(record),
                Err(error) => damaged.push(error),
            }
        }
        Ok((records, damaged))
    }

    pub(super) fn put(&self, record: &UnitRecord) -> Result<(), RegistryError> {
        let path = self.unit_path(&record.redirect.unit);
        Ok(write_json(&path, record)?)
    }

    /// Writes the environment of a unit's proxy unless it is there: its ports, how it verifies that
    /// the unit is redirected, and `identity`, further lines. The proxy listens on IPv6 only where
    /// the host has it.
    pub(super) fn put_environment(
        &self,
        redirect: &UnitRedirect,
        has_ipv6: bool,
        identity: &str,
    ) -> Result<(), RegistryError> {
        let path = self.environment_path(&redirect.unit);
        let text = environment(redirect, has_ipv6) + identity;
        if fs::read_to_string(&path).is_ok_and(|current| current == text) {
            return Ok(());
        }
        let draft = path.with_extension("new");
        file::replace(&path, &draft, 0o644, |file| file.write_all(text.as_bytes()))
            .map_err(file::failed("cannot write", &path))?;
        Ok(())
    }

    pub(super) fn remove(&self, unit: &str) -> Result<(), RegistryError> {
        remove(&self.environment_path(unit))?;
        Ok(remove(&self.unit_path(unit))?)
    }

    /// Returns a cookie that no unit has had before.
    pub(super) fn next_cookie(&self) -> Result<u64, RegistryError> {
        let path = self.dir.join("sequence");
        let last: Option<u64> = read_json(&path)?;
        let next = last.unwrap_or_default() + 1;
        write_json(&path, &next)?;
        Ok(UNIT_COOKIES | next)
    }

    /// Removes everything that this module ever wrote.
    pub(super) fn erase(self) -> Result<(), RegistryError> {
        for dir in [self.units_dir(), self.proxies_dir()] {
            file::remove_tree(&dir).map_err(file::failed("cannot remove", &dir))?;
        }
        remove(&self.dir.join("sequence"))?;
        // Fails when other files are in the directory.
        let _ = fs::remove_dir(&self.dir);
        Ok(())
    }

    fn units_dir(&self) -> PathBuf {
        self.dir.join("units")
    }

    fn proxies_dir(&self) -> PathBuf {
        self.dir.join("proxies")
    }

    fn unit_path(&self, unit: &str) -> PathBuf {
        self.units_dir().join(format!("{unit}.json"))
    }

    pub(super) fn environment_path(&self, unit: &str) -> PathBuf {
        let name = instance(unit);
        self.proxies_dir().join(format!("{name}.env"))
    }
}

fn environment(redirect: &UnitRedirect, has_ipv6: bool) -> String {
    let spec = &redirect.spec;
    let (inbound, outbound) = (spec.inbound_port, spec.outbound_port);
    let both = has_ipv6 && spec.ipv6;
    let (any, loopback) = if both {
        ("[::]", format!("127.0.0.1:{outbound},[::1]:{outbound}"))
    } else {
        ("0.0.0.0", format!("127.0.0.1:{outbound}"))
    };
    format!(
        "# Written by mesh-agent for {}; changes are lost.\n\
         LINKERD2_PROXY_INBOUND_LISTEN_ADDR={any}:{inbound}\n\
         LINKERD2_PROXY_OUTBOUND_LISTEN_ADDRS={loopback}\n\
         LINKERD2_PROXY_CONTROL_LISTEN_ADDR={any}:{}\n\
         LINKERD2_PROXY_ADMIN_LISTEN_ADDR=127.0.0.1:{}\n\
         MESH_PROXY_REDIRECT_CHECK={}:{CHECK_PORT}\n",
        redirect.unit,
        spec.control_port,
        spec.admin_port,
        Ipv4Addr::from(CHECK_V4),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::redirect::RedirectSpec;

    fn record(unit: &str) -> UnitRecord {
        UnitRecord {
            redirect: UnitRedirect {
                unit: unit.to_owned(),
                cookie: UNIT_COOKIES | 7,
                cgroups: vec![format!("system.slice/{unit}")],
                proxy_cgroup: "mesh.slice/mesh-proxy@web.service".to_owned(),
                spec: RedirectSpec::of_unit(unit, &BTreeMap::new()).unwrap(),
                redirect_ports: 61_004..=61_063,
            },
            annotations: BTreeMap::new(),
            asked_systemd: true,
            is_redirected: false,
            account: None,
        }
    }

    #[test]
    fn records_are_read_as_written_until_they_are_removed() {
        let dir = tempfile::tempdir().unwrap();
        let records = Records::open(dir.path()).unwrap();
        records.put(&record("web.service")).unwrap();
        records.put(&record(r"a\x2db@1.service")).unwrap();
        fs::write(dir.path().join("units/bad.service.json"), "{").unwrap();
        let (found, damaged) = Records::open(dir.path()).unwrap().all().unwrap();
        assert_eq!(found, [record(r"a\x2db@1.service"), record("web.service")]);
        assert_eq!(damaged.len(), 1);
        let web = record("web.service").redirect;
        records.put_environment(&web, true, "A=\"b\"\n").unwrap();
        let written = fs::read_to_string(dir.path().join("proxies/web.env")).unwrap();
        assert!(written.ends_with("\nA=\"b\"\n"), "{written}");
        assert!(dir.path().join("proxies/web.env").exists());
        records.remove("web.service").unwrap();
        records.remove("web.service").unwrap();
        assert!(!dir.path().join("proxies/web.env").exists());
        assert_eq!(records.all().unwrap().0.len(), 1);
        records.erase().unwrap();
        assert!(!dir.path().exists());
        assert!(Records::open_existing(dir.path()).is_none());
    }

    #[test]
    fn cookies_differ_over_restarts_of_the_agent() {
        let dir = tempfile::tempdir().unwrap();
        let next = || Records::open(dir.path()).unwrap().next_cookie().unwrap();
        let (first, second) = (next(), next());
        assert!(first & UNIT_COOKIES != 0 && second & UNIT_COOKIES != 0);
        assert_ne!(first, second);
    }

    #[test]
    fn environment_has_the_addresses_of_each_family() {
        let mut redirect = record("web.service").redirect;
        redirect.spec.outbound_port = 61_000;
        redirect.spec.inbound_port = 61_001;
        let both = environment(&redirect, true);
        for line in [
            "LINKERD2_PROXY_INBOUND_LISTEN_ADDR=[::]:61001",
            "LINKERD2_PROXY_OUTBOUND_LISTEN_ADDRS=127.0.0.1:61000,[::1]:61000",
            "LINKERD2_PROXY_CONTROL_LISTEN_ADDR=[::]:4190",
            "LINKERD2_PROXY_ADMIN_LISTEN_ADDR=127.0.0.1:4191",
            "MESH_PROXY_REDIRECT_CHECK=192.0.2.1:20001",
        ] {
            assert!(both.lines().any(|found| found == line), "{line}: {both}");
        }
        let without = environment(&redirect, false);
        redirect.spec.ipv6 = false;
        assert_eq!(environment(&redirect, true), without);
        assert!(without.contains("INBOUND_LISTEN_ADDR=0.0.0.0:61001\n"));
        assert!(!without.contains("::"));
    }
}

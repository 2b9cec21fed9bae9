//! The redirection of systemd units of a host without Kubernetes: enrolment, restarts of the agent
//! and of the host, and reconciliation.
//!
//! [`Machine`] is used by the agent in its mode `machine`. All state is in the records and the
//! pinned maps. The kernel programs follow a unit over its restarts by themselves; the agent
//! repairs foreign changes, and follows two things that the programs cannot see: addresses of the
//! host, and older listening sockets.

mod addresses;
mod decision;
mod error;
mod identities;
mod ports;
mod provision;
mod records;
mod systemd;
mod unit_name;

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use mesh_core::machine::{UnitEnrolment, UnitPorts, UnitState, UnitStatus, proxy_unit};
use mesh_ebpf_common::quota::UNITS_MAX;
use mesh_runtime::log::chain;

use self::records::{Records, UnitRecord};
use self::systemd::Systemd;
use crate::ebpf::{
    self, ApplyReport, DesiredUnit, EnrolledUnit, Host, Loaded, Object, PodCounters, Settings,
    UnitPrograms,
};
use crate::listening::{ListeningSocket, listening_sockets};
use crate::membership;
use crate::node::by_verdict;
use crate::redirect::{RedirectSpec, UnitRedirect};
use crate::sys::netns;

pub use self::addresses::{AddressChanges, AddressesError};
pub use self::error::MachineError;
pub use self::identities::{Identities, IdentityError};
pub use self::ports::PortsError;

/// The name of the count of connections to a unit that went around its proxy, among those by
/// verdict.
pub const SEVERED: &str = "inbound_severed";
/// How often systemd is asked where a unit's cgroup is that does not exist.
const ASK_INTERVAL: Duration = Duration::from_secs(10);

/// The units of this host.
#[derive(Debug)]
pub struct Machine {
    records: Records,
    settings: Settings,
    /// The root of the hierarchy that paths of cgroups are below.
    cgroup_root: PathBuf,
    object: Object,
    systemd: Systemd,
    identities: Identities,
    /// Loaded while there are units.
    programs: Option<UnitPrograms>,
    /// When systemd was asked last, by unit.
    asked: HashMap<String, Instant>,
    /// Warnings of the last reconciliation, by unit.
    warnings: HashMap<u64, Vec<String>>,
    /// What listened on the host then.
    listening: Vec<ListeningSocket>,
}

/// What a reconciliation found and did.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct MachineReport {
    /// How the programs were loaded; `None` without units.
    pub loaded: Option<Loaded>,
    /// Whether this agent had loaded them before.
    pub was_loaded: bool,
    /// Units whose proxies listen for the first time, and that are redirected from now on.
    pub activated: Vec<String>,
    /// Units whose redirection was missing and has been repaired, each with its fault.
    pub repaired: Vec<(String, String)>,
    /// Ports where units listen with sockets that the programs had not seen.
    pub adopted_ports: usize,
    /// What could not be repaired, one sentence each.
    pub failures: Vec<String>,
}

impl Machine {
    /// Opens the records below `units_dir`. Neither enrols nor loads anything.
    pub fn open(
        units_dir: &Path,
        settings: Settings,
        object: Object,
        systemctl: PathBuf,
        identities: Identities,
    ) -> Result<Self, MachineError> {
        let cgroup_root = ebpf::hierarchy_root(&settings.unit_root)?;
        Ok(Self {
            records: Records::open(units_dir)?,
            settings,
            cgroup_root,
            object,
            systemd: Systemd::new(systemctl),
            identities,
            programs: None,
            asked: HashMap::new(),
            warnings: HashMap::new(),
            listening: Vec::new(),
        })
    }

    /// Enrols a unit, or changes the settings of an enrolled one.
    pub fn enrol(&mut self, enrolment: &UnitEnrolment) -> Result<UnitStatus, MachineError> {
        let unit = &enrolment.unit;
        unit_name::check(unit)?;
        let (mut records, _) = self.records.all()?;
        let position = records
            .iter()
            .position(|record| record.redirect.unit == *unit);
        let previous = position.map(|position| records.swap_remove(position));
        let others: Vec<UnitRedirect> = records.into_iter().map(|record| record.redirect).collect();
        if others.len() >= UNITS_MAX {
            return Err(MachineError::TooManyUnits);
        }
        let record = self.record(enrolment, previous.as_ref(), &others)?;
        let mut all = others;
        all.push(record.redirect.clone());
        ebpf::check_units(&all).map_err(|source| MachineError::Conflict {
            unit: unit.clone(),
            source: Box::new(source),
        })?;
        let written = self.write(&record);
        let result = written.and_then(|()| self.apply_enrolment(&record));
        if result.is_err() {
            self.roll_back(unit, previous.as_ref());
        }
        result
    }

    fn apply_enrolment(&mut self, record: &UnitRecord) -> Result<UnitStatus, MachineError> {
        let unit = &record.redirect.unit;
        let report = self.reconcile_after(Some(unit))?;
        let units = self.units()?;
        let status = units.into_iter().find(|status| status.unit == *unit);
        let is_waiting = |status: &UnitStatus| status.state == UnitState::Waiting;
        match status {
            Some(status) if !(record.is_redirected && is_waiting(&status)) => Ok(status),
            _ => Err(MachineError::Incomplete {
                unit: unit.clone(),
                problem: report.failures.join("; "),
            }),
        }
    }

    /// Ends the enrolment of a unit; with the last one, the programs are removed. Returns false
    /// when it was not enrolled.
    pub fn withdraw(&mut self, unit: &str) -> Result<bool, MachineError> {
        unit_name::check(unit)?;
        let (records, _) = self.records.all()?;
        let was_enrolled = records.iter().any(|record| record.redirect.unit == unit);
        // The kernel's state follows the records, so that an interrupted removal is completed.
        self.records.remove(unit)?;
        self.asked.remove(unit);
        self.reconcile()?;
        Ok(was_enrolled)
    }

    pub fn units(&self) -> Result<Vec<UnitStatus>, MachineError> {
        let (records, _) = self.records.all()?;
        let (enrolled, counters) = match &self.programs {
            Some(programs) => (programs.units()?, programs.counters()?),
            None => (Vec::new(), Vec::new()),
        };
        let status = |record: UnitRecord| {
            let cookie = record.redirect.cookie;
            let enrolled = enrolled.iter().find(|unit| unit.cookie == cookie);
            let counters = counters.iter().find(|counters| counters.cookie == cookie);
            self.status(record, enrolled, counters)
        };
        Ok(records.into_iter().map(status).collect())
    }

    /// Makes the kernel's state agree with the records and the host.
    pub fn reconcile(&mut self) -> Result<MachineReport, MachineError> {
        self.reconcile_after(None)
    }

    /// Reconciles after this unit was enrolled, whose redirection is then no repair.
    fn reconcile_after(&mut self, enrolled: Option<&str>) -> Result<MachineReport, MachineError> {
        let (mut records, damaged) = self.records.all()?;
        let mut report = MachineReport {
            was_loaded: self.programs.is_some(),
            failures: damaged.iter().map(|error| chain(error)).collect(),
            ..MachineReport::default()
        };
        self.warnings.clear();
        self.provide_all(&records, damaged.is_empty(), &mut report);
        if records.is_empty() && damaged.is_empty() {
            self.unload()?;
            return Ok(report);
        }
        for record in &mut records {
            self.follow(record, &mut report);
        }
        let (programs, loaded) = self.load()?;
        report.loaded = Some(loaded);
        let host = host(&mut report)?;
        let is_complete = damaged.is_empty();
        let applied = programs.apply(&desired(&records), is_complete, &host)?;
        self.record_result(&records, &applied, &mut report);
        self.listening.clone_from(&host.listening);
        // After a boot, and when all pins were deleted, nothing was there; the caller reports it.
        if loaded != Loaded::Fresh {
            let redirected = records.iter().filter(|record| {
                let is_new = enrolled == Some(record.redirect.unit.as_str());
                !is_new && applied.redirected.contains(&record.redirect.cookie)
            });
            let fault = "the kernel programs' maps had no entry for it";
            let repaired =
                redirected.map(|record| (record.redirect.unit.clone(), fault.to_owned()));
            report.repaired.extend(repaired);
        }
        self.activate(&programs, records, is_complete, &host, &mut report)?;
        Ok(report)
    }

    /// Returns the programs, after loading them or attaching those that are detached.
    fn load(&mut self) -> Result<(UnitPrograms, Loaded), MachineError> {
        let path = &self.settings.proxy_root;
        // systemd creates it with the first proxy or the agent in it.
        fs::create_dir_all(path).map_err(|source| MachineError::ProxyRoot {
            path: path.clone(),
            source,
        })?;
        if let Some(programs) = &self.programs
            && programs.are_attached()?
        {
            return Ok((programs.clone(), Loaded::Adopted));
        }
        let (programs, loaded) = ebpf::load_for_units(&self.object, &self.settings)?;
        self.programs = Some(programs.clone());
        Ok((programs, loaded))
    }

    /// Removes the programs. The kernel detaches them a moment after the end of their pins, and
    /// their maps are emptied before, so that no unit is redirected from now on.
    fn unload(&mut self) -> Result<(), MachineError> {
        if let Some(programs) = self.programs.take()
            && let Err(error) = programs.apply(&[], true, &Host::default())
        {
            tracing::debug!(
                error = chain(&error),
                "The maps of units end with their pins only"
            );
        }
        Ok(ebpf::unload_for_units(&self.settings.pin_dir)?)
    }

    /// Returns the kernel programs' counters of each enrolled unit.
    pub fn counters(&self) -> Result<Vec<PodCounters>, MachineError> {
        match &self.programs {
            Some(programs) => Ok(programs.counters()?),
            None => Ok(Vec::new()),
        }
    }

    pub fn attached_programs(&self) -> Result<Vec<&'static str>, MachineError> {
        match &self.programs {
            Some(programs) => Ok(programs.attached()?),
            None => Ok(Vec::new()),
        }
    }

    fn record(
        &self,
        enrolment: &UnitEnrolment,
        previous: Option<&UnitRecord>,
        others: &[UnitRedirect],
    ) -> Result<UnitRecord, MachineError> {
        let unit = &enrolment.unit;
        let cgroups = match &enrolment.cgroup {
            Some(cgroup) => vec![cgroup.clone()],
            None => self.systemd.cgroups(unit)?,
        };
        let proxy_cgroup = match &enrolment.proxy_cgroup {
            Some(cgroup) => cgroup.clone(),
            None => self.default_proxy_cgroup(unit)?,
        };
        self.check_roots(unit, &cgroups, &proxy_cgroup)?;
        let block = match previous {
            Some(previous) => ports::block_of(&previous.redirect),
            None => ports::free_block(unit, others, &listening_sockets()?)?,
        };
        let mut annotations = enrolment.annotations.clone();
        ports::add_defaults(&mut annotations, &block);
        let redirect = UnitRedirect {
            unit: unit.clone(),
            cookie: match previous {
                Some(previous) => previous.redirect.cookie,
                None => self.records.next_cookie()?,
            },
            cgroups,
            proxy_cgroup,
            spec: RedirectSpec::of_unit(unit, &annotations)?,
            redirect_ports: ports::redirect_ports(&block),
        };
        ports::check(&redirect, others)?;
        Ok(UnitRecord {
            redirect,
            annotations: enrolment.annotations.clone(),
            asked_systemd: enrolment.cgroup.is_none(),
            is_redirected: enrolment.immediately
                || previous.is_some_and(|previous| previous.is_redirected),
            account: self.identities.account(enrolment)?,
        })
    }

    fn default_proxy_cgroup(&self, unit: &str) -> Result<String, MachineError> {
        let root = &self.settings.proxy_root;
        let slice = root.strip_prefix(&self.cgroup_root).ok();
        let slice = slice.and_then(Path::to_str);
        let slice = slice.ok_or_else(|| MachineError::NoHierarchy(root.clone()))?;
        let name = proxy_unit(unit);
        Ok(unit_name::join(slice, &name))
    }

    /// Checks that the programs run for the processes of a unit and its proxy.
    fn check_roots(
        &self,
        unit: &str,
        cgroups: &[String],
        proxy_cgroup: &str,
    ) -> Result<(), MachineError> {
        let is_below = |cgroup: &str, root: &Path| {
            let path = self.cgroup_root.join(cgroup);
            path.starts_with(root) && path != root
        };
        let unit_root = &self.settings.unit_root;
        if let Some(outside) = cgroups.iter().find(|cgroup| !is_below(cgroup, unit_root)) {
            return Err(MachineError::OutsideOfRoot {
                unit: unit.to_owned(),
                cgroup: outside.clone(),
                root: unit_root.clone(),
            });
        }
        let proxy_root = &self.settings.proxy_root;
        if !is_below(proxy_cgroup, proxy_root) {
            return Err(MachineError::ProxyOutsideOfRoot {
                unit: unit.to_owned(),
                cgroup: proxy_cgroup.to_owned(),
                root: proxy_root.clone(),
            });
        }
        Ok(())
    }

    fn roll_back(&mut self, unit: &str, previous: Option<&UnitRecord>) {
        let restored = match previous {
            Some(previous) => self.write(previous),
            None => self.records.remove(unit).map_err(MachineError::from),
        };
        let result = restored.and_then(|()| self.reconcile());
        if let Err(error) = result {
            tracing::warn!(
                unit,
                error = chain(&error),
                "Cannot undo a failed enrolment; retrying with the next reconciliation"
            );
        }
    }

    /// Asks systemd again where the cgroup of a unit is that does not exist: the unit has been
    /// stopped, or its slice has been changed.
    fn follow(&mut self, record: &mut UnitRecord, report: &mut MachineReport) {
        let unit = record.redirect.unit.clone();
        if !record.asked_systemd || self.is_running(&record.redirect) {
            return;
        }
        let last = self.asked.get(&unit);
        if last.is_some_and(|last| last.elapsed() < ASK_INTERVAL) {
            return;
        }
        self.asked.insert(unit.clone(), Instant::now());
        // A unit that was removed keeps its enrolment, and so does one that systemd does not tell
        // about: it is restarting itself, perhaps.
        let Ok(cgroups) = self.systemd.cgroups(&unit) else {
            return;
        };
        if cgroups == record.redirect.cgroups {
            return;
        }
        if let Err(error) = self.check_roots(&unit, &cgroups, &record.redirect.proxy_cgroup) {
            report.failures.push(chain(&error));
            return;
        }
        let moved = UnitRecord {
            redirect: UnitRedirect {
                cgroups,
                ..record.redirect.clone()
            },
            ..record.clone()
        };
        if let Err(error) = self.records.put(&moved) {
            report.failures.push(chain(&error));
            return;
        }
        let fault = format!("its cgroup is now {}", moved.redirect.cgroups.join(", "));
        report.repaired.push((unit, fault));
        *record = moved;
    }

    fn is_running(&self, redirect: &UnitRedirect) -> bool {
        let mut cgroups = redirect.cgroups.iter();
        cgroups.any(|cgroup| self.cgroup_root.join(cgroup).exists())
    }

    fn foreign_listeners(&self, redirect: &UnitRedirect) -> Vec<SocketAddr> {
        // The number of a cgroup's directory is the one of the cgroup.
        let path = self.cgroup_root.join(&redirect.proxy_cgroup);
        let proxy = fs::metadata(path).ok().map(|directory| directory.ino());
        ports::foreign_listeners(redirect, proxy, &self.listening)
    }

    /// Takes what the programs reported over into the report and the warnings.
    fn record_result(
        &mut self,
        records: &[UnitRecord],
        applied: &ApplyReport,
        report: &mut MachineReport,
    ) {
        report.failures.extend(applied.failures.iter().cloned());
        report.adopted_ports = applied.adopted;
        for shared in &applied.shared {
            let warning = format!(
                "a process outside of {} listens on {} port {}, too; its connections go to the unit's proxy",
                shared.unit, shared.address, shared.port
            );
            let record = records
                .iter()
                .find(|record| record.redirect.unit == shared.unit);
            if let Some(record) = record {
                let warnings = self.warnings.entry(record.redirect.cookie).or_default();
                warnings.push(warning);
            }
        }
    }

    /// Redirects the units whose proxies listen for the first time.
    fn activate(
        &self,
        programs: &UnitPrograms,
        mut records: Vec<UnitRecord>,
        is_complete: bool,
        host: &Host,
        report: &mut MachineReport,
    ) -> Result<(), MachineError> {
        let enrolled = programs.units()?;
        let listens = |cookie: u64| {
            let mut enrolled = enrolled.iter();
            enrolled.any(|unit| unit.cookie == cookie && unit.has_proxy)
        };
        let waiting = records.iter_mut().filter(|record| !record.is_redirected);
        for record in waiting.filter(|record| listens(record.redirect.cookie)) {
            record.is_redirected = true;
            // First: from now on the unit stays redirected, whatever ends the agent.
            self.records.put(record)?;
            report.activated.push(record.redirect.unit.clone());
        }
        if !report.activated.is_empty() {
            let applied = programs.apply(&desired(&records), is_complete, host)?;
            report.failures.extend(applied.failures);
        }
        Ok(())
    }

    fn status(
        &self,
        record: UnitRecord,
        enrolled: Option<&EnrolledUnit>,
        counters: Option<&PodCounters>,
    ) -> UnitStatus {
        let redirect = record.redirect;
        let mut warnings = self
            .warnings
            .get(&redirect.cookie)
            .cloned()
            .unwrap_or_default();
        let mut connections: BTreeMap<String, u64> = counters.map(by_verdict).unwrap_or_default();
        if let Some(severed) = enrolled.map(|unit| unit.severed).filter(|count| *count > 0) {
            connections.insert(SEVERED.to_owned(), severed);
        }
        if let Some(lost) = enrolled
            .map(|unit| unit.unrecorded)
            .filter(|count| *count > 0)
        {
            warnings.push(format!(
                "{lost} listening sockets exceed the limits of the kernel programs, and are closed to other hosts"
            ));
        }
        let state = if enrolled.is_some_and(|unit| unit.is_redirected) {
            UnitState::Redirected
        } else {
            UnitState::Waiting
        };
        if enrolled.is_none() {
            warnings.push("the kernel programs do not know the unit".to_owned());
        }
        let account = record.account;
        UnitStatus {
            annotations: record.annotations,
            environment_file: Some(self.records.environment_path(&redirect.unit)),
            foreign_listeners: self.foreign_listeners(&redirect),
            identity: account.map(|account| self.identities.status(&redirect.unit, account)),
            running: self.is_running(&redirect),
            state,
            proxy_listens: enrolled.is_some_and(|unit| unit.has_proxy),
            ports: UnitPorts {
                inbound: redirect.spec.inbound_port,
                outbound: redirect.spec.outbound_port,
                admin: redirect.spec.admin_port,
                control: redirect.spec.control_port,
                redirect_first: *redirect.redirect_ports.start(),
                redirect_last: *redirect.redirect_ports.end(),
            },
            listening: enrolled
                .map(|unit| unit.listening.clone())
                .unwrap_or_default(),
            unit: redirect.unit,
            cgroups: redirect.cgroups,
            proxy_cgroup: redirect.proxy_cgroup,
            connections,
            warnings,
        }
    }
}

/// Removes the programs and the records of a host, if it has any.
pub fn remove_all(units_dir: &Path, pin_dir: &Path) -> Result<(), MachineError> {
    ebpf::unload_for_units(pin_dir)?;
    membership::remove_all(units_dir)?;
    if let Some(records) = Records::open_existing(units_dir) {
        records.erase()?;
    }
    Ok(())
}

fn desired(records: &[UnitRecord]) -> Vec<DesiredUnit> {
    let desired = |record: &UnitRecord| DesiredUnit {
        redirect: record.redirect.clone(),
        is_redirected: record.is_redirected,
    };
    records.iter().map(desired).collect()
}

fn host(report: &mut MachineReport) -> Result<Host, MachineError> {
    let mut addresses = addresses::of_host()?;
    let most = ebpf::HOST_ADDRESSES_MAX;
    if addresses.len() > most {
        report.failures.push(format!(
            "the host has {} addresses, and connections between units and the host are recognised for {most} of them",
            addresses.len()
        ));
        addresses.truncate(most);
    }
    Ok(Host {
        netns: netns::current_cookie()?,
        addresses,
        listening: listening_sockets()?,
    })
}

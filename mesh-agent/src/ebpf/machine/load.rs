//! Loads and attaches the programs of a machine.

use std::fs::{self, File};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process;

use aya::{Ebpf, EbpfLoader};
use mesh_ebpf_common::quota::{
    ADDRESSES_MAX, IN_FLIGHT_MAX, IN_FLIGHT_PER_POD, LISTENERS_MAX, LISTENERS_PER_POD,
    PORT_SKIPS_PER_POD, SUBNET_SKIPS_PER_POD, UNITS_MAX,
};
use mesh_runtime::file;

use super::super::error::Error;
use super::super::hook::Hook;
use super::super::loader::{self, CgroupRoot};
use super::super::maps;
use super::super::object::Object;
use super::super::pins::{self, Pins};
use super::hook::{PROXY_HOOKS, STEER, TRACEPOINTS, UNIT_HOOKS, programs};
use super::{kernel_types, members};
use crate::sys::bpf::{self, AttachType, LinkTarget};
use crate::sys::netns::{self, NetnsError};

/// Where the programs of a machine are attached.
pub(super) struct Roots {
    /// Above all units.
    pub(super) units: CgroupRoot,
    /// Above all proxies.
    pub(super) proxies: CgroupRoot,
    /// The root of the hierarchy, as this process sees it.
    pub(super) hierarchy: CgroupRoot,
    netns: File,
    netns_path: PathBuf,
}

impl Roots {
    /// Opens the cgroups and this thread's network namespace.
    pub(super) fn open(units: &Path, proxies: &Path) -> Result<Roots, Error> {
        let units = CgroupRoot::open(units)?;
        let netns_path = PathBuf::from("/proc/thread-self/ns/net");
        Ok(Roots {
            hierarchy: units.of_node()?,
            units,
            proxies: CgroupRoot::open(proxies)?,
            netns: netns::open(&netns_path)?,
            netns_path,
        })
    }

    fn hooks(&self) -> impl Iterator<Item = (Hook, &CgroupRoot)> {
        let of_proxies = PROXY_HOOKS.into_iter().map(|hook| (hook, &self.proxies));
        let of_units = UNIT_HOOKS.into_iter().map(|hook| (hook, &self.units));
        of_proxies.chain(of_units)
    }

    fn netns_inode(&self) -> Result<u64, Error> {
        let metadata = self.netns.metadata();
        let metadata = metadata.map_err(|source| NetnsError::Open {
            path: self.netns_path.clone(),
            source,
        })?;
        Ok(metadata.ino())
    }
}

/// Returns whether every program is attached where it should be.
pub(super) fn is_attached(pins: &Pins, roots: &Roots) -> Result<bool, Error> {
    for (hook, root) in roots.hooks() {
        let link = pins::open(&pins.link(hook.program))?;
        if !link.is_some_and(|link| loader::is_attached_to(link, root)) {
            return Ok(false);
        }
    }
    for (program, _) in TRACEPOINTS {
        let link = pins::open(&pins.link(program))?;
        if !link.is_some_and(|link| has_target(link, LinkTarget::RawTracepoint)) {
            return Ok(false);
        }
    }
    let inode = roots.netns_inode()?;
    let link = pins::open(&pins.link(STEER.program))?;
    Ok(link.is_some_and(|link| is_in_netns(link, inode)))
}

fn has_target(link: impl AsFd, target: LinkTarget) -> bool {
    bpf::link_info(link).is_ok_and(|info| info.target == target)
}

fn is_in_netns(link: impl AsFd, inode: u64) -> bool {
    let target = bpf::link_info(link).map(|info| info.target);
    matches!(target, Ok(LinkTarget::Netns { inode: found }) if u64::from(found) == inode)
}

/// Returns the names of the attached programs.
pub(super) fn attached(pins: &Pins) -> Result<Vec<&'static str>, Error> {
    let mut attached = Vec::new();
    for program in programs() {
        let link = pins::open(&pins.link(program))?;
        let target = link.and_then(|link| bpf::link_info(link).ok());
        let exists = match target.map(|info| info.target) {
            Some(LinkTarget::Cgroup { id }) => id != 0,
            Some(LinkTarget::Netns { inode }) => inode != 0,
            Some(LinkTarget::RawTracepoint) => true,
            _ => false,
        };
        if exists {
            attached.push(program);
        }
    }
    Ok(attached)
}

/// Loads the programs with the pinned maps, and attaches them or replaces those that are attached.
pub(super) fn attach_all(object: &Object, pins: &Pins, roots: &Roots) -> Result<(), Error> {
    let mut ebpf = prepare(object, pins)?;
    // All are loaded before the first is attached: if the kernel rejects one, nothing changes.
    for program in programs() {
        loader::load_program(&mut ebpf, program)?;
    }
    for (program, tracepoint) in TRACEPOINTS {
        attach_tracepoint(&ebpf, pins, program, tracepoint)?;
    }
    // Before the connect hook: it redirects to ports that only its reader knows.
    attach_steer(&ebpf, pins, roots)?;
    for (hook, root) in roots.hooks() {
        loader::attach(loader::program_fd(&ebpf, hook.program)?, hook, pins, root)?;
    }
    Ok(())
}

/// Attaches the program, then detaches the one before: for a moment both register the same.
fn attach_tracepoint(
    ebpf: &Ebpf,
    pins: &Pins,
    program: &'static str,
    tracepoint: &'static str,
) -> Result<(), Error> {
    let failed = |source| Error::Tracepoint {
        program,
        tracepoint,
        source,
    };
    let fd = loader::program_fd(ebpf, program)?;
    let link = bpf::attach_raw_tracepoint(fd, tracepoint).map_err(failed)?;
    let path = pins.link(program);
    // The descriptor keeps it attached meanwhile.
    let _previous = pins::open(&path)?;
    pins::remove(&path)?;
    Ok(bpf::pin(link, &path).map_err(file::failed("cannot pin", &path))?)
}

fn attach_steer(ebpf: &Ebpf, pins: &Pins, roots: &Roots) -> Result<(), Error> {
    let program = loader::program_fd(ebpf, STEER.program)?;
    let path = pins.link(STEER.program);
    if let Some(link) = pins::open(&path)? {
        if is_in_netns(&link, roots.netns_inode()?) {
            return bpf::update_link(&link, program).map_err(|source| Error::Replace {
                program: STEER.program,
                path,
                source,
            });
        }
        pins::remove(&path)?;
    }
    let link = bpf::create_link(program, &roots.netns, AttachType::SkLookup).map_err(|source| {
        Error::Attach {
            program: STEER.program,
            target: roots.netns_path.clone(),
            source,
        }
    })?;
    Ok(bpf::pin(link, &path).map_err(file::failed("cannot pin", &path))?)
}

/// Parses the object, with the offsets of this kernel, and binds it to the pinned maps. A machine
/// has few units, and the tables have their size.
fn prepare(object: &Object, pins: &Pins) -> Result<Ebpf, Error> {
    const SIZES: [(&str, usize); 12] = [
        ("PODS", UNITS_MAX),
        ("PROXIES", UNITS_MAX),
        ("IN_FLIGHT_COUNTS", UNITS_MAX),
        ("STATS", UNITS_MAX),
        ("GUARD_STATS", UNITS_MAX),
        ("TRACES", UNITS_MAX),
        ("PORT_TRACKING", UNITS_MAX),
        // The host's, once for all units.
        ("ADDRESSES", super::HOST_ADDRESSES_MAX),
        ("PORT_SKIPS", UNITS_MAX * PORT_SKIPS_PER_POD),
        ("SUBNET_SKIPS", UNITS_MAX * SUBNET_SKIPS_PER_POD),
        ("LISTENERS", UNITS_MAX * LISTENERS_PER_POD),
        ("IN_FLIGHT", UNITS_MAX * IN_FLIGHT_PER_POD as usize),
    ];
    const { assert!(super::HOST_ADDRESSES_MAX <= ADDRESSES_MAX) };
    const { assert!(UNITS_MAX * LISTENERS_PER_POD <= LISTENERS_MAX) };
    const { assert!(UNITS_MAX * IN_FLIGHT_PER_POD as usize <= IN_FLIGHT_MAX) };
    let directory = pins.maps();
    let mut loader = EbpfLoader::new();
    for name in maps::NAMES.into_iter().chain(maps::NAMES_OF_UNITS) {
        loader.map_pin_path(name, directory.join(name));
    }
    for (name, size) in SIZES {
        loader.map_max_entries(name, size as u32);
    }
    // Ports of pods, which units do not have.
    loader.map_max_entries("OPEN_PORTS", 1);
    let offsets = kernel_types::offsets()?;
    for (name, offset) in &offsets {
        loader.override_global(name, offset, true);
    }
    loader::parse(&mut loader, object)
}

/// Returns the level of the hierarchy's root, as this process sees it, below the kernel's: zero but
/// in a cgroup namespace. Creates a cgroup and reads its entry, so that a program that registers
/// nothing is noticed.
pub(super) fn root_level(pins: &Pins, roots: &Roots) -> Result<u32, Error> {
    let name = format!("mesh-level-{}", process::id());
    let path = roots.hierarchy.path.join(&name);
    let failed = |action| {
        let path = path.clone();
        move |source| Error::CgroupDirectory {
            action,
            path,
            source,
        }
    };
    let mut unit_maps = maps::UnitMaps::open(pins)?;
    let observation = members::observe(&mut unit_maps, &roots.hierarchy, &name)?;
    let level = fs::create_dir(&path)
        .map_err(failed("create"))
        .and_then(|()| members::observed_level(&unit_maps, &path));
    let removed = fs::remove_dir(&path).map_err(failed("remove"));
    members::end_observation(&mut unit_maps, &observation)?;
    let level = level?;
    removed?;
    level
        .and_then(|level| level.checked_sub(1))
        .ok_or(Error::NotObserved(path))
}

//! Loads and attaches the programs of an object file: the node's, and one steering program per pod.
//! `aya` parses, relocates and loads; this project creates, pins, replaces and inspects the links
//! itself, because aya supports these operations for some hooks only.

use std::fs::{self, File};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::{io, thread};

use aya::maps::MapError;
use aya::programs::{
    CgroupSockAddr, CgroupSockopt, Program, ProgramError, RawTracePoint, SchedClassifier, SkLookup,
    SockOps,
};
use aya::{Ebpf, EbpfError, EbpfLoader};
use mesh_runtime::file;
use nix::sched::{CloneFlags, unshare};
use nix::sys::statfs::{CGROUP2_SUPER_MAGIC, statfs};

use super::error::Error;
use super::hook::{GUARD, HOOKS, Hook, OPEN_PORTS, STEER};
use super::maps;
use super::object::Object;
use super::pins::{self, Pins};
use crate::redirect::PodRedirect;
use crate::sys::bpf::{self, AttachType, LinkTarget};
use crate::sys::netns;

/// The constant of the per-pod programs (see `mesh-ebpf/src/steer.rs`).
const POD_COOKIE: &str = "POD_COOKIE";

/// The index of loopback in every network namespace.
pub(super) const LOOPBACK_INDEX: u32 = 1;

pub(super) struct CgroupRoot {
    pub(super) path: PathBuf,
    directory: File,
    pub(super) id: u64,
}

impl CgroupRoot {
    pub(super) fn open(path: &Path) -> Result<CgroupRoot, Error> {
        let failed = |source| Error::Cgroup {
            path: path.to_owned(),
            source,
        };
        let directory = File::open(path).map_err(failed)?;
        if !is_cgroup2(path) {
            return Err(Error::NotCgroup2 {
                path: path.to_owned(),
            });
        }
        // The cgroup id is the inode number of its directory.
        let id = directory.metadata().map_err(failed)?.ino();
        Ok(CgroupRoot {
            path: path.to_owned(),
            directory,
            id,
        })
    }

    /// Opens the root of the hierarchy. It is the highest one that this process sees: for a node
    /// that is a container itself, its own.
    pub(super) fn of_node(&self) -> Result<CgroupRoot, Error> {
        // Symbolic links have other parents.
        let path = fs::canonicalize(&self.path).map_err(|source| Error::Cgroup {
            path: self.path.clone(),
            source,
        })?;
        let highest = path.ancestors().take_while(|path| is_cgroup2(path)).last();
        CgroupRoot::open(highest.unwrap_or(&path))
    }
}

pub(super) fn is_cgroup2(path: &Path) -> bool {
    statfs(path).is_ok_and(|status| status.filesystem_type() == CGROUP2_SUPER_MAGIC)
}

pub(super) fn is_attached(pins: &Pins, root: &CgroupRoot) -> Result<bool, Error> {
    for hook in HOOKS {
        let Some(link) = pins::open(&pins.link(hook.program))? else {
            return Ok(false);
        };
        if !is_attached_to(&link, root) {
            return Ok(false);
        }
    }
    Ok(true)
}

pub(super) fn is_attached_to(link: impl AsFd, root: &CgroupRoot) -> bool {
    bpf::link_info(link).is_ok_and(|info| info.target == LinkTarget::Cgroup { id: root.id })
}

/// Returns whether the link is attached to an existing cgroup; the id is 0 after its deletion.
pub(super) fn has_cgroup(link: impl AsFd) -> bool {
    bpf::link_info(link)
        .is_ok_and(|info| matches!(info.target, LinkTarget::Cgroup { id } if id != 0))
}

/// Loads the node's programs with the pinned maps, and attaches or updates every link.
pub(super) fn attach_all(object: &Object, pins: &Pins, root: &CgroupRoot) -> Result<(), Error> {
    let mut ebpf = prepare(object, pins, 0)?;
    // All are loaded before the first is attached: if the kernel rejects one, nothing changes.
    for hook in HOOKS {
        load_program(&mut ebpf, hook.program)?;
    }
    for hook in HOOKS {
        let program = program_fd(&ebpf, hook.program)?;
        attach(program, hook, pins, root)?;
    }
    Ok(())
}

/// Returns whether listening sockets are observed.
pub(super) fn observes_ports(pins: &Pins, root: &CgroupRoot) -> Result<bool, Error> {
    let link = pins::open(&pins.link(OPEN_PORTS.program))?;
    let node = root.of_node()?;
    Ok(link.is_some_and(|link| is_attached_to(&link, &node)))
}

/// Attaches the program that observes listening sockets, or replaces it in place.
pub(super) fn observe_ports(object: &Object, pins: &Pins, root: &CgroupRoot) -> Result<(), Error> {
    let mut ebpf = prepare(object, pins, 0)?;
    load_program(&mut ebpf, OPEN_PORTS.program)?;
    let program = program_fd(&ebpf, OPEN_PORTS.program)?;
    attach(program, OPEN_PORTS, pins, &root.of_node()?)
}

/// Attaches a program, or replaces the attached one in place. A link whose cgroup was deleted, or
/// differs from `root`, cannot be moved and is recreated.
pub(super) fn attach(
    program: impl AsFd,
    hook: Hook,
    pins: &Pins,
    root: &CgroupRoot,
) -> Result<(), Error> {
    let path = pins.link(hook.program);
    if let Some(link) = pins::open(&path)? {
        if is_attached_to(&link, root) {
            return bpf::update_link(&link, program).map_err(|source| Error::Replace {
                program: hook.program,
                path,
                source,
            });
        }
        pins::remove(&path)?;
    }
    let link = bpf::create_link(program, &root.directory, hook.attach_type).map_err(|source| {
        Error::Attach {
            program: hook.program,
            target: root.path.clone(),
            source,
        }
    })?;
    Ok(bpf::pin(link, &path).map_err(file::failed("cannot pin", &path))?)
}

/// Attaches the pod's steering program, or replaces the attached one.
pub(super) fn attach_steer(
    object: &Object,
    pins: &Pins,
    cookie: u64,
    netns_path: &Path,
) -> Result<(), Error> {
    if replace_steer(object, pins, cookie)? {
        return Ok(());
    }
    let namespace = netns::open(netns_path)?;
    let ebpf = load_pod_program(STEER, object, pins, cookie)?;
    let link = bpf::create_link(program_fd(&ebpf, STEER)?, namespace, AttachType::SkLookup)
        .map_err(|source| Error::Attach {
            program: STEER,
            target: netns_path.to_owned(),
            source,
        })?;
    let path = pins.steer_link(cookie);
    Ok(bpf::pin(link, &path).map_err(file::failed("cannot pin", &path))?)
}

/// Replaces the steering program of a pod; returns false when it has none.
pub(super) fn replace_steer(object: &Object, pins: &Pins, cookie: u64) -> Result<bool, Error> {
    let path = pins.steer_link(cookie);
    let Some(link) = pins::open(&path)? else {
        return Ok(false);
    };
    if !has_netns(&link) {
        pins::remove(&path)?;
        return Ok(false);
    }
    let ebpf = load_pod_program(STEER, object, pins, cookie)?;
    bpf::update_link(&link, program_fd(&ebpf, STEER)?).map_err(|source| Error::Replace {
        program: STEER,
        path,
        source,
    })?;
    Ok(true)
}

pub(super) fn has_netns(link: impl AsFd) -> bool {
    bpf::link_info(link).is_ok_and(|info| !matches!(info.target, LinkTarget::Netns { inode: 0 }))
}

/// Checks that the kernel loads and attaches the guard's program, on the loopback interface of a
/// temporary network namespace.
pub(super) fn try_guard(object: &Object, pins: &Pins) -> Result<(), Error> {
    let ebpf = load_pod_program(GUARD, object, pins, 0)?;
    let program = program_fd(&ebpf, GUARD)?;
    let attempt = || {
        unshare(CloneFlags::CLONE_NEWNET)?;
        bpf::create_tcx_link(program, LOOPBACK_INDEX).map(drop)
    };
    let result = thread::scope(|scope| scope.spawn(attempt).join());
    result
        .map_err(|_panic| netns::NetnsError::Panicked)?
        .map_err(Error::GuardUnavailable)
}

/// Guards one interface of the pod; returns false when the interface no longer exists.
pub(super) fn attach_guard(
    object: &Object,
    pins: &Pins,
    pod: &PodRedirect,
    interface: u32,
) -> Result<bool, Error> {
    let ebpf = load_pod_program(GUARD, object, pins, pod.cookie)?;
    let program = program_fd(&ebpf, GUARD)?;
    let link = netns::run_in(netns::open(&pod.netns)?, || {
        bpf::create_tcx_link(program, interface)
    })?;
    let link = match link {
        Ok(link) => link,
        Err(error) if error.raw_os_error() == Some(libc::ENODEV) => return Ok(false),
        Err(source) => {
            return Err(Error::AttachGuard {
                interface,
                netns: pod.netns.clone(),
                source,
            });
        }
    };
    let path = pins.guard_link(pod.cookie, interface);
    bpf::pin(link, &path).map_err(file::failed("cannot pin", &path))?;
    Ok(true)
}

pub(super) fn replace_guards(object: &Object, pins: &Pins) -> Result<(), Error> {
    for pin in pins.guard_pins()? {
        let path = pins.guard_link(pin.cookie, pin.interface);
        let Some(link) = pins::open(&path)? else {
            continue;
        };
        let ebpf = load_pod_program(GUARD, object, pins, pin.cookie)?;
        match bpf::update_link(&link, program_fd(&ebpf, GUARD)?) {
            // The interface no longer exists; the sweep removes the pin.
            Err(error) if error.raw_os_error() == Some(libc::ENOLINK) => {}
            result => result.map_err(|source| Error::Replace {
                program: GUARD,
                path,
                source,
            })?,
        }
    }
    Ok(())
}

fn load_pod_program(
    name: &'static str,
    object: &Object,
    pins: &Pins,
    cookie: u64,
) -> Result<Ebpf, Error> {
    let mut ebpf = prepare(object, pins, cookie)?;
    load_program(&mut ebpf, name)?;
    Ok(ebpf)
}

/// Parses the object and binds it to the pinned maps.
fn prepare(object: &Object, pins: &Pins, cookie: u64) -> Result<Ebpf, Error> {
    let directory = pins.maps();
    let mut loader = EbpfLoader::new();
    for name in maps::NAMES {
        loader.map_pin_path(name, directory.join(name));
    }
    loader.override_global(POD_COOKIE, &cookie, true);
    parse(&mut loader, object)
}

/// Parses the object with the loader's settings, and creates maps that are not pinned.
pub(super) fn parse(loader: &mut EbpfLoader<'_>, object: &Object) -> Result<Ebpf, Error> {
    loader.load(object.bytes()).map_err(|error| match &error {
        EbpfError::MapError(MapError::CreateError { io_error, .. }) if is_eperm(io_error) => {
            Error::MapsNotPermitted(error)
        }
        EbpfError::MapError(MapError::CreateError { .. }) => Error::MapRefused(error),
        _ => Error::Object(error),
    })
}

fn is_eperm(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::EPERM)
}

pub(super) fn load_program(ebpf: &mut Ebpf, name: &'static str) -> Result<(), Error> {
    let program = ebpf.program_mut(name).ok_or(Error::NoProgram(name))?;
    let result = match program {
        Program::CgroupSockAddr(program) => CgroupSockAddr::load(program),
        Program::CgroupSockopt(program) => CgroupSockopt::load(program),
        Program::SockOps(program) => SockOps::load(program),
        Program::SkLookup(program) => SkLookup::load(program),
        Program::SchedClassifier(program) => SchedClassifier::load(program),
        Program::RawTracePoint(program) => RawTracePoint::load(program),
        _ => Err(ProgramError::UnexpectedProgramType),
    };
    result.map_err(|source| match &source {
        ProgramError::LoadError { io_error, .. } if is_eperm(io_error) => Error::NotPermitted {
            program: name,
            source,
        },
        _ => Error::Refused {
            program: name,
            source,
        },
    })
}

pub(super) fn program_fd<'a>(
    ebpf: &'a Ebpf,
    name: &'static str,
) -> Result<std::os::fd::BorrowedFd<'a>, Error> {
    ebpf.program(name)
        .ok_or(Error::NoProgram(name))?
        .fd()
        .map(AsFd::as_fd)
        .map_err(|source| Error::Refused {
            program: name,
            source,
        })
}

/// Removes steering links whose network namespace no longer exists; returns their cookies.
pub(super) fn remove_dead_links(pins: &Pins) -> Result<Vec<u64>, Error> {
    let mut removed = Vec::new();
    for cookie in pins.steered_cookies()? {
        let path = pins.steer_link(cookie);
        if let Some(link) = pins::open(&path)?
            && !has_netns(&link)
        {
            pins::remove(&path)?;
            removed.push(cookie);
        }
    }
    Ok(removed)
}

pub(super) fn cgroup2_mount() -> Option<PathBuf> {
    fs::read_to_string("/proc/self/mounts")
        .ok()?
        .lines()
        .find_map(|line| {
            let mut words = line.split(' ');
            let (point, kind) = (words.nth(1)?, words.next()?);
            let path = PathBuf::from(point);
            // Another mount may cover it.
            (kind == "cgroup2" && is_cgroup2(&path)).then_some(path)
        })
}

//! The layout of the pins. A bpffs stores names of kernel objects and nothing else, so the layout
//! is the agent's only state across restarts:
//!
//! ```text
//! <pin-dir>/v1/object           the loaded object file itself, as a frozen map
//! <pin-dir>/v1/maps/<NAME>      shared by all programs
//! <pin-dir>/v1/links/<program>  one per hook of the pods' parent cgroup
//! <pin-dir>/v1/steer/<cookie>   one per pod of the full tier, in its network namespace
//! <pin-dir>/v1/guard/<cookie>-<interface index>  one per guarded interface of a pod
//! <pin-dir>/machine-v1/…        the same for systemd units, whose programs are all in links
//! ```

use std::fs::{self, File};
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use mesh_ebpf_common::layout::VERSION;
use mesh_ebpf_common::unit;
use mesh_runtime::file::{self, FileError};
use nix::fcntl::{Flock, FlockArg};
use nix::mount::{MsFlags, mount};
use nix::sys::statfs::{BPF_FS_MAGIC, statfs};

use super::error::Error;
use super::object::Object;
use crate::host::bpffs_of;
use crate::sys::bpf;

/// The map's name in the kernel's listings (`bpftool map`).
const OBJECT_MAP_NAME: &str = "mesh_object";

/// The version's directory below the pin directory.
#[derive(Clone, Debug)]
pub(super) struct Pins {
    root: PathBuf,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct GuardPin {
    pub(super) cookie: u64,
    pub(super) interface: u32,
}

/// Held while pins or maps change: the agent and a CNI plugin may run concurrently.
pub(super) struct Lock {
    _file: Flock<File>,
}

impl Pins {
    /// `pin_dir` need not exist.
    pub(super) fn new(pin_dir: &Path) -> Pins {
        Pins {
            root: pin_dir.join(VERSION),
        }
    }

    /// Returns the pins of the programs for systemd units.
    pub(super) fn of_machine(pin_dir: &Path) -> Pins {
        Pins {
            root: pin_dir.join(unit::VERSION),
        }
    }

    /// Creates the directories, after mounting a bpffs if `pin_dir` is not on one.
    pub(super) fn create(&self) -> Result<(), Error> {
        let pin_dir = self.root.parent().unwrap_or(&self.root);
        ensure_bpffs(pin_dir)?;
        for directory in [self.maps(), self.links(), self.steer(), self.guard()] {
            fs::create_dir_all(&directory).map_err(file::failed("cannot create", &directory))?;
        }
        Ok(restrict(pin_dir)?)
    }

    pub(super) fn lock(&self) -> Result<Lock, Error> {
        let file = File::open(&self.root).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => Error::NotPinned(self.root.clone()),
            _ => file::failed("cannot open", &self.root)(error).into(),
        })?;
        let file = Flock::lock(file, FlockArg::LockExclusive)
            .map_err(|(_, errno)| file::failed("cannot lock", &self.root)(errno))?;
        Ok(Lock { _file: file })
    }

    pub(super) fn root(&self) -> &Path {
        &self.root
    }

    pub(super) fn maps(&self) -> PathBuf {
        self.root.join("maps")
    }

    pub(super) fn links(&self) -> PathBuf {
        self.root.join("links")
    }

    pub(super) fn link(&self, program: &str) -> PathBuf {
        self.links().join(program)
    }

    pub(super) fn steer(&self) -> PathBuf {
        self.root.join("steer")
    }

    pub(super) fn steer_link(&self, cookie: u64) -> PathBuf {
        self.steer().join(cookie.to_string())
    }

    pub(super) fn steered_cookies(&self) -> Result<Vec<u64>, FileError> {
        let names = names_in(&self.steer())?;
        Ok(names.iter().filter_map(|name| name.parse().ok()).collect())
    }

    fn guard(&self) -> PathBuf {
        self.root.join("guard")
    }

    pub(super) fn guard_link(&self, cookie: u64, interface: u32) -> PathBuf {
        self.guard().join(format!("{cookie}-{interface}"))
    }

    /// Returns all guard links; none if an older agent created the directories.
    pub(super) fn guard_pins(&self) -> Result<Vec<GuardPin>, FileError> {
        let directory = self.guard();
        if !directory.exists() {
            return Ok(Vec::new());
        }
        let pin = |name: &String| {
            let (cookie, interface) = name.split_once('-')?;
            Some(GuardPin {
                cookie: cookie.parse().ok()?,
                interface: interface.parse().ok()?,
            })
        };
        Ok(names_in(&directory)?.iter().filter_map(pin).collect())
    }

    fn object(&self) -> PathBuf {
        self.root.join("object")
    }

    /// Returns whether programs are pinned and no replacement was interrupted.
    pub(super) fn has_object(&self) -> bool {
        self.object().exists()
    }

    /// Returns the object that the pinned programs were loaded from; `None` when nothing is loaded
    /// or a replacement was interrupted.
    pub(super) fn loaded_object(&self) -> Result<Option<Object>, FileError> {
        let path = self.object();
        let Some(map) = open(&path)? else {
            return Ok(None);
        };
        bpf::read_blob(map)
            .map(|bytes| Some(Object::from_bytes(bytes)))
            .map_err(file::failed("cannot read", &path))
    }

    pub(super) fn pin_object(&self, object: &Object) -> Result<(), FileError> {
        let path = self.object();
        bpf::create_blob(OBJECT_MAP_NAME, object.bytes())
            .and_then(|map| bpf::pin(map, &path))
            .map_err(file::failed("cannot write", &path))
    }

    pub(super) fn unpin_object(&self) -> Result<(), FileError> {
        let _was_pinned = remove(&self.object())?;
        Ok(())
    }

    /// Removes every pin; removing the links detaches the programs.
    pub(super) fn remove_all(&self) -> Result<(), FileError> {
        file::remove_tree(&self.root).map_err(file::failed("cannot remove", &self.root))
    }
}

fn names_in(directory: &Path) -> Result<Vec<String>, FileError> {
    fs::read_dir(directory)
        .and_then(|entries| {
            entries
                .map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()))
                .collect()
        })
        .map_err(file::failed("cannot list", directory))
}

/// Opens a pin; returns `None` when it does not exist.
pub(super) fn open(path: &Path) -> Result<Option<OwnedFd>, FileError> {
    match bpf::open_pin(path) {
        Ok(object) => Ok(Some(object)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(file::failed("cannot open", path)(error)),
    }
}

/// Removes a pin; returns false when it did not exist.
pub(super) fn remove(path: &Path) -> Result<bool, FileError> {
    match fs::remove_file(path) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(file::failed("cannot remove", path)(error)),
    }
}

/// Mounts a bpffs for `pin_dir` unless it is, or would be, on one.
fn ensure_bpffs(pin_dir: &Path) -> Result<(), Error> {
    let mount_point = bpffs_of(pin_dir);
    let failed = |source| Error::Bpffs {
        path: pin_dir.to_owned(),
        source,
    };
    let existing = pin_dir.ancestors().find(|path| path.exists());
    if existing.is_some_and(is_bpffs) {
        return Ok(());
    }
    fs::create_dir_all(mount_point).map_err(failed)?;
    mount(
        Some("bpf"),
        mount_point,
        Some("bpf"),
        MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC,
        Some("mode=700"),
    )
    .map_err(|errno| failed(errno.into()))
}

fn is_bpffs(path: &Path) -> bool {
    statfs(path).is_ok_and(|status| status.filesystem_type() == BPF_FS_MAGIC)
}

/// Restricts the pins to root: a process that can open them can redirect the node's traffic.
fn restrict(pin_dir: &Path) -> Result<(), FileError> {
    use std::os::unix::fs::PermissionsExt;
    fs::set_permissions(pin_dir, fs::Permissions::from_mode(0o700))
        .map_err(file::failed("cannot restrict", pin_dir))
}

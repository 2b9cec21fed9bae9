//! The self-test's environment: a network namespace, a cgroup with two children, and its own pinned
//! set of programs with one enrolled pod. Dropping it removes all of them.

use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::{io, process, thread};

use nix::sched::{CloneFlags, setns, unshare};

use super::protocol::{
    ADMIN_PORT, CONTROL_PORT, INBOUND_PORT, OTHER_OWN_V4, OUTBOUND_PORT, OUTSIDE_V4, OUTSIDE_V6,
    OWN_V4, OWN_V6, PROXY_UID, SKIPPED_PORT,
};
use super::{Error, Settings};
use crate::ebpf::{self, Object, Programs};
use crate::redirect::{PodRedirect, PodRef, PortSet, RedirectSpec, Tier};
use crate::sys::{loopback, netns};

/// Followed by the agent's process id.
const CGROUP_PREFIX: &str = "mesh-selftest-";

/// The fields are dropped in this order: programs are detached before their targets are removed.
pub(super) struct SelfTestEnv {
    _pins: PinDir,
    cgroup: Cgroup,
    namespace: File,
}

/// A scratch cgroup; removed with its children when dropped.
struct Cgroup(PathBuf);

/// A scratch pin directory; detached and removed when dropped.
struct PinDir(PathBuf);

impl SelfTestEnv {
    pub(super) fn build(object: &Object, settings: &Settings) -> Result<SelfTestEnv, Error> {
        clear(&settings.pin_dir, Some(&settings.cgroup_parent))?;
        let namespace = new_namespace()?;
        let cgroup = Cgroup::create(&settings.cgroup_parent)?;
        let pins = PinDir(settings.pin_dir.clone());
        let (programs, _) = ebpf::load(object, &pins.0, &cgroup.0)?;
        let env = SelfTestEnv {
            _pins: pins,
            cgroup,
            namespace,
        };
        env.enrol(&programs)?;
        Ok(env)
    }

    fn enrol(&self, programs: &Programs) -> Result<(), Error> {
        let netns = self.netns();
        let pod = PodRedirect {
            pod: PodRef {
                namespace: "mesh".into(),
                name: "selftest".into(),
                uid: String::new(),
            },
            sandbox_id: "selftest".into(),
            cookie: netns::cookie_of(&netns)?,
            netns,
            addresses: vec![OWN_V4.into(), OTHER_OWN_V4.into(), OWN_V6.into()],
            spec: spec(),
            tier: Tier::Full,
        };
        programs.enrol(&pod)?;
        Ok(())
    }

    /// Returns a path of the namespace for other processes.
    pub(super) fn netns(&self) -> PathBuf {
        format!("/proc/{}/fd/{}", process::id(), self.namespace.as_raw_fd()).into()
    }

    pub(super) fn proxy_cgroup(&self) -> PathBuf {
        self.cgroup.0.join("proxy")
    }

    pub(super) fn application_cgroup(&self) -> PathBuf {
        self.cgroup.0.join("application")
    }
}

fn spec() -> RedirectSpec {
    let ports = |ports: &[u16]| {
        let mut set = PortSet::default();
        for port in ports {
            set.insert(*port..=*port);
        }
        set
    };
    RedirectSpec {
        proxy_uid: PROXY_UID,
        proxy_gid: None,
        inbound_port: INBOUND_PORT,
        outbound_port: OUTBOUND_PORT,
        admin_port: ADMIN_PORT,
        control_port: CONTROL_PORT,
        skip_inbound: ports(&[ADMIN_PORT, CONTROL_PORT, SKIPPED_PORT]),
        skip_outbound: ports(&[SKIPPED_PORT]),
        skip_subnets: Vec::new(),
        ipv6: true,
        inbound_fail_open: false,
    }
}

/// Creates a namespace on a temporary thread; the open file keeps it.
fn new_namespace() -> Result<File, Error> {
    let made = thread::spawn(|| {
        unshare(CloneFlags::CLONE_NEWNET).map_err(|errno| Error::Namespace(errno.into()))?;
        loopback::set_up(&[OWN_V4, OTHER_OWN_V4, OUTSIDE_V4], &[OWN_V6, OUTSIDE_V6])
            .map_err(Error::Addresses)?;
        File::open("/proc/thread-self/ns/net").map_err(Error::Namespace)
    });
    match made.join() {
        Ok(result) => result,
        Err(_panic) => Err(Error::Netns(netns::NetnsError::Panicked)),
    }
}

/// Moves this single-threaded process into its namespace and cgroup.
pub(super) fn enter(namespace: &Path, cgroup: &Path) -> io::Result<()> {
    File::open(namespace)
        .and_then(|file| Ok(setns(file, CloneFlags::CLONE_NEWNET)?))
        .map_err(|error| {
            io::Error::other(format!(
                "cannot enter its network namespace (it takes CAP_SYS_ADMIN): {error}"
            ))
        })?;
    fs::write(cgroup.join("cgroup.procs"), process::id().to_string()).map_err(|error| {
        io::Error::other(format!(
            "cannot join cgroup {} (it takes a writable cgroup hierarchy): {error}",
            cgroup.display()
        ))
    })
}

/// Removes pins, and the cgroups of self-tests whose agent has exited.
pub(super) fn clear(pin_dir: &Path, cgroup_parent: Option<&Path>) -> Result<(), Error> {
    ebpf::unload(pin_dir)?;
    let _ = fs::remove_dir(pin_dir);
    let Some(parent) = cgroup_parent else {
        return Ok(());
    };
    let names = fs::read_dir(parent).map_err(|source| Error::Scratch {
        action: "list",
        path: parent.to_owned(),
        source,
    })?;
    for name in names.filter_map(|entry| Some(entry.ok()?.file_name())) {
        let name = name.to_string_lossy();
        let pid = name
            .strip_prefix(CGROUP_PREFIX)
            .and_then(|pid| pid.parse::<u32>().ok());
        if pid.is_some_and(|pid| !Path::new("/proc").join(pid.to_string()).exists()) {
            tracing::info!(cgroup = %name, "Removed the cgroup of a killed self-test");
            drop(Cgroup(parent.join(&*name)));
        }
    }
    Ok(())
}

impl Cgroup {
    fn create(parent: &Path) -> Result<Cgroup, Error> {
        let cgroup = Cgroup(parent.join(format!("{CGROUP_PREFIX}{}", process::id())));
        for path in cgroup.directories().iter().rev() {
            fs::create_dir_all(path).map_err(|source| Error::Scratch {
                action: "create cgroup",
                path: path.clone(),
                source,
            })?;
        }
        Ok(cgroup)
    }

    /// Children first, the order of removal.
    fn directories(&self) -> [PathBuf; 3] {
        [
            self.0.join("proxy"),
            self.0.join("application"),
            self.0.clone(),
        ]
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        for path in self.directories() {
            if let Err(error) = fs::remove_dir(&path) {
                tracing::warn!(path = %path.display(), %error, "Cannot remove a cgroup of the self-test");
            }
        }
    }
}

impl Drop for PinDir {
    fn drop(&mut self) {
        let removed = ebpf::unload(&self.0).map_err(|error| error.to_string());
        if let Err(error) = removed {
            tracing::warn!(path = %self.0.display(), %error, "Cannot remove the pins of the self-test");
        }
        // Fails when other files are in the directory.
        let _ = fs::remove_dir(&self.0);
    }
}

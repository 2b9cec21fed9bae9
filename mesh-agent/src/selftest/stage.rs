//! The self-test's scratch world: a network namespace, a cgroup with two children, and a pinned set
//! of programs of its own with one enrolled pod. Dropping it removes all of it.

use std::{
    fs::{self, File},
    io,
    os::fd::AsRawFd,
    path::{Path, PathBuf},
    process, thread,
};

use nix::sched::{CloneFlags, setns, unshare};

use super::{
    Error, Settings,
    protocol::{
        ADMIN_PORT, CONTROL_PORT, INBOUND_PORT, OTHER_OWN_V4, OUTBOUND_PORT, OUTSIDE_V4,
        OUTSIDE_V6, OWN_V4, OWN_V6, PROXY_UID, SKIPPED_PORT,
    },
};
use crate::{
    ebpf::{self, Object, Programs},
    redirect::{PodRedirect, PodRef, PortSet, RedirectSpec, Tier},
    sys::{loopback, netns},
};

/// The fields are dropped in this order: attachments end before what they are attached to.
pub(super) struct Stage {
    _pins: PinDir,
    cgroup: Cgroup,
    namespace: File,
}

/// A scratch cgroup; removed with its children when dropped.
struct Cgroup(PathBuf);

/// A scratch pin directory; detached and removed when dropped.
struct PinDir(PathBuf);

impl Stage {
    pub(super) fn build(object: &Object, settings: &Settings) -> Result<Stage, Error> {
        let namespace = new_namespace()?;
        let cgroup = Cgroup::create(&settings.cgroup_parent)?;
        let pins = PinDir(settings.pin_dir.clone());
        // A killed self-test may have left its pins.
        ebpf::unload(&pins.0)?;
        let (programs, _) = ebpf::load(object, &pins.0, &cgroup.0)?;
        let stage = Stage {
            _pins: pins,
            cgroup,
            namespace,
        };
        stage.enrol(&programs)?;
        Ok(stage)
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

    /// A path to the namespace for other processes.
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
        inbound_fail_open: false,
    }
}

/// Makes a namespace on a thread that is then thrown away; the open file keeps it.
fn new_namespace() -> Result<File, Error> {
    let made = thread::spawn(|| {
        unshare(CloneFlags::CLONE_NEWNET)?;
        loopback::set_up(&[OWN_V4, OTHER_OWN_V4, OUTSIDE_V4], &[OWN_V6, OUTSIDE_V6])?;
        File::open("/proc/thread-self/ns/net")
    });
    match made.join() {
        Ok(result) => result.map_err(Error::Namespace),
        Err(_panic) => Err(Error::Netns(netns::NetnsError::Panicked)),
    }
}

/// Moves this process, which has one thread, to where its role belongs.
pub(super) fn enter(namespace: &Path, cgroup: &Path) -> io::Result<()> {
    setns(File::open(namespace)?, CloneFlags::CLONE_NEWNET)?;
    fs::write(cgroup.join("cgroup.procs"), process::id().to_string())
}

impl Cgroup {
    fn create(parent: &Path) -> Result<Cgroup, Error> {
        let cgroup = Cgroup(parent.join(format!("mesh-selftest-{}", process::id())));
        for path in cgroup.directories().iter().rev() {
            fs::create_dir_all(path).map_err(|source| Error::Scratch {
                action: "create cgroup",
                path: path.clone(),
                source,
            })?;
        }
        Ok(cgroup)
    }

    /// Children first, as they must be removed.
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
                tracing::warn!(path = %path.display(), %error, "cannot remove a cgroup of the self-test");
            }
        }
    }
}

impl Drop for PinDir {
    fn drop(&mut self) {
        let removed = ebpf::unload(&self.0).map_err(|error| error.to_string());
        if let Err(error) = removed {
            tracing::warn!(path = %self.0.display(), %error, "cannot remove the pins of the self-test");
        }
        // Empty now; left alone if something else is in it.
        let _ = fs::remove_dir(&self.0);
    }
}

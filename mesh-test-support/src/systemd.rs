//! systemd as process 1 of namespaces of its own: a host that boots, runs units and fails.

use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use crate::command::{Words, output_text, text};
use crate::eventually::eventually;
use crate::machine::Machine;
use crate::network::Namespace;
use crate::program::Program;

const PROGRAM: &str = "/lib/systemd/systemd";

/// A boot of a host. Dropping it ends every process of the host, as a power failure does.
pub struct Systemd {
    _namespaces: Program,
    init: u32,
}

impl Systemd {
    /// Returns false with an explanation if this machine does not have the program.
    pub fn is_installed() -> bool {
        let is_installed = Path::new(PROGRAM).exists();
        if !is_installed {
            println!("skipped: {PROGRAM} is not installed");
        }
        is_installed
    }

    /// Boots in the network namespace and the machine's cgroup. The units of the directory precede
    /// the ones of this machine. `/run` and the mounts of systemd are the boot's own.
    ///
    /// # Panics
    ///
    /// systemd does not start.
    pub fn boot(network: &Namespace, machine: &Machine, units: &Path, target: &str) -> Self {
        let prepare = "mount -t proc proc /proc\n\
                       mount -t tmpfs tmpfs /run\n\
                       mount -t cgroup2 cgroup2 /sys/fs/cgroup\n";
        Self::start(prepare, network, machine, units, target)
    }

    /// Boots like [`Systemd::boot`] a copy of this machine's root file system, in which packages
    /// can be installed. All changes end with the boot, but for the machine's directory, which is
    /// this machine's. `/sys/fs/bpf` is the boot's own, too.
    ///
    /// # Panics
    ///
    /// systemd does not start.
    pub fn boot_copy(network: &Namespace, machine: &Machine, units: &Path, target: &str) -> Self {
        let directory = machine.directory();
        let prepare = format!(
            "layers={directory}/layers\n\
             mkdir $layers\n\
             mount -t tmpfs tmpfs $layers\n\
             mkdir $layers/upper $layers/work $layers/root\n\
             mount -t overlay overlay $layers/root \
             -o lowerdir=/,upperdir=$layers/upper,workdir=$layers/work\n\
             cd $layers/root\n\
             mount -t proc proc proc\n\
             mount --rbind /dev dev\n\
             mount -t sysfs sysfs sys\n\
             mount -t cgroup2 cgroup2 sys/fs/cgroup\n\
             mount -t bpf bpf sys/fs/bpf\n\
             mount -t tmpfs tmpfs run\n\
             mkdir -p .{directory}\n\
             mount --bind {directory} .{directory}\n\
             pivot_root . mnt\n\
             umount --lazy /mnt\n",
            directory = directory.display(),
        );
        Self::start(&prepare, network, machine, units, target)
    }

    /// `prepare` are commands in the boot's namespaces.
    fn start(
        prepare: &str,
        network: &Namespace,
        machine: &Machine,
        units: &Path,
        target: &str,
    ) -> Self {
        let script = format!(
            "echo $$ > {cgroup}/cgroup.procs\n\
             exec unshare --mount --pid --fork --kill-child --uts --ipc --cgroup sh -ec '\n\
             {prepare}\
             exec env -i container=mesh-test PATH=/usr/sbin:/usr/bin:/sbin:/bin \
             SYSTEMD_UNIT_PATH={units}: {PROGRAM} --system --unit={target} \
             --log-target=console --log-level=info --show-status=no'\n",
            cgroup = machine.cgroup().display(),
            units = units.display(),
        );
        let mut command = network.command(vec!["sh", "-c"]);
        command.arg(script).stderr(Stdio::null());
        let namespaces = Program::start(&mut command);
        let id = namespaces.id();
        let init = eventually("systemd", || {
            let children = fs::read_to_string(format!("/proc/{id}/task/{id}/children")).ok()?;
            children.trim().parse().ok()
        });
        Self {
            _namespaces: namespaces,
            init,
        }
    }

    /// Runs systemctl, which must succeed.
    ///
    /// # Panics
    ///
    /// It fails. The message has its output.
    pub fn systemctl(&self, arguments: impl Words) -> String {
        let output = self.try_systemctl(&arguments);
        let (arguments, shown) = (arguments.words(), output_text(&output));
        assert!(output.status.success(), "systemctl {arguments:?}: {shown}");
        text(&output.stdout)
    }

    /// The same; it may fail.
    ///
    /// # Panics
    ///
    /// It does not start.
    pub fn try_systemctl(&self, arguments: impl Words) -> Output {
        let mut command = self.command(["systemctl"]);
        command
            .args(arguments.words())
            .output()
            .expect("nsenter runs")
    }

    /// Returns a command that runs on the host.
    pub fn command(&self, line: impl Words) -> Command {
        let init = self.init.to_string();
        let mut command = Command::new("nsenter");
        command
            .args(["-t", &init, "-m", "-p", "-C", "-n"])
            .args(line.words());
        command
    }
}

//! The file system of the virtual machine: the programs of the plan and those that they start, at
//! the paths that they have here, with their shared libraries, and the kernel's network modules.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, bail};
use xtask::command;

use crate::kernel::Image;
use crate::plan::Plan;

pub(crate) const PLAN: &str = "plan.json";
pub(crate) const PATH: &str = "/usr/sbin:/usr/bin:/sbin:/bin";

/// The programs of this workspace that tests start.
pub(crate) const PROGRAMS: [&str; 4] = ["mesh-agent", "mesh-cni", "mesh-init", "probe"];
/// This program.
pub(crate) const THIS: &str = "mesh-kernels";
/// The machine's programs, with the package of each.
const TOOLS: [(&str, &str); 9] = [
    ("ip", "iproute2"),
    ("tc", "iproute2"),
    ("nsenter", "util-linux"),
    ("setpriv", "util-linux"),
    ("unshare", "util-linux"),
    ("nft", "nftables"),
    ("bpftool", "bpftool"),
    ("xtables-legacy-multi", "iptables"),
    ("xtables-nft-multi", "iptables"),
];
/// Kernel programs that differ from the agent's, for the test of an upgrade.
const OTHER_OBJECT: &str = "mesh-ebpf-other.o";
/// The CNI plugins that tests chain with this project's.
const CNI_PLUGINS: [&str; 3] = ["bridge", "host-local", "portmap"];
const CNI_DIRECTORY: &str = "/usr/lib/cni";
/// The CA certificates of a node. A client of an API server wants some, also for plain HTTP.
const CERTIFICATES: &str = "/etc/ssl/certs/ca-certificates.crt";
/// Commands that busybox serves. The kernel starts `modprobe`.
const COMMANDS: [&str; 8] = [
    "sh", "cat", "echo", "env", "sleep", "modprobe", "true", "mount",
];
const BUSYBOX: &str = "/bin/busybox";
/// The directories of modules that are taken.
const MODULES: [&str; 5] = ["net", "drivers/net", "lib", "crypto", "arch"];
const PASSWD: &str = "root:x:0:0:root:/root:/bin/sh\nproxy:x:2102:2102::/:/bin/sh\n";

/// Writes the compressed archive and returns its path.
pub(crate) fn pack(directory: &Path, image: &Image, plan: &Plan) -> anyhow::Result<PathBuf> {
    let root = Root(directory.join("root"));
    let _absent = fs::remove_dir_all(&root.0);
    for place in [
        "proc", "sys", "dev", "run", "tmp", "root", "etc", "usr/bin", "usr/sbin",
    ] {
        root.make(place)?;
    }
    for (link, target) in [("bin", "usr/bin"), ("sbin", "usr/sbin")] {
        root.link(link, target)?;
    }
    root.write("etc/passwd", PASSWD.as_bytes())?;
    let plan_text = serde_json::to_vec(plan).context("write the plan as JSON")?;
    root.write(PLAN, &plan_text)?;

    let mut files: BTreeSet<PathBuf> = TOOLS.iter().map(tool).collect::<anyhow::Result<_>>()?;
    files.extend(PROGRAMS.map(|name| plan.programs.join(name)));
    files.extend(CNI_PLUGINS.map(|name| Path::new(CNI_DIRECTORY).join(name)));
    for test in &plan.tests {
        files.insert(test.program.clone());
        root.make(inside(&test.directory))?;
    }
    // Not the running file, which the build may have replaced.
    let this = plan.programs.join(THIS);
    let of_needed = files.iter().chain([&this]);
    let libraries = libraries(of_needed)?;
    for file in files.iter().chain(&libraries) {
        root.copy(file, inside(file))?;
    }
    for family in ["iptables", "ip6tables"] {
        for (kind, program) in [("legacy", "legacy"), ("nft", "nft")] {
            for work in ["", "-save", "-restore"] {
                let name = format!("usr/sbin/{family}-{kind}{work}");
                root.link(&name, &format!("xtables-{program}-multi"))?;
            }
        }
        // The program that portmap starts; Debian's default is the same.
        for work in ["", "-save", "-restore"] {
            root.link(&format!("usr/sbin/{family}{work}"), "xtables-nft-multi")?;
        }
    }
    let object = plan.programs.with_file_name("bpf").join(OTHER_OBJECT);
    root.copy(&object, inside(&object))?;
    let certificates = Path::new(CERTIFICATES);
    root.copy(certificates, inside(certificates))?;
    for extensions in libraries_of_extensions()? {
        root.copy(&extensions, inside(&extensions))?;
    }
    root.copy(&this, Path::new("init"))?;
    root.copy(Path::new(BUSYBOX), Path::new("usr/bin/busybox"))?;
    for name in COMMANDS {
        root.link(&format!("usr/bin/{name}"), "busybox")?;
    }
    root.link("usr/sbin/modprobe", "../bin/busybox")?;
    add_modules(&root, image)?;
    archive(&root, directory)
}

/// The directory that becomes the archive.
struct Root(PathBuf);

impl Root {
    fn make(&self, path: impl AsRef<Path>) -> anyhow::Result<()> {
        let path = self.0.join(path);
        fs::create_dir_all(&path).with_context(|| format!("create {}", path.display()))
    }

    fn path(&self, path: impl AsRef<Path>) -> anyhow::Result<PathBuf> {
        let path = path.as_ref();
        self.make(path.parent().unwrap_or(path))?;
        Ok(self.0.join(path))
    }

    fn write(&self, path: &str, content: &[u8]) -> anyhow::Result<()> {
        let path = self.path(path)?;
        fs::write(&path, content).with_context(|| format!("write {}", path.display()))
    }

    fn link(&self, path: &str, target: &str) -> anyhow::Result<()> {
        let path = self.path(path)?;
        symlink(target, &path).with_context(|| format!("link {}", path.display()))
    }

    fn copy(&self, file: &Path, path: &Path) -> anyhow::Result<()> {
        let copied = fs::copy(file, self.path(path)?);
        copied.with_context(|| format!("copy {}", file.display()))?;
        Ok(())
    }
}

fn inside(path: &Path) -> &Path {
    path.strip_prefix("/").unwrap_or(path)
}

/// Finds a program of the machine.
fn tool((name, package): &(&str, &str)) -> anyhow::Result<PathBuf> {
    let places =
        ["/usr/sbin", "/usr/bin", "/sbin", "/bin"].map(|place| Path::new(place).join(name));
    let found = places.into_iter().find(|path| path.exists());
    found.with_context(|| format!("{name} is not installed: `apt-get install {package}`"))
}

/// The shared libraries that programs need, the dynamic loader among them.
fn libraries<'a>(files: impl Iterator<Item = &'a PathBuf>) -> anyhow::Result<BTreeSet<PathBuf>> {
    let mut libraries = BTreeSet::new();
    for file in files {
        // Fails for static programs, which need none.
        let listed = command::captured_stdout(Command::new("ldd").arg(file)).unwrap_or_default();
        let words = listed.split_whitespace();
        libraries.extend(
            words
                .filter(|word| word.starts_with('/'))
                .map(PathBuf::from),
        );
    }
    if libraries.is_empty() {
        bail!("ldd lists no library that the test programs need");
    }
    Ok(libraries)
}

/// The extensions that the iptables programs load.
fn libraries_of_extensions() -> anyhow::Result<Vec<PathBuf>> {
    let listed = command::captured_stdout(Command::new("dpkg-query").args(["-L", "iptables"]))
        .context("iptables is not installed: `apt-get install iptables`")?;
    let files = listed.lines().filter(|line| line.contains("/xtables/"));
    Ok(files.map(PathBuf::from).collect())
}

/// Adds the modules of the network uncompressed, because busybox reads no others, with the index
/// for `modprobe`.
fn add_modules(root: &Root, image: &Image) -> anyhow::Result<()> {
    let place = Path::new("lib/modules").join(&image.release);
    let to = root.path(&place)?;
    for part in MODULES {
        let (from, to) = (
            image.modules.join("kernel").join(part),
            to.join("kernel").join(part),
        );
        if from.exists() {
            let parent = to.parent().unwrap_or(&to);
            fs::create_dir_all(parent).with_context(|| format!("create {}", parent.display()))?;
            command::run("cp", Command::new("cp").arg("-r").arg(&from).arg(&to))?;
        }
    }
    for file in [
        "modules.builtin",
        "modules.builtin.modinfo",
        "modules.order",
    ] {
        let file = image.modules.join(file);
        if let Some(name) = file.file_name().filter(|_| file.exists()) {
            root.copy(&file, &place.join(name))?;
        }
    }
    let mut unpack = Command::new("find");
    unpack
        .arg(&to)
        .args(["-name", "*.xz", "-exec", "xz", "--decompress", "{}", "+"]);
    command::run("xz", &mut unpack)?;
    let mut index = Command::new(BUSYBOX);
    index
        .arg("depmod")
        .arg("-b")
        .arg(&root.0)
        .arg(&image.release);
    command::run("depmod", &mut index)
}

/// Packs the directory as the kernel unpacks it.
fn archive(root: &Root, directory: &Path) -> anyhow::Result<PathBuf> {
    let path = directory.join("initramfs");
    let file = fs::File::create(&path).with_context(|| format!("create {}", path.display()))?;
    let mut pack = Command::new("sh");
    pack.args(["-c", "find . | busybox cpio -o -H newc -R 0:0"]);
    let status = pack
        .current_dir(&root.0)
        .stdout(Stdio::from(file))
        .stderr(Stdio::null());
    let status = status.status().context("start busybox")?;
    if !status.success() {
        bail!("busybox cpio: {status}");
    }
    Ok(path)
}

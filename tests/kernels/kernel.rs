//! The kernels, and how their packages are fetched: by apt, with lists of its own below
//! target/kernels, so that the machine's sources stay as they are and root is not needed.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail};
use mesh_core::node::Tier;
use xtask::command;

const MIRROR: &str = "http://deb.debian.org";
const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";
/// The variant for virtual machines: the same features, and few drivers.
const PACKAGE: &str = "linux-image-cloud-amd64";

pub(crate) struct Kernel {
    pub(crate) name: &'static str,
    pub(crate) suite: &'static str,
    /// The archive's directory on the mirror.
    archive: &'static str,
    /// The tier that an agent must choose: `nft` on kernels that are older than the programs need.
    pub(crate) tier: Tier,
}

/// Where an extracted kernel is.
pub(crate) struct Image {
    pub(crate) release: String,
    pub(crate) vmlinuz: PathBuf,
    pub(crate) modules: PathBuf,
}

const KERNELS: [Kernel; 5] = [
    Kernel {
        name: "5.10",
        suite: "bullseye-security",
        archive: "debian-security",
        tier: Tier::Nft,
    },
    Kernel {
        name: "6.1",
        suite: "bookworm",
        archive: "debian",
        tier: Tier::Full,
    },
    Kernel {
        name: "backports",
        suite: "bookworm-backports",
        archive: "debian",
        tier: Tier::Full,
    },
    Kernel {
        name: "trixie",
        suite: "trixie",
        archive: "debian",
        tier: Tier::Full,
    },
    Kernel {
        name: "newest",
        suite: "trixie-backports",
        archive: "debian",
        tier: Tier::Full,
    },
];

/// Returns a line for each kernel.
pub(crate) fn list() -> Vec<String> {
    let line = |kernel: &Kernel| format!("{:<11}{PACKAGE} of {}", kernel.name, kernel.suite);
    KERNELS.iter().map(line).collect()
}

impl Kernel {
    pub(crate) fn named(name: &str) -> anyhow::Result<&'static Self> {
        let found = KERNELS.iter().find(|kernel| kernel.name == name);
        found.with_context(|| {
            let names: Vec<&str> = KERNELS.iter().map(|kernel| kernel.name).collect();
            format!(
                "--kernel {name}: there is no kernel of this name; the names are {}",
                names.join(", ")
            )
        })
    }

    /// Fetches the newest package of the suite into the directory and extracts it.
    pub(crate) fn fetch(&self, directory: &Path) -> anyhow::Result<Image> {
        let apt = self.apt(directory)?;
        command::run("apt-get update", apt.command("apt-get").arg("update"))?;
        let extracted = directory.join("extracted");
        let _absent = fs::remove_dir_all(&extracted);
        fs::create_dir_all(&extracted)
            .with_context(|| format!("create {}", extracted.display()))?;
        let mut download = apt.command("apt-get");
        download.current_dir(directory).arg("download");
        command::run("apt-get download", download.args(apt.packages()?))?;
        for package in files(directory, ".deb")? {
            let mut extract = Command::new("dpkg-deb");
            extract.arg("--extract").arg(&package).arg(&extracted);
            command::run("dpkg-deb", &mut extract)?;
            fs::remove_file(&package).with_context(|| format!("remove {}", package.display()))?;
        }
        Image::find(&extracted)
    }

    fn apt(&self, directory: &Path) -> anyhow::Result<Apt> {
        let state = directory.join("apt");
        for part in ["lists/partial", "cache/archives/partial", "parts"] {
            let path = state.join(part);
            fs::create_dir_all(&path).with_context(|| format!("create {}", path.display()))?;
        }
        let Self { suite, archive, .. } = self;
        let line = format!("deb [signed-by={KEYRING}] {MIRROR}/{archive} {suite} main\n");
        let sources = state.join("sources.list");
        fs::write(&sources, line).with_context(|| format!("write {}", sources.display()))?;
        Ok(Apt { state })
    }
}

/// apt with its state in a directory.
struct Apt {
    state: PathBuf,
}

impl Apt {
    fn command(&self, program: &str) -> Command {
        let path = |part: &str| self.state.join(part).display().to_string();
        let mut command = Command::new(program);
        for (option, value) in [
            ("Dir::Etc::SourceList", path("sources.list")),
            ("Dir::Etc::SourceParts", path("parts")),
            ("Dir::State::Lists", path("lists")),
            ("Dir::Cache", path("cache")),
            // The user of the sandbox cannot write into a checkout.
            ("APT::Sandbox::User", "root".to_owned()),
            ("Acquire::Languages", "none".to_owned()),
        ] {
            command.arg("--option").arg(format!("{option}={value}"));
        }
        command
    }

    /// Returns the packages behind the package that only names the newest kernel: the kernel, and
    /// its modules where they are apart.
    fn packages(&self) -> anyhow::Result<Vec<String>> {
        let mut depends = self.command("apt-cache");
        depends.args(["depends", "--recurse", "--important", PACKAGE]);
        let listed = command::captured_stdout(&mut depends)
            .with_context(|| format!("apt-cache lists no dependencies of {PACKAGE}"))?;
        let packages: Vec<String> = real_packages(&listed).map(str::to_owned).collect();
        if packages.is_empty() {
            bail!("{PACKAGE} depends on no package of a kernel:\n{listed}");
        }
        Ok(packages)
    }
}

/// The packages with a version in their name, of the lines that name a package.
fn real_packages(listed: &str) -> impl Iterator<Item = &str> {
    listed.lines().filter(|line| {
        let of_kernel = ["linux-image-", "linux-modules-", "linux-binary-"]
            .iter()
            .find_map(|start| line.strip_prefix(start));
        of_kernel.is_some_and(|rest| rest.starts_with(|first: char| first.is_ascii_digit()))
    })
}

impl Image {
    fn find(extracted: &Path) -> anyhow::Result<Self> {
        let boot = extracted.join("boot");
        let vmlinuz = files(&boot, "")?.into_iter().find_map(|path| {
            let name = path.file_name()?.to_str()?;
            let release = name.strip_prefix("vmlinuz-")?.to_owned();
            Some((release, path))
        });
        let (release, vmlinuz) =
            vmlinuz.with_context(|| format!("{} has no kernel", boot.display()))?;
        let places = ["lib/modules", "usr/lib/modules"].map(|place| extracted.join(place));
        let modules = places
            .iter()
            .map(|place| place.join(&release))
            .find(|place| place.exists());
        let modules = modules.with_context(|| format!("no modules of {release}"))?;
        Ok(Self {
            release,
            vmlinuz,
            modules,
        })
    }
}

/// Returns the files of a directory whose names end like this.
fn files(directory: &Path, end: &str) -> anyhow::Result<Vec<PathBuf>> {
    let list = || format!("list {}", directory.display());
    let mut files = Vec::new();
    for entry in fs::read_dir(directory).with_context(list)? {
        let path = entry.with_context(list)?.path();
        if path.is_file() && path.to_string_lossy().ends_with(end) {
            files.push(path);
        }
    }
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_kernel_is_reported_with_names() {
        let error = Kernel::named("2.4").err().expect("no such kernel");
        let text = error.to_string();
        assert!(
            text.contains("2.4") && text.contains("6.1, backports"),
            "{text}"
        );
    }

    #[test]
    fn packages_of_kernel_are_those_with_a_version() {
        let listed = "linux-image-cloud-amd64\n  Depends: linux-image-7.3.4+deb13-cloud-amd64\n\
             linux-image-7.3.4+deb13-cloud-amd64\nlinux-modules-cloud-amd64\n\
             linux-modules-7.3.4+deb13-cloud-amd64\nkmod\n<linux-initramfs-tool>\n";
        let packages: Vec<&str> = real_packages(listed).collect();
        assert_eq!(
            packages,
            [
                "linux-image-7.3.4+deb13-cloud-amd64",
                "linux-modules-7.3.4+deb13-cloud-amd64"
            ]
        );
    }
}

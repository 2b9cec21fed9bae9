//! Files that images take from packages of the build machine: the C library inside static programs,
//! the iptables programs of the agent's last tier, the tools of the debugging container, and CA
//! certificates. Each comes with its package's name and version, for the inventory, and with the
//! package's copyright file.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context;

use super::tree::Tree;
use crate::command::captured_stdout;

/// An installed package that something in an image is from.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Package {
    pub(crate) name: String,
    pub(crate) version: String,
    pub(crate) architecture: String,
}

/// Both kinds, as the package has them: the legacy one serves kernels without nf_tables, the reason
/// for the agent's last tier; the other shows a pod's rules to users of the usual program.
const PROGRAMS: [(&str, &str); 2] = [
    ("xtables-legacy-multi", "legacy"),
    ("xtables-nft-multi", "nft"),
];
const DIRECTORY: &str = "usr/sbin";

/// The extensions for bridges and ARP are left out.
const EXTENSIONS: [&str; 3] = ["libxt_", "libipt_", "libip6t_"];

const TCPDUMP: &str = "usr/bin/tcpdump";
const BUSYBOX: &str = "bin/busybox";

/// The certificates of the package ca-certificates, a file each.
const AUTHORITIES: &str = "/usr/share/ca-certificates/mozilla";

/// Where programs of Go and rustls-native-certs look for all of them.
const BUNDLE: &str = "etc/ssl/certs/ca-certificates.crt";

/// The busybox commands for debugging inside a pod. `true` serves the container's probes.
const COMMANDS: &str = "\
    awk cat chmod cp cut date dd df dmesg du env find free grep gzip head hexdump hostname id \
    ifconfig ip kill less ln ls mkdir more mv nc netstat nslookup ping ps pwd readlink rm route \
    sed sh sleep sort stat strings tail tar telnet timeout top touch tr traceroute true uname uniq \
    vi watch wc wget which xargs";

/// Programs look themselves up by their number.
const PASSWD: &str = "root:x:0:0:root:/:/bin/sh\n";

impl Package {
    pub(crate) fn copyright(&self) -> anyhow::Result<Vec<u8>> {
        let file = Path::new("/usr/share/doc")
            .join(&self.name)
            .join("copyright");
        fs::read(&file).with_context(|| {
            format!(
                "read {}: the licence of a package that goes into the image",
                file.display()
            )
        })
    }
}

/// The package of the C library that programs are linked with.
pub(crate) fn c_library() -> anyhow::Result<Package> {
    let library = captured_stdout(Command::new("cc").arg("-print-file-name=libc.a"))
        .context("there is no C compiler; `cargo xtask setup` installs one")?;
    let file = Path::new(library.trim())
        .canonicalize()
        .context("there is no static C library; libc6-dev brings it")?;
    owner(&file)
}

/// Adds the iptables programs, the extensions they load and the libraries of both, and returns the
/// packages they are from.
pub(crate) fn add_packet_filters(tree: &mut Tree) -> anyhow::Result<BTreeSet<Package>> {
    let mut files: BTreeMap<String, PathBuf> = BTreeMap::new();
    for (program, variant) in PROGRAMS {
        let path = format!("{DIRECTORY}/{program}");
        files.insert(path.clone(), Path::new("/").join(path));
        for name in names(variant) {
            tree.add_link(&format!("{DIRECTORY}/{name}"), program);
        }
    }
    for file in listed("iptables")? {
        let name = file.file_name().unwrap_or_default().to_string_lossy();
        if EXTENSIONS.iter().any(|start| name.starts_with(start)) {
            files.insert(inside(&file), file);
        }
    }
    for library in libraries(files.values())? {
        files.insert(inside(&library), library);
    }
    add_files(tree, files, "iptables")
}

/// Adds tcpdump with its libraries and a shell, and returns the packages they are from.
pub(crate) fn add_debugging_tools(tree: &mut Tree) -> anyhow::Result<BTreeSet<Package>> {
    let tcpdump = Path::new("/").join(TCPDUMP);
    let mut files: BTreeMap<String, PathBuf> = BTreeMap::new();
    for library in libraries([&tcpdump].into_iter())? {
        files.insert(inside(&library), library);
    }
    files.insert(TCPDUMP.to_owned(), tcpdump);
    files.insert(BUSYBOX.to_owned(), Path::new("/").join(BUSYBOX));
    for command in COMMANDS.split(' ') {
        tree.add_link(&format!("bin/{command}"), "busybox");
    }
    tree.add_file("etc/passwd", PASSWD.into());
    add_files(tree, files, "tcpdump busybox-static")
}

/// Adds the CA certificates in one file, and returns the package they are from. The file of the
/// machine belongs to no package and may have others.
pub(crate) fn add_authorities(tree: &mut Tree) -> anyhow::Result<Package> {
    let missing = || format!("read {AUTHORITIES}; `apt-get install ca-certificates` brings it");
    let mut files = Vec::new();
    for entry in fs::read_dir(AUTHORITIES).with_context(missing)? {
        files.push(entry.with_context(missing)?.path());
    }
    files.sort();
    let first = files.first().with_context(missing)?;
    let package = owner(first)?;
    let mut bundle = Vec::new();
    for file in &files {
        bundle.extend(fs::read(file).with_context(|| format!("read {}", file.display()))?);
    }
    tree.add_file(BUNDLE, bundle);
    Ok(package)
}

/// `packages` have the files, where they are missing.
fn add_files(
    tree: &mut Tree,
    files: BTreeMap<String, PathBuf>,
    packages: &str,
) -> anyhow::Result<BTreeSet<Package>> {
    let mut owners = BTreeSet::new();
    for (path, file) in files {
        let content = fs::read(&file).with_context(|| {
            format!(
                "read {}; `apt-get install {packages}` brings it",
                file.display()
            )
        })?;
        tree.add_program(&path, content);
        owners.insert(owner(&file)?);
    }
    Ok(owners)
}

/// Returns the names of a variant's program. Each name selects one of its functions.
fn names(variant: &str) -> Vec<String> {
    let mut names = Vec::new();
    for family in ["iptables", "ip6tables"] {
        for work in ["", "-save", "-restore"] {
            names.push(format!("{family}-{variant}{work}"));
        }
    }
    names
}

fn listed(package: &str) -> anyhow::Result<Vec<PathBuf>> {
    let files = captured_stdout(Command::new("dpkg-query").args(["--listfiles", package]))
        .with_context(|| format!("the package {package} is not installed; `cargo xtask setup` installs it (images are built on Debian or Ubuntu)"))?;
    Ok(files.lines().map(PathBuf::from).collect())
}

/// The shared libraries that programs and libraries need, the dynamic loader among them.
fn libraries<'a>(files: impl Iterator<Item = &'a PathBuf>) -> anyhow::Result<BTreeSet<PathBuf>> {
    let files: Vec<&PathBuf> = files.collect();
    let printed = captured_stdout(Command::new("ldd").args(&files)).with_context(|| {
        let first = files.first().map(|file| file.display().to_string());
        format!(
            "ldd cannot tell which libraries {} needs; `cargo xtask setup` installs what images are made of",
            first.unwrap_or_default()
        )
    })?;
    Ok(printed
        .lines()
        .filter_map(library)
        .map(PathBuf::from)
        .collect())
}

/// The path in a line of ldd: `libm.so.6 => /lib/…/libm.so.6 (0x…)`, or the loader's own
/// `/lib64/ld-linux-x86-64.so.2 (0x…)`.
fn library(line: &str) -> Option<&str> {
    line.split_whitespace()
        .find(|word| word.starts_with('/') && !word.ends_with(':'))
}

/// The package that installed a file. Packages list files below /usr or not, whatever the file
/// system does.
fn owner(file: &Path) -> anyhow::Result<Package> {
    let text = file.display().to_string();
    let other = match text.strip_prefix("/usr") {
        Some(short) => short.to_owned(),
        None => format!("/usr{text}"),
    };
    let listed = [text.as_str(), &other].into_iter().find_map(|path| {
        let answer = captured_stdout(Command::new("dpkg-query").args(["--search", path]))?;
        Some(answer.split(':').next()?.to_owned())
    });
    let name = listed.with_context(|| {
        format!("no package installed {text}, so its version and licence are unknown (images are built on Debian or Ubuntu)")
    })?;
    let mut command = Command::new("dpkg-query");
    command.args([
        "--show",
        "--showformat",
        "${Version} ${Architecture}",
        &name,
    ]);
    let answer =
        captured_stdout(&mut command).with_context(|| format!("dpkg-query knows no {name}"))?;
    let (version, architecture) = answer
        .lines()
        .next()
        .and_then(|line| line.split_once(' '))
        .with_context(|| format!("dpkg-query said of {name}: {answer}"))?;
    Ok(Package {
        name,
        version: version.to_owned(),
        architecture: architecture.to_owned(),
    })
}

/// A path of this machine as a path in an image.
fn inside(file: &Path) -> String {
    file.strip_prefix("/").unwrap_or(file).display().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ldd_output_is_parsed() {
        for (line, expected) in [
            (
                "\tlibmnl.so.0 => /lib/x86_64-linux-gnu/libmnl.so.0 (0x00007fb8334b6000)",
                Some("/lib/x86_64-linux-gnu/libmnl.so.0"),
            ),
            (
                "\t/lib64/ld-linux-x86-64.so.2 (0x00007fb833586000)",
                Some("/lib64/ld-linux-x86-64.so.2"),
            ),
            ("\tlinux-vdso.so.1 (0x00007fb833584000)", None),
            ("/usr/sbin/xtables-nft-multi:", None),
        ] {
            assert_eq!(library(line), expected, "{line}");
        }
    }

    #[test]
    fn debug_image_links_commands_to_busybox() {
        let mut commands = COMMANDS.split(' ');
        assert!(commands.clone().is_sorted() && commands.any(|command| command == "true"));
        let Some(listed) = captured_stdout(Command::new("/bin/busybox").arg("--list")) else {
            println!(
                "skipped: busybox_is_every_command_of_the_debugging_container: busybox is not installed"
            );
            return;
        };
        let listed: Vec<&str> = listed.lines().collect();
        for command in COMMANDS.split(' ') {
            assert!(listed.contains(&command), "{command}");
        }
    }

    #[test]
    fn iptables_variants_have_six_names() {
        assert_eq!(
            names("nft"),
            [
                "iptables-nft",
                "iptables-nft-save",
                "iptables-nft-restore",
                "ip6tables-nft",
                "ip6tables-nft-save",
                "ip6tables-nft-restore",
            ]
        );
    }
}

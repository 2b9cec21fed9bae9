//! The image of the end-to-end tests and of the demo on a cluster: `mesh/test-apps:dev`, Debian's
//! programs (nginx, MariaDB, redis, etcd, curl, h2load, …) copied from the packages installed on
//! this machine, so that no registry is needed. Never published.
//!
//! Unlike the images of the mesh it is not reproducible and runs as root.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail};
use serde_json::json;

use crate::command::captured_stdout;
use crate::docker_archive::Layer;

const REFERENCE: &str = "mesh/test-apps:dev";

/// Packages of the programs in the manifests of tests and demo. Their dependencies are included.
const PACKAGES: &str = "\
    bash coreutils curl dash etcd-client etcd-server findutils grep iproute2 mariadb-client-core \
    mariadb-server-core nftables nghttp2-client nginx-light procps python3 python3-websockets \
    redis-server redis-tools sed tcpdump util-linux wrk";

/// Paths that no program needs.
const LEFT_OUT: [&str; 5] = [
    "/usr/share/doc/",
    "/usr/share/info/",
    "/usr/share/lintian/",
    "/usr/share/locale/",
    "/usr/share/man/",
];

/// Directories that are links on a Debian whose /usr is merged.
const MERGED: [&str; 4] = ["bin", "lib", "lib64", "sbin"];

/// The user database, which programs query for their own user.
const PASSWD: &str = "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/nonexistent:/bin/false\ntcpdump:x:100:65534::/nonexistent:/bin/false\n";
const GROUP: &str = "root:x:0:\nnogroup:x:65534:\ntcpdump:x:65534:\n";

/// Writes the image as a tar that `docker load`, `ctr images import` and `kind load image-archive`
/// take. Does nothing when the packages are those it was made from the last time.
pub(crate) fn image(directory: &Path) -> anyhow::Result<PathBuf> {
    let packages = closure()?;
    let made_from = versions(&packages)?;
    let tar = directory.join("test-apps.tar");
    let note = directory.join("test-apps.packages");
    if tar.exists() && fs::read_to_string(&note).is_ok_and(|noted| noted == made_from) {
        return Ok(tar);
    }
    fs::create_dir_all(directory).with_context(|| format!("create {}", directory.display()))?;
    let mut layer = Layer::create(&tar)?;
    fill(&mut layer, &files(&packages)?).context("collect the programs of the test image")?;
    let config = json!({
        "Env": ["PATH=/usr/sbin:/usr/bin:/sbin:/bin"], "Cmd": ["/bin/sh"], "WorkingDir": "/",
    });
    layer.write_image(&tar, REFERENCE, &config)?;
    fs::write(&note, made_from)?;
    Ok(tar)
}

/// Returns the packages and their installed dependencies.
fn closure() -> anyhow::Result<BTreeSet<String>> {
    let installed = installed()?;
    let mut packages = PACKAGES.split(' ');
    if let Some(package) = packages.find(|package| !installed.contains_key(*package)) {
        bail!(
            "the package {package} is not installed; `cargo xtask setup` installs it (the test image is made on Debian or Ubuntu)"
        );
    }
    let mut query = Command::new("apt-cache");
    query.args(["depends", "--recurse", "--installed", "--no-recommends"]);
    query.args(["--no-suggests", "--no-conflicts", "--no-breaks"]);
    query.args(["--no-replaces", "--no-enhances"]);
    let answer = captured_stdout(query.args(PACKAGES.split(' ')));
    let answer = answer.context("apt-cache does not know the packages of the test image")?;
    // Among the names are alternatives that are not installed.
    let names = answer
        .lines()
        .filter(|name| installed.contains_key(*name))
        .map(str::to_owned);
    Ok(names.collect())
}

/// Every installed package with its version.
fn installed() -> anyhow::Result<BTreeMap<String, String>> {
    let mut query = Command::new("dpkg-query");
    query.args([
        "--show",
        "--showformat",
        "${db:Status-Status} ${Package} ${Version}\n",
    ]);
    let answer =
        captured_stdout(&mut query).context("dpkg-query does not list the installed packages")?;
    let packages = answer.lines().filter_map(|line| {
        let (name, version) = line.strip_prefix("installed ")?.split_once(' ')?;
        Some((name.to_owned(), version.to_owned()))
    });
    Ok(packages.collect())
}

fn versions(packages: &BTreeSet<String>) -> anyhow::Result<String> {
    let installed = installed()?;
    let lines = packages
        .iter()
        .filter_map(|name| Some(format!("{name} {}\n", installed.get(name)?)));
    Ok(lines.collect())
}

/// Every file and link of the packages, except for parts that no test runs.
fn files(packages: &BTreeSet<String>) -> anyhow::Result<BTreeSet<PathBuf>> {
    let listed = captured_stdout(Command::new("dpkg-query").arg("--listfiles").args(packages));
    let listed = listed.context("dpkg-query cannot list the files of the test image")?;
    let mut files: BTreeSet<PathBuf> = listed
        .lines()
        .filter(|line| is_wanted(line))
        .map(PathBuf::from)
        .collect();
    // Which of several programs answers to a common name; the links belong to no package.
    for entry in fs::read_dir("/etc/alternatives").context("read /etc/alternatives")? {
        files.insert(entry?.path());
    }
    Ok(files)
}

/// Whether a line of the list is a path that some program may want.
fn is_wanted(path: &str) -> bool {
    path.starts_with('/') && !LEFT_OUT.iter().any(|start| path.starts_with(start))
}

fn fill(layer: &mut Layer, files: &BTreeSet<PathBuf>) -> anyhow::Result<()> {
    for name in MERGED {
        layer.link(name, &format!("usr/{name}"))?;
    }
    layer.directory("tmp", 0o1777)?;
    layer.directory("root", 0o700)?;
    for path in ["run", "var/run", "host"] {
        layer.directory(path, 0o755)?;
    }
    for (path, text) in [("etc/passwd", PASSWD), ("etc/group", GROUP)] {
        layer.file(path, 0o644, text.as_bytes())?;
    }
    for file in files {
        let path = inside(file);
        let Ok(metadata) = file.symlink_metadata() else {
            // Listed by a package and removed since, as local settings allow.
            continue;
        };
        if MERGED.contains(&path.as_str()) || path.is_empty() {
            continue;
        }
        if metadata.is_symlink() {
            layer.link(&path, &fs::read_link(file)?.to_string_lossy())?;
        } else if metadata.is_file() {
            let content = fs::read(file).with_context(|| format!("read {}", file.display()))?;
            layer.file(&path, metadata.permissions().mode() & 0o777, &content)?;
        }
    }
    Ok(())
}

/// A path in the image, where /bin and its like are links into /usr.
fn inside(file: &Path) -> String {
    let path = file.display().to_string();
    let path = path.trim_start_matches('/').to_owned();
    match path.split_once('/') {
        Some((first, _)) if MERGED.contains(&first) => format!("usr/{path}"),
        _ => path,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn merged_usr_paths_are_resolved() {
        for (file, expected) in [
            ("/bin/sh", "usr/bin/sh"),
            (
                "/lib/x86_64-linux-gnu/libc.so.6",
                "usr/lib/x86_64-linux-gnu/libc.so.6",
            ),
            ("/usr/bin/curl", "usr/bin/curl"),
            ("/etc/nginx/nginx.conf", "etc/nginx/nginx.conf"),
        ] {
            assert_eq!(inside(Path::new(file)), expected);
        }
    }

    #[test]
    fn documentation_is_excluded_from_image() {
        assert!(!is_wanted("/usr/share/doc/curl/copyright"));
        assert!(is_wanted("/usr/share/mysql/english/errmsg.sys"));
        assert!(!is_wanted(""));
        assert!(is_wanted("/usr/sbin/nginx"));
    }
}

//! The description of a package, as nfpm reads it: YAML, and so JSON as well.

use std::env::consts::ARCH;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::Format;
use crate::image::machine::{self, Origin};

/// Settings of the administrator for proxies.
const SETTINGS: &str = "etc/mesh";

pub(super) struct Description<'a> {
    pub(super) origin: &'a Origin,
    pub(super) files: &'a [Placed],
    /// The directory of the scripts.
    pub(super) scripts: &'a Path,
    /// The oldest version of the C library that the command line runs with.
    pub(super) glibc: &'a str,
}

/// A file of the package.
pub(super) struct Placed {
    /// Without a leading slash.
    pub(super) path: String,
    pub(super) source: PathBuf,
}

impl Description<'_> {
    pub(super) fn to_json(&self, format: Format) -> String {
        let script = |name: &str| self.scripts.join(name);
        json!({
            "name": machine::NAME,
            "arch": architecture(),
            "platform": "linux",
            "version": self.origin.version,
            "release": "1",
            "section": "net",
            "priority": "optional",
            "maintainer": "The mesh authors",
            "description": machine::DESCRIPTION,
            "license": machine::LICENCE,
            "mtime": self.origin.created(),
            "contents": self.contents(),
            "depends": self.dependencies(format),
            "scripts": {
                "postinstall": script("postinstall.sh"),
                "preremove": script("preremove.sh"),
                "postremove": script("postremove.sh"),
            },
            // Otherwise the name of this machine.
            "rpm": { "buildhost": "mesh" },
        })
        .to_string()
    }

    fn contents(&self) -> Vec<Value> {
        let files = self.files.iter().map(|file| {
            let mode = if file.path.starts_with("usr/bin/") {
                0o755
            } else {
                0o644
            };
            json!({
                "src": file.source,
                "dst": format!("/{}", file.path),
                "file_info": { "mode": mode, "owner": "root", "group": "root" },
            })
        });
        // rpm removes a directory only if a package owns it.
        let directories = [SETTINGS, machine::DOCUMENTS]
            .map(|path| json!({ "dst": format!("/{path}"), "type": "dir", "file_info": { "mode": 0o755 } }));
        files.chain(directories).collect()
    }

    fn dependencies(&self, format: Format) -> Vec<String> {
        let glibc = self.glibc;
        match format {
            Format::Deb => vec![
                format!("libc6 (>= {glibc})"),
                "libgcc-s1".to_owned(),
                "systemd".to_owned(),
            ],
            Format::Rpm => vec![
                format!("libc.so.6(GLIBC_{glibc})(64bit)"),
                "libgcc_s.so.1()(64bit)".to_owned(),
                "systemd".to_owned(),
            ],
        }
    }
}

/// Go's name of this machine's architecture, which nfpm translates for both formats.
fn architecture() -> &'static str {
    match ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

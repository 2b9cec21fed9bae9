//! Builds the server of the SPIFFE Workload API, which tests of the proxy take their identities
//! from, from a Go module of the checkout. Used by `setup` and `test`.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use anyhow::{Context, bail};

use crate::workspace::{self, find_program};
use crate::{go_build, stage};

pub(crate) const WORKLOAD_API: &str = "mesh-workload-api";

/// The directory of the module, below the checkout.
const DIRECTORY: &str = "mesh-test-support/workload-api";
const SOURCES: [&str; 4] = ["go.mod", "go.sum", "federation.go", "main.go"];

/// Returns the directory of the built program, if there is one.
pub(crate) fn directory(root: &Path) -> Option<PathBuf> {
    let directory = built_directory(root);
    directory.join(WORKLOAD_API).exists().then_some(directory)
}

/// Returns whether the program does not exist, or is older than its sources.
pub(crate) fn is_missing(root: &Path) -> bool {
    let built = modified(&built_directory(root).join(WORKLOAD_API));
    let sources = SOURCES.map(|name| modified(&root.join(DIRECTORY).join(name)));
    built.is_none() || sources.into_iter().max() > Some(built)
}

/// Builds the program unless it is up to date.
pub(crate) fn complete(root: &Path) -> anyhow::Result<()> {
    if !is_missing(root) {
        return Ok(());
    }
    if find_program("go").is_none() {
        bail!(
            "{WORKLOAD_API}, for the tests of identities of the SPIFFE Workload API, cannot be built: install Go from https://go.dev/dl"
        );
    }
    let directory = built_directory(root);
    fs::create_dir_all(&directory).with_context(|| format!("create {}", directory.display()))?;
    stage::run(WORKLOAD_API, "from its sources", || {
        let output = directory.join(WORKLOAD_API);
        go_build::build(&root.join(DIRECTORY), ".", "", "-s -w", &output)
    })
    .map(drop)
}

fn built_directory(root: &Path) -> PathBuf {
    workspace::tools(root).join(WORKLOAD_API)
}

fn modified(path: &Path) -> Option<SystemTime> {
    path.metadata().and_then(|found| found.modified()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn program_is_missing_until_it_is_newer_than_its_sources() {
        let root = tempfile::tempdir().expect("a directory");
        let root = root.path();
        let sources = root.join(DIRECTORY);
        let built = built_directory(root);
        for directory in [&sources, &built] {
            fs::create_dir_all(directory).expect("a directory");
        }
        let write = |path: &Path, seconds: u64| {
            let file = fs::File::create(path).expect("a file");
            let time = SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(seconds);
            file.set_modified(time).expect("a time");
        };
        for name in SOURCES {
            write(&sources.join(name), 10);
        }
        assert!(is_missing(root));
        assert_eq!(directory(root), None);
        write(&built.join(WORKLOAD_API), 9);
        assert!(is_missing(root));
        write(&built.join(WORKLOAD_API), 10);
        assert!(!is_missing(root));
        assert_eq!(directory(root), Some(built));
        write(&sources.join("main.go"), 11);
        assert!(is_missing(root));
    }

    #[test]
    fn sources_are_those_of_the_checkout() {
        let root = workspace::root().expect("a checkout");
        for name in SOURCES {
            assert!(root.join(DIRECTORY).join(name).is_file(), "{name}");
        }
    }
}

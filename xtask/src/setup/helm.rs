//! Builds Helm, which renders the charts in tests, from the Go module of its release: Debian has no
//! package. `xtask/helm/go.mod` pins the version of every module and `go.sum` their contents. Used
//! by `setup` and `test`.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};

use crate::workspace::{self, find_program};
use crate::{go_build, stage};

pub(crate) const HELM: &str = "helm";

/// The directory of the module, below the checkout.
const DIRECTORY: &str = "xtask/helm";
const MODULE: &str = "helm.sh/helm/v3";
/// Its minor version is Kubernetes', as in Helm's own build.
const CLIENT: &str = "k8s.io/client-go";

/// Versions that go into the program. Without a version of Kubernetes, Helm renders for 1.20, which
/// the charts reject.
#[derive(Debug, PartialEq, Eq)]
struct Versions {
    helm: String,
    kubernetes_minor: String,
}

/// Returns the directory of the built Helm, if there is one.
pub(crate) fn directory(root: &Path) -> Option<PathBuf> {
    let directory = built_directory(root).ok()?;
    directory.join(HELM).exists().then_some(directory)
}

pub(crate) fn is_missing(root: &Path) -> bool {
    find_program(HELM).is_none() && directory(root).is_none()
}

/// Builds Helm unless the machine has one.
pub(crate) fn complete(root: &Path) -> anyhow::Result<()> {
    if !is_missing(root) {
        return Ok(());
    }
    if find_program("go").is_none() {
        bail!(
            "helm, for the tests of the charts, is neither on the PATH nor can it be built: install Go from https://go.dev/dl, or Helm"
        );
    }
    let versions = versions(root)?;
    let output = built_directory(root)?.join(HELM);
    stage::run(HELM, &format!("{} from its sources", versions.helm), || {
        go_build::build(
            &root.join(DIRECTORY),
            &format!("{MODULE}/cmd/helm"),
            "",
            &linker_flags(&versions),
            &output,
        )
    })
    .map(drop)
}

fn built_directory(root: &Path) -> anyhow::Result<PathBuf> {
    let name = format!("{HELM}-{}", versions(root)?.helm);
    Ok(workspace::tools(root).join(name))
}

fn versions(root: &Path) -> anyhow::Result<Versions> {
    let path = root.join(DIRECTORY).join("go.mod");
    let text = fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
    pinned(&text).with_context(|| format!("{} pins no {MODULE} and {CLIENT}", path.display()))
}

/// Reads the pinned versions from go.mod. Version 0.36.2 of the client is for Kubernetes 1.36.
fn pinned(go_mod: &str) -> Option<Versions> {
    let version = |module: &str| {
        go_mod.lines().find_map(|line| {
            let mut words = line.split_whitespace();
            (words.next()? == module).then(|| words.next())?
        })
    };
    let client = version(CLIENT)?.strip_prefix("v0.")?;
    Some(Versions {
        helm: version(MODULE)?.to_owned(),
        kubernetes_minor: client.split('.').next()?.to_owned(),
    })
}

fn linker_flags(versions: &Versions) -> String {
    let Versions {
        helm,
        kubernetes_minor: minor,
    } = versions;
    let mut flags = format!("-s -w -X {MODULE}/internal/version.version={helm}");
    for package in ["lint/rules", "chartutil"] {
        flags += &format!(
            " -X {MODULE}/pkg/{package}.k8sVersionMajor=1 -X {MODULE}/pkg/{package}.k8sVersionMinor={minor}"
        );
    }
    flags
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pinned_versions_are_read_from_the_module() {
        let text = "module m\n\nrequire (\n\thelm.sh/helm/v3 v3.21.4 // indirect\n\tk8s.io/client-go v0.36.2 // indirect\n)\n";
        let expected = Versions {
            helm: "v3.21.4".to_owned(),
            kubernetes_minor: "36".to_owned(),
        };
        assert_eq!(pinned(text), Some(expected));
        assert_eq!(pinned("module m\n"), None);
    }

    #[test]
    fn module_of_the_checkout_pins_helm() {
        let root = workspace::root().expect("a checkout");
        let versions = versions(&root).expect("a module with both versions");
        let minor = versions.kubernetes_minor.parse::<u32>();
        assert!(minor.is_ok_and(|minor| minor >= 31), "{versions:?}");
    }
}

//! The programs of a machine outside Kubernetes, with their licences and inventory, for its
//! packages. They are the programs of the images, from the same build.

use std::path::{Path, PathBuf};

use super::contents::{COMMAND_LINE, ImageName, Program};
use super::sbom::{self, Inventory, Subject};
use super::{debian, licences, programs};

pub(crate) use super::origin::Origin;

pub(crate) const NAME: &str = "mesh-machine";
/// The directory of the licences and the inventory.
pub(crate) const DOCUMENTS: &str = "usr/share/doc/mesh-machine";
pub(crate) const DESCRIPTION: &str =
    "The agent and the proxies that make services of a machine part of a mesh";
pub(crate) const LICENCE: &str =
    "Apache-2.0 AND (MIT OR GPL-2.0-only) AND LGPL-2.1-or-later AND MPL-2.0";

const AGENT: Program = Program {
    package: "mesh-agent",
    binary: "mesh-agent",
};
const PROXY: Program = Program {
    package: "mesh-proxy",
    binary: "mesh-proxy",
};

pub(crate) struct Programs(programs::Programs);

impl Programs {
    /// Builds the programs.
    pub(crate) fn build(root: &Path, dev: bool, origin: &Origin) -> anyhow::Result<Self> {
        super::build(root, &[ImageName::Agent], dev, origin).map(Self)
    }

    /// The programs that the tests start.
    pub(crate) fn of_tests(root: &Path) -> Self {
        Self(programs::Programs::of_tests(root))
    }

    pub(crate) fn command_line(&self) -> PathBuf {
        self.0.command_line()
    }

    /// Returns the programs, their licences and their inventory, by path.
    pub(crate) fn files(
        &self,
        root: &Path,
        origin: &Origin,
    ) -> anyhow::Result<Vec<(String, Vec<u8>)>> {
        let mut files = Vec::new();
        for program in [AGENT, PROXY] {
            files.push((
                format!("usr/bin/{}", program.binary),
                self.0.content(&program)?,
            ));
        }
        // Not static: it resolves names as the machine does.
        let command_line = programs::stripped(&self.command_line())?;
        files.push((format!("usr/bin/{}", COMMAND_LINE.binary), command_line));

        let inventory = Inventory::read(root)?;
        let packages = [AGENT, PROXY, COMMAND_LINE].map(|program| program.package);
        let crates = inventory.linked_into(&packages, true)?;
        let library = [debian::c_library()?];
        let subject = Subject {
            kind: "application",
            name: NAME,
            description: DESCRIPTION,
            licence: LICENCE,
        };
        let documents = [
            ("LICENSE", licences::ours(root)?),
            (
                "THIRD-PARTY-LICENSES",
                licences::third_parties(&crates, &[])?,
            ),
            ("copyright-libc", library[0].copyright()?),
            (
                "sbom.cdx.json",
                sbom::document(&subject, &crates, &library, &[], &inventory, origin)?,
            ),
        ];
        let documents = documents
            .into_iter()
            .map(|(name, content)| (format!("{DOCUMENTS}/{name}"), content));
        files.extend(documents);
        Ok(files)
    }
}

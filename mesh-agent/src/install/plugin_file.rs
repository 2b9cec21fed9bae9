//! The plugin's program in the node's CNI plugin directory.

use std::fs::{self, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use mesh_runtime::file::{self, FileError};

use super::{InstallError, PLUGIN};

/// As every CNI plugin: executable by all users, writable by root.
const MODE: u32 = 0o755;
/// Any of these bits allows root to execute the file.
const EXECUTABLE: u32 = 0o111;

/// The state of the plugin's program before installation; unless intact, it was replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PluginFile {
    Intact,
    Missing,
    /// Another program, or another version.
    Altered,
    /// The container runtime could not have started it, nor any pod of the node.
    NotExecutable,
}

/// Installs the program unless it is intact, and returns its previous state. Writes a draft in the
/// same directory and renames it: a runtime may start the plugin at any moment, and running
/// instances keep their file.
pub(super) fn install(
    source: &Path,
    bin_dir: &Path,
    compare_content: bool,
) -> Result<PluginFile, InstallError> {
    let target = bin_dir.join(PLUGIN);
    let unreadable = |error| InstallError::NoPlugin {
        path: source.to_owned(),
        source: error,
    };
    let length = fs::metadata(source).map_err(unreadable)?.len();
    let metadata = fs::metadata(&target).ok();
    let is_same_length = metadata.as_ref().is_some_and(|found| found.len() == length);
    let is_executable = metadata
        .as_ref()
        .is_some_and(|found| found.permissions().mode() & EXECUTABLE != 0);
    if is_same_length && is_executable && !compare_content {
        return Ok(PluginFile::Intact);
    }
    let program = fs::read(source).map_err(unreadable)?;
    let is_same = is_same_length && fs::read(&target).is_ok_and(|found| found == program);
    let found = match metadata {
        None => PluginFile::Missing,
        Some(_) if !is_same => PluginFile::Altered,
        Some(_) if !is_executable => PluginFile::NotExecutable,
        Some(_) => return Ok(PluginFile::Intact),
    };
    write(&target, &program).map_err(|source| InstallError::Plugin {
        path: target,
        source,
    })?;
    Ok(found)
}

/// Removes the program; a missing one is not an error.
pub(super) fn remove(bin_dir: &Path) -> Result<(), FileError> {
    let path = bin_dir.join(PLUGIN);
    file::remove(&path).map_err(file::failed("cannot remove", &path))
}

fn write(target: &Path, program: &[u8]) -> io::Result<()> {
    let draft = target.with_file_name(format!(".{PLUGIN}.draft"));
    file::replace(target, &draft, MODE, |file| {
        file.write_all(program)?;
        // The umask may have removed permissions.
        file.set_permissions(Permissions::from_mode(MODE))?;
        file.sync_all()
    })
}

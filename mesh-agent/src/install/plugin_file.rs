//! The plugin's program among the node's CNI plugins.

use std::{
    fs::{self, OpenOptions, Permissions},
    io::{self, Write},
    os::unix::fs::{OpenOptionsExt, PermissionsExt},
    path::Path,
};

use super::{InstallError, PLUGIN};

/// As every CNI plugin: anybody may run it, and root alone change it.
const MODE: u32 = 0o755;
/// Root may execute a file that anybody may.
const EXECUTABLE: u32 = 0o111;

/// The plugin's program as it was found; unless intact, it was put there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PluginFile {
    Intact,
    Missing,
    /// It was another program, or an older one.
    Altered,
    /// The container runtime could not have started it, and with it no pod of the node.
    NotExecutable,
}

/// Copies it there unless it is there already, and says what was found. By a file beside it that is
/// renamed: a runtime may start the plugin at any moment, and running ones keep the file that they
/// were started from.
pub(super) fn install(
    source: &Path,
    bin_dir: &Path,
    thoroughly: bool,
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
    if is_same_length && is_executable && !thoroughly {
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

/// What is gone already is removed.
pub(super) fn remove(bin_dir: &Path) -> Result<(), InstallError> {
    let path = bin_dir.join(PLUGIN);
    match fs::remove_file(&path) {
        Err(source) if source.kind() != io::ErrorKind::NotFound => Err(InstallError::File {
            action: "remove",
            path,
            source,
        }),
        _ => Ok(()),
    }
}

fn write(target: &Path, program: &[u8]) -> io::Result<()> {
    let draft = target.with_file_name(format!(".{PLUGIN}.draft"));
    let written = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(MODE)
        .open(&draft)
        .and_then(|mut file| {
            file.write_all(program)?;
            // Whatever the umask took away.
            file.set_permissions(Permissions::from_mode(MODE))?;
            file.sync_all()
        })
        .and_then(|()| fs::rename(&draft, target));
    if written.is_err() {
        let _ = fs::remove_file(&draft);
    }
    written
}

//! The plugin's program among the node's CNI plugins.

use std::{
    fs::{self, OpenOptions},
    io::{self, Write},
    os::unix::fs::OpenOptionsExt,
    path::Path,
};

use super::{InstallError, PLUGIN};

/// Copies it there unless it is there already; true when it did. By a file beside it that is renamed: a runtime may start the plugin at any moment, and
/// running ones keep the file that they were started from.
pub(super) fn install(
    source: &Path,
    bin_dir: &Path,
    thoroughly: bool,
) -> Result<bool, InstallError> {
    let target = bin_dir.join(PLUGIN);
    let unreadable = |error| InstallError::NoPlugin {
        path: source.to_owned(),
        source: error,
    };
    let length = fs::metadata(source).map_err(unreadable)?.len();
    let is_same_length = fs::metadata(&target).is_ok_and(|found| found.len() == length);
    if is_same_length && !thoroughly {
        return Ok(false);
    }
    let program = fs::read(source).map_err(unreadable)?;
    if is_same_length && fs::read(&target).is_ok_and(|found| found == program) {
        return Ok(false);
    }
    write(&target, &program).map_err(|source| InstallError::Plugin {
        path: target,
        source,
    })?;
    Ok(true)
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
        .mode(0o755)
        .open(&draft)
        .and_then(|mut file| {
            file.write_all(program)?;
            file.sync_all()
        })
        .and_then(|()| fs::rename(&draft, target));
    if written.is_err() {
        let _ = fs::remove_file(&draft);
    }
    written
}

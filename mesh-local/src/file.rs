//! Atomic writes of files that other programs read.

use std::fs::{self, Permissions};
use std::io::{self, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

pub use mesh_runtime::file::{FileError, failed, remove};

/// Writes the file under a temporary name and renames it into place. Creates missing parent
/// directories.
pub fn write(path: &Path, contents: &[u8], mode: u32) -> io::Result<()> {
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent)?;
    }
    mesh_runtime::file::replace(path, &temporary_name(path), mode, |file| {
        file.write_all(contents)?;
        // The umask applies to the mode at creation.
        file.set_permissions(Permissions::from_mode(mode))
    })
}

/// Opens a file at its end, after creating it and missing parent directories.
pub fn append(path: &Path) -> io::Result<fs::File> {
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent)?;
    }
    fs::File::options().append(true).create(true).open(path)
}

/// Returns a hidden name, which readers of the directory ignore.
fn temporary_name(path: &Path) -> PathBuf {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    path.with_file_name(format!(".{name}.new"))
}

//! The named scripts of `mesh-simulator/corpus`.

use std::path::{Path, PathBuf};
use std::{fs, io};

use crate::script::{Script, ScriptError};

/// The directory of the corpus, from the root of the checkout.
pub const DIRECTORY: &str = "mesh-simulator/corpus";
const EXTENSION: &str = "script";

/// A script and its name: its path below the directory, without the extension.
#[derive(Clone, Debug)]
pub struct Named {
    pub name: String,
    pub script: Script,
}

/// A script that cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum CorpusError {
    #[error("read {}", path.display())]
    Read {
        path: PathBuf,
        #[source]
        error: io::Error,
    },
    #[error("{} is not a script", path.display())]
    Script {
        path: PathBuf,
        #[source]
        error: ScriptError,
    },
}

/// Reads all scripts below a directory whose names match a pattern, in the order of their names.
///
/// # Errors
///
/// A directory or file cannot be read, or a file is not a script.
pub fn read(directory: &Path, pattern: &str) -> Result<Vec<Named>, CorpusError> {
    let mut paths = Vec::new();
    collect(directory, &mut paths)?;
    paths.sort();
    let mut scripts = Vec::new();
    for path in paths {
        let name = path.strip_prefix(directory).unwrap_or(&path);
        let name = name.with_extension("").to_string_lossy().into_owned();
        if matches(pattern, &name) {
            let script = read_file(&path)?;
            scripts.push(Named { name, script });
        }
    }
    Ok(scripts)
}

/// Reads one script.
///
/// # Errors
///
/// The file cannot be read, or is not a script.
pub fn read_file(path: &Path) -> Result<Script, CorpusError> {
    let path = path.to_owned();
    let text = match fs::read_to_string(&path) {
        Ok(text) => text,
        Err(error) => return Err(CorpusError::Read { path, error }),
    };
    Script::parse(&text).map_err(|error| CorpusError::Script { path, error })
}

fn collect(directory: &Path, paths: &mut Vec<PathBuf>) -> Result<(), CorpusError> {
    let read = |error| CorpusError::Read {
        path: directory.to_owned(),
        error,
    };
    for entry in fs::read_dir(directory).map_err(read)? {
        let path = entry.map_err(read)?.path();
        if path.is_dir() {
            collect(&path, paths)?;
        } else if path.extension().is_some_and(|it| it == EXTENSION) {
            paths.push(path);
        }
    }
    Ok(())
}

/// Whether a name matches a pattern, where `*` stands for any characters.
fn matches(pattern: &str, name: &str) -> bool {
    let Some((begin, rest)) = pattern.split_once('*') else {
        return pattern == name;
    };
    let Some(name) = name.strip_prefix(begin) else {
        return false;
    };
    let mut ends = name.char_indices().map(|(at, _)| at).chain([name.len()]);
    ends.any(|at| matches(rest, &name[at..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn star_stands_for_any_characters() {
        assert!(matches("*", "") && matches("*", "tcp/x"));
        assert!(matches("tcp/*", "tcp/x") && !matches("tcp/*", "http1/x"));
        assert!(matches("*/*reset*", "tcp/a-reset-b") && !matches("*reset", "reset-b"));
        assert!(matches("tcp/x", "tcp/x") && !matches("tcp/x", "tcp/xy"));
    }
}

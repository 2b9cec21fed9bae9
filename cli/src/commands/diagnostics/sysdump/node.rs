//! Collects the logs and objects of a local node.

use std::fs;
use std::path::Path;

use super::Dump;
use crate::node::Node;

pub(super) fn collect(node: &Node, dump: &mut Dump) {
    let state = node.paths.state();
    directory(&state.join("logs"), "logs", dump);
    directory(&node.paths.objects(), "objects", dump);
}

fn directory(path: &Path, name: &str, dump: &mut Dump) {
    let entries = match fs::read_dir(path) {
        Ok(entries) => entries,
        Err(error) => return dump.failed(name, &error),
    };
    for path in entries.flatten().map(|entry| entry.path()) {
        let file = path.file_name().unwrap_or_default().to_string_lossy();
        let name = format!("{name}/{file}");
        // A local node writes Secrets only into pod volumes. This skips them if that changes.
        if path.is_dir() {
            directory(&path, &name, dump);
        } else if !file.starts_with("secret_") {
            match fs::read(&path) {
                Ok(content) => dump.add(&name, content),
                Err(error) => dump.failed(&name, &error),
            }
        }
    }
}

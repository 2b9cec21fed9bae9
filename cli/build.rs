//! Embeds the charts of `helm/`, so that `meshctl install` needs only the program `helm` and always
//! renders the charts of its own version.

use std::error::Error;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::{env, fs};

const CHARTS: [&str; 5] = [
    "linkerd-crds",
    "linkerd-control-plane",
    "linkerd-viz",
    "linkerd-multicluster",
    "linkerd-multicluster-link",
];

fn main() -> Result<(), Box<dyn Error>> {
    let helm = PathBuf::from(env::var("CARGO_MANIFEST_DIR")?).join("../helm");
    let mut table = String::from("&[\n");
    for chart in CHARTS {
        let root = helm.join(chart);
        println!("cargo::rerun-if-changed={}", root.display());
        let mut files = Vec::new();
        collect(&root, &mut files)?;
        // The order of directory entries depends on the file system; builds must be reproducible.
        files.sort();
        for file in files {
            let name = file
                .strip_prefix(&helm)?
                .to_str()
                .ok_or("the name of a chart file is not valid UTF-8")?;
            let path = file.canonicalize()?;
            writeln!(table, "    ({name:?}, include_str!({path:?})),")?;
        }
    }
    table.push(']');
    fs::write(PathBuf::from(env::var("OUT_DIR")?).join("charts.rs"), table)?;
    Ok(())
}

fn collect(directory: &Path, files: &mut Vec<PathBuf>) -> Result<(), Box<dyn Error>> {
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        if path.is_dir() {
            collect(&path, files)?;
        } else {
            files.push(path);
        }
    }
    Ok(())
}

//! `cargo xtask demo`: builds the mesh and `mesh-demo`, and runs that.

use std::{
    path::Path,
    process::{Command, ExitCode},
};

use anyhow::bail;

use crate::{args::DemoOptions, binaries, command, workspace};

const PROGRAM: &str = "mesh-demo";

pub(crate) fn run(root: &Path, options: &DemoOptions) -> anyhow::Result<ExitCode> {
    if options.kubernetes.is_none() && !workspace::is_root() {
        bail!(
            "the demo makes network namespaces, cgroups and BPF programs, which needs root: run it with sudo. \
             Without root, `cargo xtask test` still runs every test that needs no privileges, and `--kubernetes` shows the demo on a cluster"
        );
    }
    if !options.down {
        binaries::build(root, true, &[PROGRAM])?;
    }
    let mut demo = Command::new(binaries::folder(root, true).join(PROGRAM));
    if options.keep {
        demo.arg("--keep");
    }
    if options.down {
        demo.arg("--down");
    }
    match &options.kubernetes {
        None => (),
        Some(None) => {
            demo.arg("--kubernetes");
        }
        Some(Some(context)) => {
            demo.arg(format!("--kubernetes={context}"));
        }
    }
    command::run_to_exit(&mut demo)
}

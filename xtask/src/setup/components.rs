//! The rustup components that the checks need. rustup's minimal profile leaves them out. Used by
//! `setup`.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, bail};

use crate::command::{captured_stdout, run};
use crate::workspace::find_program;

/// Component, and the file below the toolchain that it brings. The proxies of the same name in
/// cargo's directory exist without the component and only print an error.
const COMPONENTS: [(&str, &str); 2] = [("rustfmt", "bin/rustfmt"), ("clippy", "bin/cargo-clippy")];

/// Returns the components that the current toolchain lacks.
pub(crate) fn missing() -> Vec<&'static str> {
    let Some(sysroot) = captured_stdout(Command::new("rustc").args(["--print", "sysroot"])) else {
        return COMPONENTS.map(|(name, _)| name).to_vec();
    };
    let sysroot = PathBuf::from(sysroot.trim());
    COMPONENTS
        .iter()
        .filter(|(_, file)| !sysroot.join(file).exists())
        .map(|(name, _)| *name)
        .collect()
}

/// Adds a component to the current toolchain. Needs no root.
pub(crate) fn add(component: &str) -> anyhow::Result<()> {
    if find_program("rustup").is_none() {
        bail!(
            "this Rust tool chain was not installed by rustup and has no {component}; install it the way you installed Rust"
        );
    }
    eprintln!("    installing  {component:<26} by `rustup component add`");
    run(
        "rustup",
        Command::new("rustup").args(["component", "add", component]),
    )
    .with_context(|| format!("add the rustup component {component}"))
}

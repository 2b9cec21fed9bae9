//! `meshctl completion SHELL`.

use clap::CommandFactory;
use clap_complete::Shell;

use crate::{args, output};

/// Example: meshctl completion bash > /etc/bash_completion.d/meshctl
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    shell: Shell,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(
        args.shell,
        &mut args::Args::command(),
        "meshctl",
        &mut script,
    );
    output::text(&String::from_utf8_lossy(&script))
}

//! `meshctl completion SHELL`.

use clap_complete::Shell;

use crate::output;

/// Example: meshctl completion bash > /etc/bash_completion.d/meshctl
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    shell: Shell,
}

pub(crate) fn run(args: &Args, mut cli_definition: clap::Command) -> anyhow::Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut cli_definition, "meshctl", &mut script);
    output::text(&String::from_utf8_lossy(&script))
}

//! `meshctl completion SHELL`.

use clap_complete::Shell;

use crate::output;

/// Example: meshctl completion bash > /etc/bash_completion.d/meshctl
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    shell: Shell,
}

pub(crate) fn run(args: &Args, mut grammar: clap::Command) -> anyhow::Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut grammar, "meshctl", &mut script);
    output::text(&String::from_utf8_lossy(&script))
}

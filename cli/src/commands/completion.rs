//! `meshctl completion SHELL`.

use clap_complete::Shell;

use crate::output;

const EXAMPLES: &str = "\
Example:
  meshctl completion bash > /etc/bash_completion.d/meshctl";

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    shell: Shell,
}

pub(crate) fn run(args: &Args, mut cli_definition: clap::Command) -> anyhow::Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut cli_definition, "meshctl", &mut script);
    output::text(&String::from_utf8_lossy(&script))
}

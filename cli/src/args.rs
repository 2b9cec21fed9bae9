//! The top level of the command line.

use clap::Parser;

use crate::commands::Command;
use crate::global::Global;

/// Inspect and control the mesh.
#[derive(Debug, Parser)]
#[command(name = "meshctl", version, disable_help_subcommand = true, infer_subcommands = false, after_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(flatten)]
    pub(crate) global: Global,
    #[command(subcommand)]
    pub(crate) command: Command,
}

const EXAMPLES: &str = "\
Examples:
  meshctl check --pre               check whether the mesh can be installed on this cluster
  meshctl status                    summarise the mesh on one screen
  meshctl check --proxy -n shop     check the mesh and the pods of namespace shop
  meshctl stat -A --watch           watch success rate and latency per workload
  meshctl local up examples/demo    run a mesh on this machine, without a cluster

Exit codes: 0 success, 1 negative result or failed operation, 2 unexpected error, 64 wrong
usage, 65 invalid input, 69 target unreachable, 75 timed out, 130 interrupted.";

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn definition_of_the_command_line_is_valid() {
        Args::command().debug_assert();
    }

    /// clap prefers the text at the variant of `Command` to the documentation of its arguments, so
    /// that examples there are never shown.
    #[test]
    fn examples_are_shown_by_help() {
        let mut meshctl = Args::command();
        for name in [
            "authz", "check", "identity", "inject", "machine", "stat", "status",
        ] {
            let command = meshctl.find_subcommand_mut(name).expect("a command");
            let help = command.render_long_help().to_string();
            let example = format!("\n  meshctl {name}");
            assert!(help.contains(&example), "{name}:\n{help}");
        }
    }
}

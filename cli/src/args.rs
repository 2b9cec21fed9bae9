//! What can be typed.

use clap::Parser;

use crate::{commands::Command, global::Global};

/// See and steer the mesh.
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
  meshctl check --pre               can the mesh be installed on this cluster?
  meshctl status                    one screen of truth
  meshctl check --proxy -n shop     is everything in order, the pods of shop too?
  meshctl stat -A --watch           success rate and latency per workload
  meshctl local up examples/demo    a mesh on this machine, without a cluster

Exit codes: 0 done, 1 the answer is no or the operation failed, 2 unexpected, 64 wrong
usage, 65 unusable input, 69 nothing answers, 75 timed out, 130 interrupted.";

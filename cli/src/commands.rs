//! One file per command; each has its arguments and `run`.

pub(crate) mod check;
pub(crate) mod completion;
pub(crate) mod diagnostics;
pub(crate) mod identity;
pub(crate) mod local;
pub(crate) mod stat;
pub(crate) mod version;

use crate::args::{Args, Command};

pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    let global = &args.global;
    match args.command {
        Command::Local(command) => local::run(command, global),
        Command::Check(args) => on_runtime(check::run(&args, global)),
        Command::Diagnostics(args) => on_runtime(diagnostics::run(&args, global)),
        Command::Identity(args) => on_runtime(identity::run(&args, global)),
        Command::Stat(args) => on_runtime(stat::run(&args, global)),
        Command::Version(args) => version::run(&args),
        Command::Completion(args) => completion::run(&args),
    }
}

/// The runtime of the commands that talk to somebody.
pub(crate) fn on_runtime<T>(work: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?
        .block_on(work)
}

//! One file per command; each has its arguments and `run`.

pub(crate) mod authz;
pub(crate) mod check;
pub(crate) mod completion;
pub(crate) mod diagnostics;
pub(crate) mod identity;
pub(crate) mod inject;
pub(crate) mod install;
pub(crate) mod local;
pub(crate) mod prune;
pub(crate) mod stat;
pub(crate) mod status;
pub(crate) mod uninject;
pub(crate) mod uninstall;
pub(crate) mod upgrade;
pub(crate) mod version;

use crate::args::{Args, Command};

pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    let global = &args.global;
    match args.command {
        Command::Local(command) => local::run(command, global),
        Command::Install(args) => on_runtime(install::run(&args, global)),
        Command::Upgrade(args) => on_runtime(upgrade::run(&args, global)),
        Command::Prune(args) => on_runtime(prune::run(&args, global)),
        Command::Uninstall(args) => on_runtime(uninstall::run(&args, global)),
        Command::Check(args) => on_runtime(check::run(&args, global)),
        Command::Status(args) => on_runtime(status::run(&args, global)),
        Command::Inject(args) => on_runtime(inject::run(&args, global)),
        Command::Uninject(args) => uninject::run(&args),
        Command::Diagnostics(args) => on_runtime(diagnostics::run(&args, global)),
        Command::Identity(args) => on_runtime(identity::run(&args, global)),
        Command::Authz(args) => on_runtime(authz::run(&args, global)),
        Command::Stat(args) => on_runtime(stat::run(&args, global)),
        Command::Version(args) => on_runtime(version::run(&args, global)),
        Command::Completion(args) => completion::run(&args),
    }
}

/// The runtime of the commands that talk to somebody. Whoever is tired of waiting ends it.
pub(crate) fn on_runtime<T>(work: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?
        .block_on(work)
}

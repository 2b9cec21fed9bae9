//! Linkerd's three helpers in one program, told apart by the name it is called by or by its first
//! argument:
//!
//! | name | where | what |
//! |---|---|---|
//! | `linkerd2-proxy-init` | init container, on nodes that run no agent | programs the redirection of its own pod |
//! | `linkerd2-network-validator` | init container, with a CNI plugin that redirects | waits until a connection of its own is redirected, or exits 95 |
//! | `linkerd-await` | hook of the proxy's container, or wrapped around an application | waits until the proxy is ready |
//!
//! Flags, exit codes and environment variables are those of Linkerd's programs, so that either
//! project's chart and injector can start them. Nothing here talks to the agent. `bin/mesh-init`
//! calls [`run`].

mod intercept;
mod readiness;
mod validator;

use std::{
    ffi::{OsStr, OsString},
    path::Path,
    process::ExitCode,
    sync::LazyLock,
};

use clap::Parser;
use mesh_runtime::{
    build_info::BuildInfo,
    log::{self, Format},
};

/// The command-line parser wants it for the life of the process.
static VERSION: LazyLock<String> = LazyLock::new(|| BuildInfo::CURRENT.to_string());

/// What `sysexits.h` calls a wrong command line.
const USAGE: u8 = 64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Helper {
    Intercept,
    Validator,
    Await,
}

impl Helper {
    const ALL: [Self; 3] = [Self::Intercept, Self::Validator, Self::Await];

    fn name(self) -> &'static str {
        match self {
            Self::Intercept => "linkerd2-proxy-init",
            Self::Validator => "linkerd2-network-validator",
            Self::Await => "linkerd-await",
        }
    }

    fn named(text: &OsStr) -> Option<Self> {
        let name = Path::new(text).file_name()?;
        Self::ALL.into_iter().find(|helper| name == helper.name())
    }
}

/// Runs the helper that the arguments, the program's own name among them, ask for.
pub fn run(arguments: Vec<OsString>) -> ExitCode {
    let Some((helper, arguments)) = choose(arguments) else {
        let names = Helper::ALL.map(Helper::name).join(", ");
        complain(&format!(
            "mesh-init is several programs; call it by one of their names, or name one first: {names}"
        ));
        return ExitCode::from(USAGE);
    };
    match helper {
        Helper::Intercept => finish(intercept::run(&intercept::Args::parse_from(arguments))),
        Helper::Validator => validator::run(&validator::Args::parse_from(arguments)),
        Helper::Await => readiness::run(readiness::Args::parse_from(arguments)),
    }
}

/// The helper, and its arguments as if it had been called by its own name.
fn choose(mut arguments: Vec<OsString>) -> Option<(Helper, Vec<OsString>)> {
    if let Some(helper) = arguments.first().and_then(|name| Helper::named(name)) {
        return Some((helper, arguments));
    }
    let helper = arguments.get(1).and_then(|name| Helper::named(name))?;
    arguments.remove(0);
    Some((helper, arguments))
}

fn finish(result: anyhow::Result<()>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

fn start_log(level: &str, format: Format) -> anyhow::Result<()> {
    log::init(log::Settings {
        filter: level,
        format,
        aliases: &[],
    })?;
    Ok(())
}

/// To standard error, before there is a log or beside a wrapped program's own output. Nobody is
/// left to tell when that fails.
fn complain(message: &str) {
    use std::io::Write;
    let _ = writeln!(std::io::stderr(), "{message}");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(words: &[&str]) -> Option<(Helper, Vec<OsString>)> {
        choose(words.iter().map(OsString::from).collect())
    }

    #[test]
    fn the_name_decides_and_then_the_first_argument() {
        let table: [(&[&str], Option<Helper>); 6] = [
            (
                &["/usr/lib/linkerd/linkerd2-proxy-init", "-p", "1"],
                Some(Helper::Intercept),
            ),
            (
                &["linkerd-await", "linkerd2-proxy-init"],
                Some(Helper::Await),
            ),
            (&["./linkerd2-network-validator"], Some(Helper::Validator)),
            (
                &["mesh-init", "linkerd-await", "--port=1"],
                Some(Helper::Await),
            ),
            (&["mesh-init"], None),
            (&["mesh-init", "--help"], None),
        ];
        for (words, expected) in table {
            assert_eq!(
                chosen(words).map(|(helper, _)| helper),
                expected,
                "{words:?}"
            );
        }
        let (_, rest) = chosen(&["mesh-init", "linkerd-await", "--port=1"]).unwrap();
        assert_eq!(rest, ["linkerd-await", "--port=1"]);
    }
}

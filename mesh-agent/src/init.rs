//! Linkerd's three helper programs in one, selected by program name or first argument:
//!
//! | name | where | purpose |
//! |---|---|---|
//! | `linkerd2-proxy-init` | init container, on nodes without an agent | redirects its own pod |
//! | `linkerd2-network-validator` | init container, with a CNI plugin that redirects | waits until its own connection is redirected, or exits 95 |
//! | `linkerd-await` | hook of the proxy's container, or wrapped around an application | waits until the proxy is ready |
//!
//! Flags, exit codes and environment variables are the same as in Linkerd's programs, so that
//! either project's chart and injector can start them. None of them communicates with the agent.
//! `bin/mesh-init` calls [`run`].

mod intercept;
mod readiness;
mod validator;

use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::process::ExitCode;
use std::sync::LazyLock;

use clap::Parser;
use mesh_runtime::build_info::BuildInfo;
use mesh_runtime::log::{self, Format};

/// `clap` requires a `'static` string.
static VERSION: LazyLock<String> = LazyLock::new(|| BuildInfo::CURRENT.to_string());

/// `EX_USAGE` of `sysexits.h`.
const USAGE: u8 = 64;

mesh_core::names! {
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    enum Helper, ALL {
        Intercept = "linkerd2-proxy-init",
        Validator = "linkerd2-network-validator",
        Await = "linkerd-await",
    }
}

impl Helper {
    fn named(text: &OsStr) -> Option<Self> {
        let name = Path::new(text).file_name()?;
        Self::ALL.into_iter().find(|helper| name == helper.as_str())
    }
}

/// Runs the helper that the arguments, including the program's own name, select.
pub fn run(arguments: Vec<OsString>) -> ExitCode {
    let Some((helper, arguments)) = choose(arguments) else {
        let names = Helper::ALL.map(Helper::as_str).join(", ");
        print_error(&format!(
            "mesh-init is several programs; start it by one of their names, or pass one as the first argument: {names}"
        ));
        return ExitCode::from(USAGE);
    };
    match helper {
        Helper::Intercept => finish(intercept::run(&intercept::Args::parse_from(arguments))),
        Helper::Validator => validator::run(&validator::Args::parse_from(arguments)),
        Helper::Await => readiness::run(readiness::Args::parse_from(arguments)),
    }
}

/// Returns the helper, and its arguments as if it had been started by its own name.
fn choose(mut arguments: Vec<OsString>) -> Option<(Helper, Vec<OsString>)> {
    if let Some(helper) = arguments.first().and_then(|name| Helper::named(name)) {
        return Some((helper, arguments));
    }
    let helper = arguments.get(1).and_then(|name| Helper::named(name))?;
    arguments.remove(0);
    Some((helper, arguments))
}

/// Returns the exit code of a command whose standard output is the log, and logs its error.
pub fn finish(result: anyhow::Result<()>) -> ExitCode {
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

/// Writes to standard error, before logging is set up or alongside a wrapped program's output.
/// Errors are ignored: there is no other channel.
fn print_error(message: &str) {
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
    fn program_name_or_first_argument_selects_helper() {
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
            let helper = chosen(words).map(|(helper, _)| helper);
            assert_eq!(helper, expected, "{words:?}");
        }
        let (_, rest) = chosen(&["mesh-init", "linkerd-await", "--port=1"]).unwrap();
        assert_eq!(rest, ["linkerd-await", "--port=1"]);
    }
}

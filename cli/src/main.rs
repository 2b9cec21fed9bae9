//! `meshctl`: the command-line interface of the mesh. `main` parses the arguments, runs the command
//! and maps its result to an exit code (see [`exit`]). Each command is a file of [`commands`]; only
//! [`output`] prints.

mod analyze;
mod args;
mod certificate;
mod check;
mod clients;
mod cluster;
mod commands;
mod exit;
mod facts;
mod gather;
mod global;
mod host;
mod install;
mod mesh;
mod node;
mod output;
mod resource;
mod rotation;
mod runtime;
mod stop;

use std::process::ExitCode;

use clap::{CommandFactory, Parser};

use args::Args;

fn main() -> ExitCode {
    let args = match Args::try_parse() {
        Ok(args) => args,
        Err(error) => return exit::usage(&error),
    };
    output::style::set_color_choice(args.global.color);
    report(commands::run(args.command, &args.global, Args::command))
}

/// Prints the error of a failed command and returns its exit code.
fn report(outcome: anyhow::Result<()>) -> ExitCode {
    let Err(error) = outcome else {
        return ExitCode::SUCCESS;
    };
    if output::is_closed_pipe(&error) {
        return ExitCode::SUCCESS;
    }
    if !exit::is_printed(&error) {
        output::error(&error);
    }
    exit::code(&error)
}

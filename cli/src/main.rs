//! `meshctl`: the command-line interface of the mesh. `main` parses the arguments, runs the command
//! and maps its result to an exit code (see [`exit`]). Each command is a file of [`commands`]; only
//! [`output`] prints.

mod analyze;
mod args;
mod check;
mod clients;
mod cluster;
mod commands;
mod exit;
mod global;
mod install;
mod mesh;
mod node;
mod output;
mod stop;
mod target;

use std::process::ExitCode;

use clap::{CommandFactory, Parser};

use args::Args;

fn main() -> ExitCode {
    let args = match Args::try_parse() {
        Ok(args) => args,
        Err(error) => return exit::usage(&error),
    };
    output::style::set_color_choice(args.global.color);
    exit::report(commands::run(args.command, &args.global, Args::command))
}

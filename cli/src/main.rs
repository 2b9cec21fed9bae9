//! `meshctl`: what people type to see and steer the mesh.
//!
//! `main` parses, runs the command and turns its outcome into an exit code (see [`exit`]). Each
//! command is a file of [`commands`]; only [`output`] prints.

mod args;
mod check;
mod cluster;
mod commands;
mod exit;
mod global;
mod install;
mod mesh;
mod node;
mod output;
mod talk;

use std::process::ExitCode;

use clap::{CommandFactory, Parser};

use args::Args;

fn main() -> ExitCode {
    let args = match Args::try_parse() {
        Ok(args) => args,
        Err(error) => return exit::usage(&error),
    };
    output::style::choose(args.global.color);
    exit::report(commands::run(args.command, &args.global, Args::command))
}

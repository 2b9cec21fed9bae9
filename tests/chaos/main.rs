//! `mesh-chaos`, which `cargo xtask chaos` builds and runs: the campaign of faults.
//!
//! `table` has every fault with its promise and the tests that plant it. The campaign runs these
//! tests one after the other, reads the counts of load generators, prints a table by fault, and
//! writes it to target/chaos. With `--out` it goes into docs/reliability.md. The exit code is 1 if
//! a promise did not hold.

mod document;
mod fault;
mod outcome;
mod programs;
mod run;
mod table;

use std::process::ExitCode;

use anyhow::bail;
use clap::Parser;
use xtask::{print_lines, seed, workspace};

use fault::Fault;
use run::Campaign;

/// Plant the faults of docs/reliability.md and judge the promises under them
#[derive(Debug, Parser)]
#[command(bin_name = "cargo xtask chaos")]
struct Options {
    /// Only this fault. May be repeated
    #[arg(long = "fault", value_name = "NUMBER")]
    faults: Vec<u8>,
    /// Seed of the tests' random choices; otherwise another one each time, which is printed
    #[arg(long, value_name = "NUMBER")]
    seed: Option<u64>,
    /// Also run the tests that take minutes
    #[arg(long)]
    long: bool,
    /// Print the faults and their tests, and run nothing
    #[arg(long)]
    list: bool,
    /// Write the results into docs/reliability.md
    #[arg(long)]
    out: bool,
    /// Write docs/reliability.md from the table of this program with the results it has, and run
    /// nothing
    #[arg(long, conflicts_with_all = ["list", "out"])]
    document: bool,
}

fn main() -> anyhow::Result<ExitCode> {
    let options = Options::parse();
    let root = &workspace::root()?;
    let faults = selected(&options.faults)?;
    if options.list {
        print_lines(&list(&faults))?;
        return Ok(ExitCode::SUCCESS);
    }
    if options.document {
        document::update(root, &[])?;
        return Ok(ExitCode::SUCCESS);
    }
    let campaign = Campaign {
        root,
        seed: options.seed.map_or_else(seed::of_the_clock, Ok)?,
        long: options.long,
    };
    let results = campaign.run(&faults)?;
    print_lines(&campaign.write(&results)?)?;
    if options.out {
        document::update(root, &results)?;
    }
    let failed = results.iter().any(|result| result.has_failed());
    Ok(ExitCode::from(u8::from(failed)))
}

/// Returns the faults of these numbers, or all.
fn selected(numbers: &[u8]) -> anyhow::Result<Vec<&'static Fault>> {
    if let Some(unknown) = numbers
        .iter()
        .find(|number| fault::all().all(|fault| fault.number != **number))
    {
        bail!("there is no fault {unknown}; `--list` prints all");
    }
    let is_selected = |fault: &&Fault| numbers.is_empty() || numbers.contains(&fault.number);
    Ok(fault::all().filter(is_selected).collect())
}

fn list(faults: &[&Fault]) -> Vec<String> {
    let mut lines = Vec::new();
    for fault in faults {
        lines.push(format!("{:>2}  {}", fault.number, fault.name));
        for test in fault.tests {
            let note = match test.place.note() {
                "" => String::new(),
                note => format!(" ({note})"),
            };
            lines.push(format!("      {}{note}", test.path));
        }
        if fault.tests.is_empty() {
            lines.push(format!("      not planted: {}", fault.limit));
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_line_definition_is_valid() {
        use clap::CommandFactory as _;
        Options::command().debug_assert();
    }

    #[test]
    fn faults_are_selected_by_number() {
        let numbers = |selected: Vec<&Fault>| -> Vec<u8> {
            selected.iter().map(|fault| fault.number).collect()
        };
        assert_eq!(numbers(selected(&[7, 2]).expect("both exist")), [2, 7]);
        assert_eq!(selected(&[]).expect("all exist").len(), 52);
        assert!(selected(&[53]).is_err());
    }

    #[test]
    fn list_has_tests_or_the_reason_why_there_is_none() {
        let all: Vec<&Fault> = fault::all().collect();
        let listed = list(&all).join("\n");
        assert!(
            listed.contains(" 1  the whole control plane is gone"),
            "{listed}"
        );
        for fault in all {
            for test in fault.tests {
                assert!(listed.contains(test.path), "{}", test.path);
            }
        }
    }
}

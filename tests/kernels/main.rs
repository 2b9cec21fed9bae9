//! `mesh-kernels`, which `cargo xtask test --kernel` builds and runs: the tests of redirection on
//! another kernel than this machine's.
//!
//! It fetches a kernel of Debian, packs the test programs, with the programs that they start, into
//! an initramfs, and boots both in qemu. In the virtual machine this program is the first process
//! (`guest`): it runs each test as a process of its own and reports on a serial line. The table of
//! results goes to the terminal and, after each test, to target/kernels. The exit code is 1 if a
//! test failed or did not end.

mod guest;
mod initramfs;
mod kernel;
mod machine;
mod plan;
mod report;

use std::process::ExitCode;

use anyhow::bail;
use clap::Parser;
use xtask::{print_lines, stage, workspace};

use kernel::Kernel;
use report::Report;

/// Run the tests of redirection on another kernel, in qemu
#[derive(Debug, Parser)]
#[command(bin_name = "cargo xtask test --kernel")]
struct Options {
    /// The kernel; `list` prints their names
    kernel: String,
    /// Run only the tests whose name contains this
    filter: Option<String>,
}

fn main() -> anyhow::Result<ExitCode> {
    if std::process::id() == 1 {
        guest::run();
    }
    let options = Options::parse();
    if options.kernel == "list" {
        print_lines(&kernel::list())?;
        return Ok(ExitCode::SUCCESS);
    }
    let kernel = Kernel::named(&options.kernel)?;
    let root = &workspace::root()?;
    let plan = plan::build(root, options.filter.as_deref(), kernel.tier)?;
    if plan.tests.is_empty() {
        bail!("no test of redirection has a name that contains the filter");
    }
    let directory = root.join("target/kernels").join(kernel.name);
    let what = format!("of Debian {}", kernel.suite);
    let image = stage::run("kernel", &what, || kernel.fetch(&directory))?;
    let initramfs = stage::run("initramfs", "the tests and what they start", || {
        initramfs::pack(&directory, &image, &plan)
    })?;
    let mut report = Report::new(&plan, &image.release, &directory);
    let what = format!("{} tests on Linux {}", plan.tests.len(), image.release);
    let ended = stage::run("qemu", &what, || {
        machine::boot(&directory, &image, &initramfs, &mut report)
    });
    // Tests that ran before the machine failed are a result, too.
    print_lines(&report.write()?)?;
    ended?;
    Ok(ExitCode::from(u8::from(report.has_failed())))
}

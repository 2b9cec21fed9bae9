//! The virtual machine.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, bail};
use xtask::command;

use crate::kernel::Image;
use crate::report::Report;

const QEMU: &str = "qemu-system-x86_64";
/// The accelerator, if KVM works: it can exist and not run a kernel, inside of virtual machines.
const ACCELERATOR_VARIABLE: &str = "MESH_TEST_ACCELERATOR";
/// Time in the virtual machine passes with its instructions, one in a nanosecond, and without
/// waiting while it is idle. So a test that waits has the same number of instructions on a busy
/// machine and on an idle one. With two processors the kernel does not start.
const EMULATION: [&str; 4] = ["-accel", "tcg", "-icount", "shift=0,sleep=off"];
const MEMORY_MIB: u32 = 4096;
/// Lines of the console that an error shows.
const CONSOLE_LINES: usize = 30;

/// Boots the kernel, and passes the output of the first process to the report until the machine is
/// off. The console goes to a file.
pub(crate) fn boot(
    directory: &Path,
    image: &Image,
    initramfs: &Path,
    report: &mut Report<'_>,
) -> anyhow::Result<()> {
    let console = directory.join("console.log");
    let mut qemu = Command::new(QEMU);
    match std::env::var(ACCELERATOR_VARIABLE) {
        Ok(accelerator) => qemu.args(["-accel", &accelerator, "-smp", "2"]),
        Err(_unset) => qemu.args(EMULATION),
    };
    // Five levels of page tables cost emulated processors time.
    qemu.args(["-cpu", "max,la57=off"])
        .args(["-m", &MEMORY_MIB.to_string()])
        .args(["-nodefaults", "-display", "none", "-no-reboot"])
        .arg("-kernel")
        .arg(&image.vmlinuz)
        .arg("-initrd")
        .arg(initramfs)
        // A panic reboots, which ends qemu.
        .args(["-append", "console=ttyS0 panic=-1 loglevel=5"])
        .args(["-serial", &format!("file:{}", console.display())])
        .args(["-serial", "stdio"]);
    let finished = command::observe("tests", &mut qemu, |line| report.line(line))
        .with_context(|| format!("{QEMU} runs (`apt-get install qemu-system-x86`)"))?;
    if finished.status.success() && report.has_ended() {
        return Ok(());
    }
    let text = fs::read(&console).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    // Output of qemu itself is among the lines of the report.
    let printed = finished.lines.iter().map(String::as_str);
    let lines: Vec<&str> = printed.chain(text.lines()).collect();
    let last = lines.len().saturating_sub(CONSOLE_LINES);
    bail!(
        "the virtual machine ended ({}) before its tests did; its last lines, and those of {}:\n{}",
        finished.status,
        console.display(),
        lines.get(last..).unwrap_or_default().join("\n")
    )
}

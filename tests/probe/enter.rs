//! `probe enter OPTION… -- COMMAND ARGS…`, with the options that `run` reads: joins a pod, or a
//! network namespace inside it, then executes a probe with that command.

use std::fs::File;
use std::os::unix::process::CommandExt;
use std::process::Command;

use anyhow::Context;
use nix::sched::{CloneFlags, setns, unshare};
use nix::unistd::{Gid, Uid, setgid, setgroups, setuid};

use super::{flag, has};

pub(crate) fn run(args: &[&str]) -> anyhow::Result<()> {
    let split = args
        .iter()
        .position(|arg| *arg == "--")
        .context("no command after --")?;
    let (options, command) = (&args[..split], &args[split + 1..]);
    if let Some(cgroup) = flag(options, "--cgroup") {
        std::fs::create_dir_all(cgroup).with_context(|| format!("create cgroup {cgroup}"))?;
        std::fs::write(
            format!("{cgroup}/cgroup.procs"),
            std::process::id().to_string(),
        )
        .with_context(|| format!("join cgroup {cgroup}"))?;
    }
    for netns in ["--netns", "--inner-netns"]
        .iter()
        .filter_map(|name| flag(options, name))
    {
        let file = File::open(netns).with_context(|| format!("open {netns}"))?;
        setns(file, CloneFlags::CLONE_NEWNET).with_context(|| format!("join {netns}"))?;
    }
    if has(options, "--new-netns") {
        unshare(CloneFlags::CLONE_NEWNET).context("create a nested network namespace")?;
        run_quietly("ip", &["link", "set", "lo", "up"])?;
    }
    if let Some(uid) = flag(options, "--uid") {
        let uid: u32 = uid.parse()?;
        setgroups(&[])?;
        setgid(Gid::from_raw(uid))?;
        setuid(Uid::from_raw(uid))?;
    }
    // Not by path: the new user may lack access to the directories above it, such as the home of
    // root.
    Err(Command::new("/proc/self/exe").args(command).exec()).context("execute the probe")
}

fn run_quietly(program: &str, args: &[&str]) -> anyhow::Result<()> {
    let status = Command::new(program)
        .args(args)
        .status()
        .with_context(|| format!("run {program}"))?;
    anyhow::ensure!(status.success(), "{program} {args:?}: {status}");
    Ok(())
}

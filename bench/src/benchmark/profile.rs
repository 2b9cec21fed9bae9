//! Profiles the two proxies under a load with perf, to show the cause of a missed goal.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, bail};
use xtask::command::captured_stdout;

use super::load;
use super::system::System;
use super::workload::{Load, Service};
use crate::testbed::process::{Process, run, wait_until};
use crate::testbed::{DIRECTORY, ProxyPair, Testbed};

/// Sampling rate. It is prime to avoid sampling in lockstep with a timer.
const RATE: u32 = 997;
/// Number of symbols that are listed by name.
const LISTED: usize = 12;

/// Shares of one proxy's CPU time.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Profile {
    /// Shares by library, the largest first.
    pub(crate) groups: Vec<(String, f64)>,
    /// Shares by function outside of the kernel, the largest first.
    pub(crate) symbols: Vec<(String, f64)>,
}

/// Groups and the substrings that assign a symbol to them; the first match wins. Inlined code
/// counts for the function that contains it.
#[rustfmt::skip] // a table, one row a line
const GROUPS: [(&str, &[&str]); 12] = [
    ("copying", &["memmove", "memcpy", "memset", "memcmp", "bcmp"]),
    ("allocator", &["mi_", "malloc", "free", "calloc"]),
    ("clock", &["clock_gettime", "vdso"]),
    ("encryption", &["aws_lc", "aes_", "gcm_", "ghash", "sha256", "rustls"]),
    ("mesh-http2", &["mesh_http2"]),
    ("mesh-proxy", &["mesh_"]),
    ("h2", &["h2::"]),
    ("hyper", &["hyper"]),
    ("tokio", &["tokio", "mio::"]),
    ("http, httparse, bytes", &["http::", "httparse", "bytes::"]),
    ("standard library", &["core::", "alloc::", "std::", "hashbrown"]),
    ("C library", &["__libc", "pthread", "epoll_", "recv", "send", "writev"]),
];
const KERNEL: &str = "kernel";
const OTHER: &str = "other";

/// Profiles both proxies of a system while it carries a load.
pub(super) fn record(
    testbed: &Testbed,
    system: &mut System,
    service: Service,
    load: Load,
    seconds: u32,
) -> anyhow::Result<ProxyPair<Profile>> {
    let Some(processes) = system.processes() else {
        bail!("{} has no proxies", system.sut);
    };
    let samples = Path::new(DIRECTORY).join("perf.data");
    let mut command = Command::new("perf");
    command
        .args(["record", "--quiet", "--event", "cpu-clock"])
        .args(["--freq", &RATE.to_string()])
        .arg("--pid")
        .arg(format!("{},{}", processes.outbound, processes.inbound))
        .arg("--output")
        .arg(&samples)
        .args(["--", "sleep", &seconds.to_string()]);
    let perf =
        Process::start("perf", &mut command).context("perf; Debian's package is linux-perf")?;
    wait_until("perf writes samples", || Ok(samples.exists().then_some(())))
        .with_context(|| perf.command_and_log())?;
    load::measure(testbed, system, service, load, seconds)?;
    perf.output()?;
    let mut script = Command::new("perf");
    script
        .args(["script", "--fields", "pid,ip,sym,dso", "--input"])
        .arg(&samples);
    let text = captured_stdout(&mut script).context("read perf.data with perf script")?;
    std::fs::remove_file(&samples)?;
    Ok(processes.map(|process| profile(&text, process)))
}

/// Returns whether perf is installed.
pub(super) fn is_possible() -> bool {
    run(Command::new("perf").arg("--version")).is_ok()
}

/// Computes the profile of a process from samples, each `PID ADDRESS SYMBOL (OBJECT)`.
fn profile(samples: &str, process: u32) -> Profile {
    let process = process.to_string();
    let mut groups: BTreeMap<&str, usize> = BTreeMap::new();
    let mut symbols: BTreeMap<String, usize> = BTreeMap::new();
    let mut all = 0;
    for line in samples.lines() {
        let Some((symbol, object)) = sample(line, &process) else {
            continue;
        };
        all += 1;
        let group = group(symbol, object);
        *groups.entry(group).or_default() += 1;
        if group != KERNEL {
            *symbols.entry(readable(symbol)).or_default() += 1;
        }
    }
    let share = |count: usize| count as f64 / f64::from(u32::try_from(all).unwrap_or(u32::MAX));
    let groups = groups
        .into_iter()
        .map(|(name, count)| (name.to_owned(), share(count)));
    let symbols = symbols
        .into_iter()
        .map(|(name, count)| (name, share(count)));
    let mut profile = Profile {
        groups: largest_first(groups.collect()),
        symbols: largest_first(symbols.collect()),
    };
    profile.symbols.truncate(LISTED);
    profile
}

/// Parses symbol and object of a sample; returns `None` for another process.
fn sample<'t>(line: &'t str, process: &str) -> Option<(&'t str, &'t str)> {
    let rest = line.trim_start().strip_prefix(process)?;
    let (_, rest) = rest.strip_prefix(' ')?.trim_start().split_once(' ')?;
    let (symbol, object) = rest.rsplit_once(" (")?;
    Some((symbol, object.trim_end().trim_end_matches(')')))
}

fn group(symbol: &str, object: &str) -> &'static str {
    if object.starts_with("[kernel") || object.starts_with("[guest") || object.ends_with(".ko") {
        return KERNEL;
    }
    if object == "[vdso]" {
        return "clock";
    }
    let has = |words: &&[&str]| words.iter().any(|word| symbol.contains(word));
    let found = GROUPS.iter().find(|(_, words)| has(words));
    found.map_or(OTHER, |(name, _)| name)
}

/// Strips the compiler's hash from a symbol.
fn readable(symbol: &str) -> String {
    let symbol = match symbol.rsplit_once("::h") {
        Some((name, hash)) if hash.len() == 16 => name,
        _ => symbol,
    };
    symbol.trim().to_owned()
}

fn largest_first(mut shares: Vec<(String, f64)>) -> Vec<(String, f64)> {
    shares.sort_by(|(_, one), (_, other)| other.total_cmp(one));
    shares
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAMPLES: &str = "\
15857 ffffffff81a3 tcp_ack ([kernel.kallsyms])
 15857     7f12 __memmove_avx512_unaligned_erms (/target/release/mesh-proxy)
15857     7f13 <h2::proto::Streams<B>>::poll::h0123456789abcdef (/target/release/mesh-proxy)
15857     7ffd __vdso_clock_gettime ([vdso])
158570    7f13 another::process (/bin/x)
15858     7f13 mesh_proxy::run (/target/release/mesh-proxy)
";

    #[test]
    fn profile_counts_samples_of_one_process() {
        let outbound = profile(SAMPLES, 15857);
        let total: f64 = outbound.groups.iter().map(|(_, share)| share).sum();
        assert!((total - 1.0).abs() < 1e-9, "{outbound:?}");
        let mut names: Vec<&str> = outbound
            .groups
            .iter()
            .map(|(name, _)| name.as_str())
            .collect();
        names.sort_unstable();
        assert_eq!(names, ["clock", "copying", "h2", KERNEL]);
        assert!(
            outbound
                .symbols
                .iter()
                .any(|(name, _)| name == "<h2::proto::Streams<B>>::poll")
        );
        let inbound = profile(SAMPLES, 15858);
        assert_eq!(inbound.groups, [("mesh-proxy".to_owned(), 1.0)]);
    }

    #[test]
    fn symbol_is_assigned_to_group() {
        for (symbol, object, expected) in [
            ("tcp_sendmsg", "[kernel.kallsyms]", KERNEL),
            ("nf_hook", "/lib/modules/nf_tables.ko", KERNEL),
            ("_mi_page_malloc_zero", "/mesh-proxy", "allocator"),
            ("aws_lc_0_47_0_aes_gcm_enc", "/mesh-proxy", "encryption"),
            (
                "<mesh_proxy::tls::X as tokio::io::AsyncRead>::poll_read",
                "/mesh-proxy",
                "mesh-proxy",
            ),
            ("tokio::runtime::park", "/mesh-proxy", "tokio"),
            ("main", "/mesh-proxy", OTHER),
        ] {
            assert_eq!(group(symbol, object), expected, "{symbol}");
        }
    }

    #[test]
    fn empty_samples_give_empty_profile() {
        assert_eq!(profile("", 1), Profile::default());
    }
}

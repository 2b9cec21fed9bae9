//! The CPUs of load and proxies in a testbed.

use std::fs;

use anyhow::{Context, bail};

/// One CPU for load and one for the proxies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Cpus {
    /// Clients and servers.
    pub(crate) load: usize,
    /// Proxies.
    pub(crate) proxies: usize,
    /// Worker threads of a proxy. A proxy with several uses both CPUs.
    pub(crate) workers: u32,
}

impl Cpus {
    /// Chooses the first two CPUs that this process is allowed to use.
    pub(crate) fn choose() -> anyhow::Result<Self> {
        let status = fs::read_to_string("/proc/self/status").context("read /proc/self/status")?;
        let list = status
            .lines()
            .find_map(|line| line.strip_prefix("Cpus_allowed_list:"))
            .context("/proc/self/status lists no CPUs")?;
        match parse_list(list.trim())[..] {
            [load, proxies, ..] => Ok(Self {
                load,
                proxies,
                workers: 1,
            }),
            _ => bail!(
                "only one CPU is available; clients and servers need one and the proxies another"
            ),
        }
    }

    /// The same CPUs, for proxies with two workers.
    pub(crate) fn with_two_workers(self) -> Self {
        Self { workers: 2, ..self }
    }
}

/// Parses a CPU list in the kernel's format, `0-2,5`.
pub(crate) fn parse_list(text: &str) -> Vec<usize> {
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some(first.parse::<usize>().ok()?..=last.parse::<usize>().ok()?)
    };
    text.split(',').filter_map(range).flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_lists_are_parsed() {
        assert_eq!(parse_list("0-2,5"), [0, 1, 2, 5]);
        assert_eq!(parse_list("3"), [3]);
        assert!(parse_list("").is_empty());
    }
}

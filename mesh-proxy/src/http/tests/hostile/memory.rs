//! How far this process has grown.

/// The memory of this process.
pub(super) struct Memory {
    before: u64,
}

impl Memory {
    pub(super) fn mark() -> Self {
        // Makes the peak begin anew.
        std::fs::write("/proc/self/clear_refs", "5").unwrap();
        Self {
            before: status("VmRSS:"),
        }
    }

    /// The most that there was since, in bytes beyond what there had been.
    pub(super) fn grown(&self) -> u64 {
        status("VmHWM:").saturating_sub(self.before)
    }
}

fn status(field: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(field));
    let kib = line.unwrap().trim().trim_end_matches(" kB");
    kib.parse::<u64>().unwrap() << 10
}

//! The memory growth of this process.

pub(super) struct Memory {
    before: u64,
}

impl Memory {
    pub(super) fn mark() -> Self {
        // Resets the peak.
        std::fs::write("/proc/self/clear_refs", "5").unwrap();
        Self {
            before: status("VmRSS:"),
        }
    }

    /// Returns the peak since [`Memory::mark`], in bytes above the memory used then.
    pub(super) fn peak_growth(&self) -> u64 {
        status("VmHWM:").saturating_sub(self.before)
    }
}

fn status(field: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(field));
    let kib = line.unwrap().trim().trim_end_matches(" kB");
    kib.parse::<u64>().unwrap() << 10
}

//! The clock of the kernel programs.

use std::io;
use std::time::Duration;

/// Returns the time of `CLOCK_MONOTONIC`, which `bpf_ktime_get_ns` reads.
pub fn monotonic() -> io::Result<Duration> {
    let mut now = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the kernel writes the structure.
    let result = unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    let seconds = u64::try_from(now.tv_sec).unwrap_or_default();
    let nanoseconds = u32::try_from(now.tv_nsec).unwrap_or_default();
    Ok(Duration::new(seconds, nanoseconds))
}

//! The limit of file descriptors, for metrics and for limits that depend on it.

use nix::errno::Errno;
use nix::sys::resource::{Resource, getrlimit, rlim_t, setrlimit};

/// Returns the soft limit; `None` if the kernel does not report it.
pub fn limit() -> Option<usize> {
    let (soft, _hard) = getrlimit(Resource::RLIMIT_NOFILE).ok()?;
    usize::try_from(soft).ok()
}

/// Raises the soft limit to `wanted`, at most to the hard limit; never lowers it. Returns the
/// resulting limit.
///
/// Service managers, and with them many container runtimes, set a soft limit of 1024 for the sake
/// of programs that call `select`, and a higher hard limit (systemd, "File Descriptor Limits").
pub fn raise(wanted: usize) -> Result<usize, Errno> {
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    let raised = raised(soft, hard, rlim_t::try_from(wanted).unwrap_or(rlim_t::MAX));
    if raised != soft {
        setrlimit(Resource::RLIMIT_NOFILE, raised, hard)?;
    }
    Ok(usize::try_from(raised).unwrap_or(usize::MAX))
}

fn raised(soft: rlim_t, hard: rlim_t, wanted: rlim_t) -> rlim_t {
    wanted.min(hard).max(soft)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limit_is_raised_up_to_hard_limit_and_never_lowered() {
        assert_eq!(raised(1024, 524_288, 65_536), 65_536);
        assert_eq!(raised(1024, 4096, 65_536), 4096);
        assert_eq!(raised(1 << 20, 1 << 20, 65_536), 1 << 20);
    }

    #[test]
    fn raise_returns_the_effective_limit() {
        let raised = raise(0).expect("the kernel reports the limit");
        assert_eq!(limit(), Some(raised));
    }
}

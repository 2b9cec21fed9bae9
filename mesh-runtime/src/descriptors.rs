//! How many file descriptors the process may have, for its metrics and for whoever bounds what
//! needs them.

use nix::errno::Errno;
use nix::sys::resource::{Resource, getrlimit, rlim_t, setrlimit};

/// The limit in force (the soft one); `None` where the kernel does not tell.
pub fn limit() -> Option<usize> {
    let (soft, _hard) = getrlimit(Resource::RLIMIT_NOFILE).ok()?;
    usize::try_from(soft).ok()
}

/// Raises the limit in force to `wanted`, or as far as the process may go; never lowers it. Returns
/// what is in force then.
///
/// A service manager's usual limit, and with it many a container's, is 1024 for the sake of
/// programs that call `select`, with leave to raise it (systemd, "File Descriptor Limits").
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
    fn limits_are_raised_as_far_as_allowed_and_never_lowered() {
        assert_eq!(raised(1024, 524_288, 65_536), 65_536);
        assert_eq!(raised(1024, 4096, 65_536), 4096);
        assert_eq!(raised(1 << 20, 1 << 20, 65_536), 1 << 20);
    }

    #[test]
    fn what_is_in_force_is_told() {
        let raised = raise(0).expect("the kernel tells");
        assert_eq!(limit(), Some(raised));
    }
}

//! How many file descriptors the process may have, for its metrics and for whoever bounds what needs them.

use std::fs;

/// The limit in force (the soft one); `None` where the kernel does not tell.
pub fn limit() -> Option<usize> {
    soft(&fs::read_to_string("/proc/self/limits").ok()?)
}

/// Out of the kernel's table of limits: name, soft limit, hard limit, unit.
fn soft(limits: &str) -> Option<usize> {
    let line = limits
        .lines()
        .find_map(|line| line.strip_prefix("Max open files"))?;
    line.split_ascii_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_soft_limit_is_read() {
        let limits = "Limit                     Soft Limit           Hard Limit           Units     \n\
                      Max processes             95881                95881                processes \n\
                      Max open files            4096                 1048576              files     \n";
        assert_eq!(soft(limits), Some(4096));
        assert_eq!(soft(""), None);
        assert!(limit().is_some_and(|limit| limit > 0));
    }
}

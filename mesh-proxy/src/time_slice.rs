//! Shares a CPU with other processes in short slices.
//!
//! Between two busy threads of equal priority, Linux switches at its timer tick, which is every 4
//! ms on most distributions. A request that passes two busy proxies on one CPU could wait for that
//! four times. The data threads therefore request the shortest slice, so that they preempt busy
//! threads sooner and are preempted sooner. They yield the CPU after a turn if one connection had
//! more work than a turn may have.
//!
//! A thread that yields forfeits the rest of its slice. Before Linux 6.12, which cannot set the
//! slice of a thread, that would be several milliseconds each time, and data threads do not yield.

use std::cell::Cell;
use std::io;
use std::mem::size_of;

/// The shortest slice that Linux accepts.
const SLICE_NANOS: u64 = 100_000;

thread_local! {
    static IS_SHORT: Cell<bool> = const { Cell::new(false) };
}

/// Requests the shortest slice for this thread. Its nice value stays the same.
pub(crate) fn request_shortest() {
    match request_slice() {
        Ok(is_short) => IS_SHORT.set(is_short),
        // A seccomp profile may deny the calls.
        Err(error) => tracing::debug!(%error, "Cannot request a short time slice"),
    }
}

/// Lets other threads of this CPU run first, if this thread has a short slice. For work that can
/// wait: a connection has more of it than a turn may have.
pub(crate) fn yield_cpu() {
    if IS_SHORT.get() {
        // Always succeeds on Linux.
        let _ = nix::sched::sched_yield();
    }
}

/// Returns whether the kernel has set the slice: earlier ones ignore it without an error.
fn request_slice() -> io::Result<bool> {
    let mut attributes = attributes()?;
    // Slices belong to the default policies. An operator may have set another one.
    if !matches!(
        attributes.sched_policy.cast_signed(),
        libc::SCHED_OTHER | libc::SCHED_BATCH
    ) {
        return Ok(false);
    }
    attributes.sched_runtime = SLICE_NANOS;
    set_attributes(&attributes)?;
    Ok(self::attributes()?.sched_runtime == SLICE_NANOS)
}

/// Returns the scheduling attributes of this thread.
fn attributes() -> io::Result<libc::sched_attr> {
    let this_thread = 0;
    let size = size_of::<libc::sched_attr>() as u32;
    // SAFETY: all fields are integers.
    let mut attributes: libc::sched_attr = unsafe { std::mem::zeroed() };
    // SAFETY: the kernel writes at most `size` bytes, which is the structure's size.
    let result = unsafe {
        libc::syscall(
            libc::SYS_sched_getattr,
            this_thread,
            &raw mut attributes,
            size,
            0,
        )
    };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(attributes)
}

fn set_attributes(attributes: &libc::sched_attr) -> io::Result<()> {
    let this_thread = 0;
    // SAFETY: the kernel reads at most the bytes of the structure: `size` is from `attributes`.
    let result = unsafe { libc::syscall(libc::SYS_sched_setattr, this_thread, attributes, 0) };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn thread_has_shortest_slice_where_the_kernel_supports_it() {
        let release = nix::sys::utsname::uname().expect("the kernel's name");
        let release = release.release().to_str().expect("a release in ASCII");
        let mut numbers = release.split('.').map(|number| number.parse::<u32>().ok());
        let version = (numbers.next().flatten(), numbers.next().flatten());
        let is_supported = version >= (Some(6), Some(12));

        thread::scope(|scope| {
            scope.spawn(|| {
                let before = attributes().expect("attributes of a thread");
                request_shortest();
                let after = attributes().expect("attributes of a thread");
                assert_eq!(IS_SHORT.get(), is_supported, "Linux {release}");
                assert_eq!(after.sched_runtime == SLICE_NANOS, is_supported);
                assert_eq!(after.sched_nice, before.sched_nice);
                assert_eq!(after.sched_policy, before.sched_policy);
            });
        });
    }

    #[test]
    fn thread_with_real_time_policy_keeps_its_attributes() {
        thread::spawn(|| {
            let mut real_time = attributes().expect("attributes of a thread");
            real_time.sched_policy = libc::SCHED_FIFO.cast_unsigned();
            real_time.sched_priority = 1;
            real_time.sched_nice = 0;
            if set_attributes(&real_time).is_err() {
                // Needs CAP_SYS_NICE.
                return;
            }
            assert!(!request_slice().expect("attributes of a thread"));
            let after = attributes().expect("attributes of a thread");
            assert_eq!(after.sched_policy, real_time.sched_policy);
            assert_eq!(after.sched_priority, 1);
        })
        .join()
        .expect("the thread");
    }
}

//! Raises capabilities that the program's file permits. In a container that does not run as root
//! capabilities come from the file only. A file that makes them effective cannot be executed where
//! they are dropped; therefore the file only permits them, and the program raises them.

use std::io;

/// `_LINUX_CAPABILITY_VERSION_3`: two words for each set.
const VERSION: u32 = 0x2008_0522;
/// Numbers of linux/capability.h.
const NET_ADMIN: u32 = 12;
const NET_RAW: u32 = 13;

#[repr(C)]
struct Header {
    version: u32,
    pid: i32,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Sets {
    effective: u32,
    permitted: u32,
    inheritable: u32,
}

/// Makes NET_ADMIN and NET_RAW effective, as far as they are permitted, for this thread, threads
/// that it starts, and programs that they execute. Without them the kernel rejects later
/// operations, which report it.
pub fn raise_net_admin() -> io::Result<()> {
    let mut sets = current()?;
    let raised = (1 << NET_ADMIN | 1 << NET_RAW) & sets[0].permitted;
    sets[0].effective |= raised;
    sets[0].inheritable |= raised;
    let header = header();
    // SAFETY: a version 3 header is followed by two sets; the kernel only reads them.
    let result = unsafe { libc::syscall(libc::SYS_capset, &raw const header, sets.as_ptr()) };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    for capability in [NET_ADMIN, NET_RAW] {
        if raised & (1 << capability) != 0 {
            make_ambient(capability)?;
        }
    }
    Ok(())
}

fn current() -> io::Result<[Sets; 2]> {
    let mut header = header();
    let mut sets = [Sets::default(); 2];
    // SAFETY: a version 3 header requests two sets, the length of the array.
    let result = unsafe { libc::syscall(libc::SYS_capget, &raw mut header, sets.as_mut_ptr()) };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(sets)
}

/// Makes the capability inheritable by executed programs, whose files have none.
fn make_ambient(capability: u32) -> io::Result<()> {
    // SAFETY: the request has only integer arguments.
    let result = unsafe {
        libc::prctl(
            libc::PR_CAP_AMBIENT,
            libc::PR_CAP_AMBIENT_RAISE as libc::c_ulong,
            libc::c_ulong::from(capability),
            0 as libc::c_ulong,
            0 as libc::c_ulong,
        )
    };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

fn header() -> Header {
    Header {
        version: VERSION,
        pid: 0,
    }
}

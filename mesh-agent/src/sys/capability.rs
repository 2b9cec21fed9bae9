//! Using a capability that the program's file brings. A container that does not run as root gets
//! its capabilities from the file only, and a file that makes them effective by itself cannot be
//! started where they are dropped; so the file merely permits them, and the program asks.

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

/// Makes NET_ADMIN and NET_RAW effective for this thread, those that follow, and the programs they
/// start, as far as they are permitted. What is not permitted stays away: the kernel refuses what
/// takes it, and says so there.
pub fn raise_net_admin() -> io::Result<()> {
    let mut sets = current()?;
    let wanted = (1 << NET_ADMIN | 1 << NET_RAW) & sets[0].permitted;
    sets[0].effective |= wanted;
    sets[0].inheritable |= wanted;
    let header = header();
    // SAFETY: a version 3 header is followed by two sets; the kernel only reads them.
    let result = unsafe { libc::syscall(libc::SYS_capset, &raw const header, sets.as_ptr()) };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    for capability in [NET_ADMIN, NET_RAW] {
        if wanted & (1 << capability) != 0 {
            make_ambient(capability)?;
        }
    }
    Ok(())
}

fn current() -> io::Result<[Sets; 2]> {
    let mut header = header();
    let mut sets = [Sets::default(); 2];
    // SAFETY: a version 3 header asks for two sets, which is what there is room for.
    let result = unsafe { libc::syscall(libc::SYS_capget, &raw mut header, sets.as_mut_ptr()) };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(sets)
}

/// For the programs that are started: their files bring nothing.
fn make_ambient(capability: u32) -> io::Result<()> {
    // SAFETY: the request takes numbers only.
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

/// This thread.
fn header() -> Header {
    Header {
        version: VERSION,
        pid: 0,
    }
}

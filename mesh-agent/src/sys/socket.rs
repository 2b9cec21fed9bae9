//! Socket calls of the self-test.

use std::io;
use std::os::fd::{AsFd, AsRawFd};

/// Returns the number of bytes that can be read without blocking (FIONREAD).
pub fn readable(socket: impl AsFd) -> io::Result<usize> {
    let mut count: libc::c_int = 0;
    // SAFETY: the request writes one integer.
    let result = unsafe { libc::ioctl(socket.as_fd().as_raw_fd(), libc::FIONREAD, &raw mut count) };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(usize::try_from(count).unwrap_or(0))
}

/// Disconnects a socket, which may then connect again.
pub fn disconnect(socket: impl AsFd) -> io::Result<()> {
    let unspecified = libc::sockaddr {
        sa_family: libc::AF_UNSPEC as libc::sa_family_t,
        sa_data: [0; 14],
    };
    // SAFETY: the address lives until the call returns, and its length is given.
    let result = unsafe {
        libc::connect(
            socket.as_fd().as_raw_fd(),
            &raw const unspecified,
            size_of::<libc::sockaddr>() as libc::socklen_t,
        )
    };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Reads TCP_INFO into a buffer of `capacity` bytes; returns the length that the kernel reports.
pub fn tcp_info_length(socket: impl AsFd, capacity: u32) -> io::Result<u32> {
    let mut buffer = vec![0u8; capacity as usize];
    let mut length: libc::socklen_t = capacity;
    // SAFETY: the kernel writes at most `length` bytes, which is the buffer's size.
    let result = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            buffer.as_mut_ptr().cast(),
            &raw mut length,
        )
    };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(length)
}

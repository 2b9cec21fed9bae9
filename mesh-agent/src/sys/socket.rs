//! Socket calls of the self-test: asking how much is readable, and disconnecting.

use std::{
    io,
    os::fd::{AsFd, AsRawFd},
};

/// Bytes that can be read without blocking (FIONREAD).
pub fn readable(socket: impl AsFd) -> io::Result<usize> {
    let mut count: libc::c_int = 0;
    // SAFETY: the request writes one integer.
    let result = unsafe { libc::ioctl(socket.as_fd().as_raw_fd(), libc::FIONREAD, &raw mut count) };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(usize::try_from(count).unwrap_or(0))
}

/// Ends a connection and keeps the socket, which may then connect elsewhere.
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

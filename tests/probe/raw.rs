//! System calls that no safe wrapper offers: the only `unsafe` of the tests.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, RawFd};
use std::time::Duration;

use nix::libc;
use socket2::{SockAddr, Socket};

/// Disconnects a socket so that it can connect again (`connect` to `AF_UNSPEC`).
pub(crate) fn disconnect(socket: &Socket) -> io::Result<()> {
    // SAFETY: an all-zero sockaddr is a valid value of the type.
    let mut unspecified: libc::sockaddr = unsafe { std::mem::zeroed() };
    unspecified.sa_family = libc::AF_UNSPEC as libc::sa_family_t;
    // SAFETY: the pointer and the length describe a live sockaddr; the kernel only reads it.
    let result = unsafe {
        libc::connect(
            socket.as_raw_fd(),
            &raw const unspecified,
            size_of::<libc::sockaddr>() as libc::socklen_t,
        )
    };
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Waits until a connecting socket is writable.
pub(crate) fn wait_writable(socket: &Socket, timeout: Duration) -> io::Result<()> {
    let mut poll = libc::pollfd {
        fd: socket.as_raw_fd(),
        events: libc::POLLOUT,
        revents: 0,
    };
    // SAFETY: one live pollfd is passed, and its count is 1.
    match unsafe {
        libc::poll(
            &raw mut poll,
            1,
            i32::try_from(timeout.as_millis()).unwrap_or(i32::MAX),
        )
    } {
        0 => Err(io::Error::from(io::ErrorKind::TimedOut)),
        n if n > 0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Connects through io_uring, which never enters the `connect` system call; with `sqpoll` a kernel
/// thread submits it.
pub(crate) fn uring_connect(socket: &Socket, target: SocketAddr, sqpoll: bool) -> io::Result<()> {
    let mut builder = io_uring::IoUring::builder();
    if sqpoll {
        builder.setup_sqpoll(100);
    }
    let mut ring = builder.build(8)?;
    let address = SockAddr::from(target);
    let entry = io_uring::opcode::Connect::new(
        io_uring::types::Fd(socket.as_raw_fd()),
        address.as_ptr().cast(),
        address.len(),
    )
    .build();
    // SAFETY: `address` and `socket` live until the completion below has been read.
    unsafe { ring.submission().push(&entry) }.map_err(io::Error::other)?;
    ring.submit_and_wait(1)?;
    let result = ring
        .completion()
        .next()
        .map_or(-libc::EIO, |completion: io_uring::cqueue::Entry| {
            completion.result()
        });
    if result < 0 {
        Err(io::Error::from_raw_os_error(-result))
    } else {
        Ok(())
    }
}

/// Reads options that must not depend on the mesh: number 80 at other levels, and reads larger than
/// a page.
pub(crate) fn option_survey(socket: &Socket) -> Vec<(&'static str, String)> {
    let fd = socket.as_raw_fd();
    vec![
        (
            "SOL_SOCKET/80",
            outcome(read_option(fd, libc::SOL_SOCKET, 80, 16)),
        ),
        (
            "IPPROTO_TCP/80",
            outcome(read_option(fd, libc::IPPROTO_TCP, 80, 16)),
        ),
        ("SOL_IP/81", outcome(read_option(fd, libc::SOL_IP, 81, 16))),
        (
            "SO_ERROR",
            outcome(read_option(fd, libc::SOL_SOCKET, libc::SO_ERROR, 4)),
        ),
        (
            "SO_TYPE",
            outcome(read_option(fd, libc::SOL_SOCKET, libc::SO_TYPE, 4)),
        ),
        (
            "TCP_INFO in 64 KiB",
            outcome(
                read_option(fd, libc::IPPROTO_TCP, libc::TCP_INFO, 65536)
                    .map(|length| usize::from(length > 100)),
            ),
        ),
        (
            "TCP_CONGESTION in 64 KiB",
            outcome(read_option(
                fd,
                libc::IPPROTO_TCP,
                libc::TCP_CONGESTION,
                65536,
            )),
        ),
    ]
}

fn outcome(result: io::Result<usize>) -> String {
    result
        .as_ref()
        .map_or_else(super::client::errno_name, |length| {
            format!("{length} bytes")
        })
}

fn read_option(fd: RawFd, level: i32, name: i32, size: usize) -> io::Result<usize> {
    let mut buffer = vec![0_u8; size];
    let mut length = size as libc::socklen_t;
    // SAFETY: the buffer has `length` bytes, and the kernel writes at most that many.
    let result =
        unsafe { libc::getsockopt(fd, level, name, buffer.as_mut_ptr().cast(), &raw mut length) };
    if result == 0 {
        Ok(length as usize)
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Sends a whole frame by one interface.
pub(crate) fn send_frame(fd: RawFd, interface: u32, frame: &[u8]) -> io::Result<usize> {
    // SAFETY: an all-zero sockaddr_ll is a valid value of the type.
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_protocol = (libc::ETH_P_IP as u16).to_be();
    address.sll_ifindex = interface.cast_signed();
    // SAFETY: buffer and address live until the call returns, and their lengths are given.
    let sent = unsafe {
        libc::sendto(
            fd,
            frame.as_ptr().cast(),
            frame.len(),
            0,
            (&raw const address).cast(),
            size_of::<libc::sockaddr_ll>() as libc::socklen_t,
        )
    };
    usize::try_from(sent).map_err(|_negative| io::Error::last_os_error())
}

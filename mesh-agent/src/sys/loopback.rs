//! Sets up the loopback interface of a new network namespace with given addresses.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::os::fd::AsRawFd;

use socket2::{Domain, Socket, Type};

/// Loopback has the first index in every network namespace.
const INDEX: libc::c_int = 1;

/// Brings `lo` up in the current namespace and adds the addresses, each as a single host.
pub fn set_up(v4: &[Ipv4Addr], v6: &[Ipv6Addr]) -> io::Result<()> {
    let socket = Socket::new(Domain::IPV4, Type::DGRAM, None)?;
    let mut up = request("lo")?;
    up.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_RUNNING) as libc::c_short;
    change(&socket, libc::SIOCSIFFLAGS as libc::Ioctl, &mut up)?;
    for (number, address) in v4.iter().enumerate() {
        // Each address needs a label of its own.
        let name = format!("lo:{}", number + 1);
        let mut add = request(&name)?;
        add.ifr_ifru.ifru_addr = ipv4(*address);
        change(&socket, libc::SIOCSIFADDR as libc::Ioctl, &mut add)?;
        let mut mask = request(&name)?;
        mask.ifr_ifru.ifru_netmask = ipv4(Ipv4Addr::BROADCAST);
        change(&socket, libc::SIOCSIFNETMASK as libc::Ioctl, &mut mask)?;
    }
    if v6.is_empty() {
        return Ok(());
    }
    let socket = Socket::new(Domain::IPV6, Type::DGRAM, None)?;
    for address in v6 {
        let mut add = libc::in6_ifreq {
            ifr6_addr: libc::in6_addr {
                s6_addr: address.octets(),
            },
            ifr6_prefixlen: 128,
            ifr6_ifindex: INDEX,
        };
        change(&socket, libc::SIOCSIFADDR as libc::Ioctl, &mut add)?;
    }
    Ok(())
}

fn change<T>(socket: &Socket, command: libc::Ioctl, request: &mut T) -> io::Result<()> {
    // SAFETY: the callers pair each command with the structure that it reads, which lives until the
    // call returns.
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), command, std::ptr::from_mut(request)) };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

fn request(name: &str) -> io::Result<libc::ifreq> {
    // SAFETY: `ifreq` is plain old data, and all zeros are valid.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    if name.len() >= request.ifr_name.len() {
        return Err(io::Error::from(io::ErrorKind::InvalidInput));
    }
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from.cast_signed();
    }
    Ok(request)
}

/// Encodes a `sockaddr_in` (port, then address) in the bytes of a `sockaddr`.
fn ipv4(address: Ipv4Addr) -> libc::sockaddr {
    let mut data = [0; 14];
    for (to, from) in data[2..6].iter_mut().zip(address.octets()) {
        *to = from.cast_signed();
    }
    libc::sockaddr {
        sa_family: libc::AF_INET as libc::sa_family_t,
        sa_data: data,
    }
}

//! Tells the service manager that started this program about its state (sd_notify(3)).

use std::ffi::OsStr;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::{env, io};

const SOCKET: &str = "NOTIFY_SOCKET";

/// Reports readiness; does nothing without a service manager that waits for it.
pub fn ready() -> io::Result<()> {
    match env::var_os(SOCKET) {
        Some(path) => send(&path, b"READY=1"),
        None => Ok(()),
    }
}

fn send(path: &OsStr, message: &[u8]) -> io::Result<()> {
    // An abstract address begins with a zero, which an environment variable cannot have.
    let address = match path.as_bytes() {
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name)?,
        _ => SocketAddr::from_pathname(path)?,
    };
    UnixDatagram::unbound()?.send_to_addr(message, &address)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn message_reaches_sockets_with_and_without_a_path() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("notify");
        let by_path = UnixDatagram::bind(&path).unwrap();
        let name = format!("mesh-agent-test-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(&name).unwrap();
        let by_name = UnixDatagram::bind_addr(&address).unwrap();
        send(path.as_os_str(), b"READY=1").unwrap();
        send(OsStr::new(&format!("@{name}")), b"READY=1").unwrap();
        for socket in [by_path, by_name] {
            let mut buffer = [0; 16];
            let length = socket.recv(&mut buffer).unwrap();
            assert_eq!(&buffer[..length], b"READY=1");
        }
    }
}

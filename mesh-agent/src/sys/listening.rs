//! Whether a socket of a network namespace listens.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};

/// The limit on the part of a table that is read, some 20,000 sockets. Listening sockets come
/// first.
const MAX_BYTES: u64 = 4 << 20;

/// `TCP_LISTEN`, as the tables print it.
const LISTEN: &str = "0A";
/// The column of the state.
const STATE: usize = 3;

/// Returns whether a TCP socket listens in the network namespace of the calling thread; true for a
/// namespace with more sockets than are read.
pub fn is_any() -> io::Result<bool> {
    // The kernel has no second table without IPv6.
    for table in ["/proc/thread-self/net/tcp", "/proc/thread-self/net/tcp6"] {
        let file = match File::open(table) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(error),
        };
        if is_in(file, MAX_BYTES)? {
            return Ok(true);
        }
    }
    Ok(false)
}

fn is_in(table: impl Read, most: u64) -> io::Result<bool> {
    let mut table = table.take(most);
    for line in BufReader::new(table.by_ref()).lines() {
        if line?.split_ascii_whitespace().nth(STATE) == Some(LISTEN) {
            return Ok(true);
        }
    }
    Ok(table.limit() == 0)
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::thread;

    use nix::sched::{CloneFlags, unshare};

    use super::*;

    const HEADER: &str = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when\n";
    const ESTABLISHED: &str =
        "   1: 0100007F:1F90 0100007F:8A3C 01 00000000:00000000 00:00000000\n";
    const LISTENING: &str = "   0: 00000000:1F90 00000000:0000 0A 00000000:00000000 00:00000000\n";

    #[test]
    fn listening_sockets_are_found_by_their_state() {
        let is_in = |rows: &[&str], most| {
            let table = HEADER.to_owned() + &rows.concat();
            is_in(table.as_bytes(), most).unwrap()
        };
        assert!(!is_in(&[], 1 << 20));
        assert!(!is_in(&[ESTABLISHED], 1 << 20));
        assert!(is_in(&[LISTENING, ESTABLISHED], 1 << 20));
        assert!(is_in(&[ESTABLISHED, LISTENING], 1 << 20));
        // The unread part could contain one.
        assert!(is_in(&[ESTABLISHED, ESTABLISHED], 100));
    }

    #[test]
    fn only_sockets_of_the_own_namespace_count() {
        if !nix::unistd::geteuid().is_root() {
            return;
        }
        let _elsewhere = TcpListener::bind("127.0.0.1:0").unwrap();
        assert!(is_any().unwrap());
        let inside = thread::spawn(|| {
            unshare(CloneFlags::CLONE_NEWNET).unwrap();
            let before = is_any().unwrap();
            // Loopback is down; that does not matter to bind(2).
            let _here = TcpListener::bind("0.0.0.0:0").unwrap();
            (before, is_any().unwrap())
        });
        assert_eq!(inside.join().unwrap(), (false, true));
    }
}

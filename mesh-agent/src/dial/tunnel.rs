//! Copies standard input to a connection and the connection to standard output, until both ends
//! have closed. The end of one direction does not end the other.

use std::fs::File;
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::thread;

use nix::unistd::dup2_stdout;

pub(super) fn copy(stream: TcpStream) -> io::Result<()> {
    let sender = stream.try_clone()?;
    let sending = thread::spawn(move || send(&sender));
    receive(&stream)?;
    match sending.join() {
        Ok(sent) => sent,
        Err(_panic) => Err(io::Error::other("the sending thread panicked")),
    }
}

fn send(mut stream: &TcpStream) -> io::Result<()> {
    match io::copy(&mut io::stdin().lock(), &mut stream) {
        Ok(_) => {}
        // The peer has closed the connection, and wants no more input.
        Err(error) if is_closed(&error) => return Ok(()),
        Err(error) => return Err(error),
    }
    match stream.shutdown(Shutdown::Write) {
        Err(error) if error.kind() != io::ErrorKind::NotConnected => Err(error),
        _ => Ok(()),
    }
}

fn receive(mut stream: &TcpStream) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    let mut buffer = [0; 16 * 1024];
    loop {
        match stream.read(&mut buffer) {
            Ok(0) => break,
            Ok(count) => {
                stdout.write_all(&buffer[..count])?;
                stdout.flush()?;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    drop(stdout);
    // The reader of standard output sees its end, although this process may continue to send.
    Ok(dup2_stdout(File::options().write(true).open("/dev/null")?)?)
}

fn is_closed(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset
    )
}

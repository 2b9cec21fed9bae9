//! The same calls on sockets of the kernel and of the simulated network, with the same results.

#![expect(
    clippy::unwrap_used,
    reason = "a test panics when its requirements are not met"
)]

use std::io::{self, IoSlice, IoSliceMut, Read as _, Write as _};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use mesh_simnet::{Conditions, Network, Role, Stream};
use proptest::collection::vec;
use proptest::prelude::*;
use socket2::SockRef;
use tokio::io::AsyncWrite as _;

/// A call on one of the two sockets: 0 has called `connect`, 1 was accepted.
#[derive(Clone, Copy, Debug)]
enum Call {
    Write(usize, usize),
    Read(usize, usize),
    Finish(usize),
    ShutDown(usize),
    ResetOnClose(usize),
    Close(usize),
}

/// The result of a call, as an application sees it.
#[derive(Debug, PartialEq, Eq)]
enum Outcome {
    Done,
    Count(usize),
    Bytes(Vec<u8>),
    WouldBlock,
    Failed(Option<i32>),
    /// The socket is closed.
    Absent,
}

impl Call {
    /// The socket that the call is made on.
    fn at(self) -> usize {
        let (Self::Write(at, _)
        | Self::Read(at, _)
        | Self::Finish(at)
        | Self::ShutDown(at)
        | Self::ResetOnClose(at)
        | Self::Close(at)) = self;
        at
    }
}

struct Kernel([Option<TcpStream>; 2]);

struct Simulated {
    network: Network,
    streams: [Option<Stream>; 2],
}

impl Kernel {
    fn connect() -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let opener = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let acceptor = listener.accept().unwrap().0;
        for socket in [&opener, &acceptor] {
            socket.set_nonblocking(true).unwrap();
            socket.set_nodelay(true).unwrap();
        }
        Self([Some(opener), Some(acceptor)])
    }
}

impl Simulated {
    fn connect() -> Self {
        let network = Network::new(0, Conditions::IDEAL, false);
        let client = network.process(Ipv4Addr::new(192, 0, 2, 1).into(), Role::Application);
        let server = network.process(Ipv4Addr::new(192, 0, 2, 2).into(), Role::Application);
        let listener = server.listen(80).unwrap();
        let addr: SocketAddr = listener.local_addr();
        let mut connecting = pin!(client.connect(addr));
        let cx = &mut Context::from_waker(Waker::noop());
        assert!(connecting.as_mut().poll(cx).is_pending());
        network.run_due();
        let Poll::Ready(opener) = connecting.as_mut().poll(cx) else {
            panic!("the listener is there");
        };
        let Poll::Ready(accepted) = pin!(listener.accept()).poll(cx) else {
            panic!("a connection is there");
        };
        Self {
            network,
            streams: [Some(opener.unwrap()), Some(accepted.stream)],
        }
    }
}

impl Kernel {
    fn call(&mut self, call: Call, bytes: &[u8]) -> Outcome {
        let at = call.at();
        let Some(socket) = &mut self.0[at] else {
            return Outcome::Absent;
        };
        match call {
            Call::Write(..) => count(socket.write(bytes)),
            Call::Read(_, limit) => {
                let mut buffer = vec![0; limit];
                let read = socket.read(&mut buffer);
                self::bytes(read, buffer)
            }
            // Fails after the end of the connection, which tokio hides.
            Call::Finish(_) => {
                let _over = socket.shutdown(Shutdown::Write);
                Outcome::Done
            }
            Call::ShutDown(_) => {
                let _over = socket.shutdown(Shutdown::Both);
                Outcome::Done
            }
            Call::ResetOnClose(_) => {
                SockRef::from(&*socket)
                    .set_linger(Some(Duration::ZERO))
                    .unwrap();
                Outcome::Done
            }
            Call::Close(_) => {
                self.0[at] = None;
                Outcome::Done
            }
        }
    }
}

impl Simulated {
    fn call(&mut self, call: Call, bytes: &[u8]) -> Outcome {
        let at = call.at();
        let Some(stream) = &mut self.streams[at] else {
            return Outcome::Absent;
        };
        let cx = &mut Context::from_waker(Waker::noop());
        let outcome = match call {
            Call::Write(..) => count(stream.try_write_vectored(&[IoSlice::new(bytes)])),
            Call::Read(_, limit) => {
                let mut buffer = vec![0; limit];
                let read = stream.poll_read_vectored(&mut [IoSliceMut::new(&mut buffer)], cx);
                match read {
                    Poll::Ready(read) => self::bytes(read, buffer),
                    Poll::Pending => Outcome::WouldBlock,
                }
            }
            Call::Finish(_) => {
                let _done = pin!(stream).poll_shutdown(cx);
                Outcome::Done
            }
            Call::ShutDown(_) => {
                stream.shut_down();
                Outcome::Done
            }
            Call::ResetOnClose(_) => {
                stream.reset_on_close();
                Outcome::Done
            }
            Call::Close(_) => {
                self.streams[at] = None;
                Outcome::Done
            }
        };
        self.network.run_due();
        outcome
    }
}

fn count(written: io::Result<usize>) -> Outcome {
    match written {
        Ok(count) => Outcome::Count(count),
        Err(error) => failed(&error),
    }
}

fn bytes(read: io::Result<usize>, mut buffer: Vec<u8>) -> Outcome {
    match read {
        Ok(count) => {
            buffer.truncate(count);
            Outcome::Bytes(buffer)
        }
        Err(error) => failed(&error),
    }
}

fn failed(error: &io::Error) -> Outcome {
    if error.kind() == io::ErrorKind::WouldBlock {
        return Outcome::WouldBlock;
    }
    Outcome::Failed(error.raw_os_error())
}

fn calls() -> impl Strategy<Value = Vec<Call>> {
    let at = 0..2_usize;
    let call = prop_oneof![
        4 => (at.clone(), 1..2000_usize).prop_map(|(at, count)| Call::Write(at, count)),
        4 => (at.clone(), 1..2000_usize).prop_map(|(at, limit)| Call::Read(at, limit)),
        2 => at.clone().prop_map(Call::Finish),
        1 => at.clone().prop_map(Call::ShutDown),
        1 => at.clone().prop_map(Call::ResetOnClose),
        2 => at.prop_map(Call::Close),
    ];
    vec(call, 1..16)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    /// On the loopback interface, the kernel delivers within the call that sends.
    #[test]
    fn calls_have_the_results_of_the_kernel(calls in calls()) {
        let (mut kernel, mut simulated) = (Kernel::connect(), Simulated::connect());
        let mut next = 0_u8;
        for (number, &call) in calls.iter().enumerate() {
            let count = match call {
                Call::Write(_, count) => count,
                _ => 0,
            };
            let bytes: Vec<u8> = (0..count)
                .map(|_| {
                    next = next.wrapping_add(1);
                    next
                })
                .collect();
            let expected = kernel.call(call, &bytes);
            let outcome = simulated.call(call, &bytes);
            prop_assert_eq!(outcome, expected, "call {}: {:?}", number, call);
        }
    }
}

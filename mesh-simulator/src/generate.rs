//! [`generate`]: scripts from a seed: legal, odd and broken ones of every protocol.

mod endings;
mod grpc;
mod http1;
mod http2;
mod tcp;
mod tls;
mod websocket;

use rand::rngs::SmallRng;
use rand::{RngExt as _, SeedableRng as _};

use crate::script::{Bytes, Protocol, Script, Server, Step, Stream, Wait};

/// The script of a seed. The same seed always gives the same script.
pub fn generate(seed: u64) -> Script {
    let mut draft = Draft::new(seed);
    match draft.below(10) {
        0 => tls::write(&mut draft),
        1..3 => tcp::write(&mut draft),
        3..6 => http1::write(&mut draft),
        6..8 => http2::write(&mut draft),
        8 => grpc::write(&mut draft),
        _ => websocket::write(&mut draft),
    }
    draft.script()
}

/// A script of one connection that is being written.
struct Draft {
    random: SmallRng,
    protocol: Protocol,
    client: Vec<Step>,
    server: Vec<Step>,
    /// The server's steps for requests before, if it responds to each on whichever connection it
    /// arrives.
    responses: Option<Vec<Vec<Step>>>,
    signals: u32,
    /// The most content of a message that the windows of the peers allow in reasonable time.
    max_content: u32,
}

/// Who takes a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Who {
    Client,
    Server,
}

impl Who {
    fn peer(self) -> Self {
        match self {
            Self::Client => Self::Server,
            Self::Server => Self::Client,
        }
    }
}

impl Draft {
    fn new(seed: u64) -> Self {
        Self {
            random: SmallRng::seed_from_u64(seed),
            protocol: Protocol::Tcp,
            client: Vec::new(),
            server: Vec::new(),
            responses: None,
            signals: 0,
            max_content: u32::MAX,
        }
    }

    fn script(self) -> Script {
        let server = match self.responses {
            None => Server::Accepts(vec![self.server]),
            Some(mut responses) => {
                responses.push(self.server);
                Server::Responds(responses)
            }
        };
        Script {
            protocol: self.protocol,
            clients: vec![self.client],
            server,
        }
    }

    /// The client is about to send a request of HTTP/1.
    fn begin_request(&mut self) {
        match &mut self.responses {
            None => self.responses = Some(Vec::new()),
            Some(responses) => responses.push(std::mem::take(&mut self.server)),
        }
    }

    /// A number below `end`.
    fn below(&mut self, end: u32) -> u32 {
        self.random.random_range(0..end)
    }

    fn chance(&mut self, one_in: u32) -> bool {
        self.below(one_in) == 0
    }

    fn pick<'a, T: ?Sized>(&mut self, from: &[&'a T]) -> &'a T {
        from[self.below(from.len() as u32) as usize]
    }

    fn who(&mut self) -> Who {
        if self.chance(2) {
            Who::Client
        } else {
            Who::Server
        }
    }

    fn step(&mut self, who: Who, step: Step) {
        match who {
            Who::Client => self.client.push(step),
            Who::Server => self.server.push(step),
        }
    }

    fn client(&mut self, step: Step) {
        self.step(Who::Client, step);
    }

    fn server(&mut self, step: Step) {
        self.step(Who::Server, step);
    }

    /// A size with many small ones, and the ones beside limits that programs have.
    fn size(&mut self) -> u32 {
        match self.below(8) {
            0 => 0,
            1 => 1,
            2..5 => self.random.random_range(2..200),
            5 => self.random.random_range(200..20_000),
            6 => {
                let limit = 1_u32 << self.random.random_range(8..18_u32);
                limit + self.below(3) - 1
            }
            _ => self.random.random_range(20_000..200_000),
        }
    }

    /// Content of a size.
    fn content(&mut self, size: u32) -> Bytes {
        let letter = b'a' + self.below(26) as u8;
        Bytes::repeated([letter], size)
    }

    /// How a step sends: mostly at once. Large content in small pieces would take long.
    fn piece(&mut self, size: u64) -> Option<usize> {
        if !self.chance(4) || size == 0 {
            return None;
        }
        let smallest = (size as usize).div_ceil(200);
        Some(smallest.max(self.random.random_range(1..64)))
    }

    fn send(&mut self, who: Who, bytes: Bytes) {
        let piece = self.piece(bytes.len());
        self.step(who, Step::Send { bytes, piece });
    }

    /// A peer waits until the other has come to this point.
    fn meet(&mut self, from: Who) {
        self.signals += 1;
        let name = format!("s{}", self.signals);
        self.step(from, Step::Signal(name.clone()));
        self.step(from.peer(), Step::Wait(Wait::Signal(name)));
    }

    fn pause(&mut self, who: Who) {
        let milliseconds = u64::from(self.random.random_range(1..300_u32));
        self.step(who, Step::Pause(milliseconds));
    }

    /// Ends an exchange whose bytes have all arrived.
    fn end_connection(&mut self) {
        let who = self.who();
        match self.below(6) {
            0 => self.step(who, Step::Close),
            1 => {
                self.step(who, Step::Finish);
                self.step(who.peer(), Step::Wait(Wait::End));
                self.step(who.peer(), Step::Finish);
            }
            2 => {
                // Both have received all: the reset is the only thing in flight.
                self.meet(who.peer());
                self.step(who, Step::Reset);
            }
            3 => {
                self.step(who, Step::Close);
                self.step(who.peer(), Step::Wait(Wait::End));
                self.step(who.peer(), Step::Close);
            }
            // The connection stays open.
            _ => {}
        }
    }
}

/// The stream of the n-th request, from 0.
fn nth(n: u32) -> Stream {
    Stream::Nth(n + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scripts_are_valid_and_of_every_protocol() {
        let mut seen = [0; 3];
        for seed in 0..400 {
            let script = generate(seed);
            seen[script.protocol as usize] += 1;
            let text = script.to_string();
            assert_eq!(Script::parse(&text).as_ref(), Ok(&script), "{text}");
        }
        assert!(seen.iter().all(|count| *count > 40), "{seen:?}");
    }

    #[test]
    fn same_seed_gives_same_script() {
        for seed in 0..50 {
            assert_eq!(generate(seed), generate(seed));
        }
    }
}

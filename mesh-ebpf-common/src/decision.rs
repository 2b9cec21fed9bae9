//! A decision of a kernel program about a connection of a traced pod, and the message that carries
//! it out of the kernel.
//!
//! The message is `decision=` and the bytes of a [`Decision`] in hexadecimal digits. One argument
//! of fixed size keeps the log call within the stack and the instructions that the verifier allows;
//! a program has 512 bytes of stack, and each argument would take its own.

use core::mem::offset_of;

use crate::address::Address;
use crate::counter::Counter;

/// What precedes the digits of a message.
pub const MESSAGE_KEY: &str = "decision=";

/// The length of a [`Decision`] in bytes.
pub const SIZE: usize = 72;

/// The program that decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Hook {
    /// `connect`, or `sock_ops` on behalf of it.
    Connect = 1,
    /// `steer`.
    Lookup = 2,
    /// `sock_ops`, at the end of a handshake.
    Accept = 3,
}

/// One end of a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Endpoint {
    /// The address.
    pub address: Address,
    /// The port; 0 for an endpoint that is not known.
    pub port: u16,
}

/// A decision, in the layout of its message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Decision {
    /// The cookie of the pod's network namespace.
    pub cookie: u64,
    /// `bpf_ktime_get_ns`.
    pub monotonic_ns: u64,
    /// The client; unknown before its port is assigned.
    pub source: Address,
    /// The address that the client called.
    pub destination: Address,
    /// The proxy's listener; unknown when the connection is not redirected.
    pub target: Address,
    /// The port of `source`.
    pub source_port: u16,
    /// The port of `destination`.
    pub destination_port: u16,
    /// The port of `target`.
    pub target_port: u16,
    /// A [`Hook`].
    pub hook: u8,
    /// The index of a [`Counter`].
    pub verdict: u8,
}

const _: () = {
    // Integers only, and no padding.
    assert!(size_of::<Decision>() == SIZE && align_of::<Decision>() == 8);
    assert!(offset_of!(Decision, target) == 48);
    assert!(offset_of!(Decision, verdict) == SIZE - 1);
};

impl Endpoint {
    /// An endpoint that is not known.
    pub const UNKNOWN: Endpoint = Endpoint {
        address: Address::UNSPECIFIED,
        port: 0,
    };

    /// Returns an endpoint.
    #[inline(always)]
    pub const fn new(address: Address, port: u16) -> Endpoint {
        Endpoint { address, port }
    }
}

impl Decision {
    /// Returns a decision that has no time yet.
    #[inline(always)]
    pub const fn new(
        hook: Hook,
        cookie: u64,
        verdict: Counter,
        source: Endpoint,
        destination: Endpoint,
        target: Endpoint,
    ) -> Decision {
        Decision {
            cookie,
            monotonic_ns: 0,
            source: source.address,
            destination: destination.address,
            target: target.address,
            source_port: source.port,
            destination_port: destination.port,
            target_port: target.port,
            hook: hook as u8,
            verdict: verdict as u8,
        }
    }

    /// Returns the bytes of the message.
    #[inline(always)]
    pub const fn bytes(&self) -> &[u8] {
        // SAFETY: the structure has no padding, and the slice borrows it.
        unsafe { core::slice::from_raw_parts(core::ptr::from_ref(self).cast(), SIZE) }
    }

    /// Reads a message; `None` if it has another form, or names a hook or verdict of another
    /// version.
    pub fn from_message(message: &str) -> Option<Decision> {
        let digits = message.strip_prefix(MESSAGE_KEY)?.as_bytes();
        if digits.len() != 2 * SIZE {
            return None;
        }
        let mut bytes = [0; SIZE];
        for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
            let [high, low] = pair else { return None };
            *byte = digit(*high)? << 4 | digit(*low)?;
        }
        // SAFETY: every sequence of bytes is a valid structure of integers.
        let decision: Decision = unsafe { core::mem::transmute(bytes) };
        decision.hook().and(decision.verdict())?;
        Some(decision)
    }

    /// Returns the hook.
    pub const fn hook(&self) -> Option<Hook> {
        match self.hook {
            1 => Some(Hook::Connect),
            2 => Some(Hook::Lookup),
            3 => Some(Hook::Accept),
            _ => None,
        }
    }

    /// Returns the verdict.
    pub fn verdict(&self) -> Option<Counter> {
        Counter::ALL.get(usize::from(self.verdict)).copied()
    }

    /// Returns the client.
    pub const fn source(&self) -> Option<Endpoint> {
        known(self.source, self.source_port)
    }

    /// Returns the address that the client called; its port may be 0.
    pub const fn destination(&self) -> Endpoint {
        Endpoint::new(self.destination, self.destination_port)
    }

    /// Returns the proxy's listener.
    pub const fn target(&self) -> Option<Endpoint> {
        known(self.target, self.target_port)
    }
}

const fn known(address: Address, port: u16) -> Option<Endpoint> {
    match port {
        0 => None,
        port => Some(Endpoint::new(address, port)),
    }
}

fn digit(character: u8) -> Option<u8> {
    match character {
        b'0'..=b'9' => Some(character - b'0'),
        b'a'..=b'f' => Some(character - b'a' + 10),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use core::fmt::Write;
    use core::net::IpAddr;

    use super::*;

    fn endpoint(address: &str, port: u16) -> Endpoint {
        Endpoint::new(Address::from(address.parse::<IpAddr>().unwrap()), port)
    }

    fn decision() -> Decision {
        Decision {
            monotonic_ns: 1_234,
            ..Decision::new(
                Hook::Accept,
                7,
                Counter::OutboundRedirected,
                endpoint("10.1.0.5", 40_000),
                endpoint("2001:db8::1", 80),
                Endpoint::UNKNOWN,
            )
        }
    }

    /// Formats as aya-log does.
    fn message(decision: &Decision) -> String {
        let mut message = MESSAGE_KEY.to_owned();
        for byte in decision.bytes() {
            write!(message, "{byte:02x}").unwrap();
        }
        message
    }

    #[test]
    fn message_round_trips() {
        let sent = decision();
        let read = Decision::from_message(&message(&sent)).unwrap();
        assert_eq!(read, sent);
        assert_eq!(read.hook(), Some(Hook::Accept));
        assert_eq!(read.verdict(), Some(Counter::OutboundRedirected));
        assert_eq!(read.source(), Some(endpoint("10.1.0.5", 40_000)));
        assert_eq!(read.destination(), endpoint("2001:db8::1", 80));
        assert_eq!(read.target(), None);
    }

    #[test]
    fn other_messages_are_not_decisions() {
        let valid = message(&decision());
        let unknown = |change: fn(&mut Decision)| {
            let mut changed = decision();
            change(&mut changed);
            message(&changed)
        };
        for text in [
            "",
            "decision=",
            "decision",
            &valid[1..],
            &valid[..valid.len() - 1],
            &valid[..valid.len() - 2],
            &format!("{valid}0"),
            &format!("{valid}00"),
            &valid.replace("decision=", "event="),
            &valid.replace("decision=0", "decision=g"),
            &valid.replace("decision=0", "decision=-"),
            &valid.replace("decision=07", "decision=ä"),
            &valid.replace("decision=07", "decision=0A"),
            &unknown(|decision| decision.hook = 0),
            &unknown(|decision| decision.hook = 4),
            &unknown(|decision| decision.verdict = Counter::COUNT as u8),
        ] {
            assert_eq!(Decision::from_message(text), None, "{text}");
        }
    }

    /// The macro takes a literal only.
    #[test]
    fn kernel_programs_write_this_message() {
        let program = include_str!("../../mesh-ebpf/src/trace.rs");
        assert!(program.contains(&format!("\"{MESSAGE_KEY}{{:x}}\"")));
    }
}

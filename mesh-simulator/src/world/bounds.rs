//! [`exceeded`]: what the proxies of a run may use.

use mesh_simnet::usage::Usage;

use super::{Position, Setting};
use crate::requests::Requests;
use crate::script::{Protocol, Script};

/// A proxy without connections: the buffer that it reads into, and spare ones.
const BASE: usize = 512 * KIB;
/// A connection of the client: 66 KiB before authorization, the input and the output of both of its
/// sides, and their TLS.
const CONNECTION: usize = 512 * KIB;
/// A connection of HTTP/2, in addition: response data that the client does not read.
const HTTP2: usize = 4096 * KIB;
/// A request: content that neither peer reads, and the fields.
const REQUEST: usize = 128 * KIB;
/// The part of a body that a retry policy or a mirror keeps.
const COPY: usize = 64 * KIB;

const KIB: usize = 1024;

/// The operations and the allocated bytes of a run whose proxies read nothing.
const IDLE_CALLS: usize = 100_000;
const IDLE_ALLOCATED: usize = 64 << 20;
/// The most operations for a byte that a proxy reads: each may come alone, and leave as a chunk
/// whose framing is written byte by byte.
const CALLS: usize = 16;
/// The most bytes that are allocated for one: a buffer of 2 KiB for each of both sides.
const ALLOCATED: usize = 8 * KIB;

/// The bounds of docs/operations/limits.md that a run has exceeded. `held` is what the proxies held
/// at its beginning.
pub(super) fn exceeded(
    script: &Script,
    setting: &Setting,
    held: usize,
    used: Usage,
) -> Option<String> {
    let Setting {
        position, settings, ..
    } = setting;
    let proxies =
        usize::from(position.has_client_proxy()) + usize::from(position.has_server_proxy());
    let requests = Requests::of(script).len();
    let copies = settings.features.len().min(2) * COPY;
    let connection = match script.protocol {
        Protocol::Tcp | Protocol::Http1 => CONNECTION,
        Protocol::Http2 => CONNECTION + HTTP2,
    };
    let most = BASE + script.clients.len() * connection + requests * (REQUEST + copies);
    let most = most * proxies;
    let grown = used.peak.saturating_sub(held);
    let Usage {
        allocated,
        read,
        calls,
        ..
    } = used;
    if *position == Position::Direct {
        None
    } else if grown > most {
        Some(format!(
            "{grown} bytes held by the proxies, more than {most}"
        ))
    } else if calls > IDLE_CALLS + CALLS * read {
        Some(format!("{calls} operations for {read} bytes"))
    } else if allocated > IDLE_ALLOCATED + ALLOCATED * read {
        Some(format!("{allocated} bytes allocated for {read} bytes"))
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::{Place, setting};

    #[test]
    fn memory_and_work_are_bounded_by_what_the_peers_do() {
        let script = Script::parse("protocol tcp\nclient:\nclient:\nserver:\n").expect("a script");
        let exceeded = |place, used| {
            let setting = setting(&script, 0, 0, place);
            exceeded(&script, &setting, 1000, used)
        };
        let both = Place::detecting(Position::Both);
        let within = Usage {
            peak: 1000 + 2 * (BASE + 2 * CONNECTION),
            allocated: IDLE_ALLOCATED + 10 * ALLOCATED,
            read: 10,
            calls: IDLE_CALLS + 10 * CALLS,
            held: 0,
        };
        assert_eq!(exceeded(both, within), None);
        let (peak, calls) = (within.peak + 1, within.calls + 1);
        let allocated = within.allocated + 1;
        for (beyond, begin) in [
            (Usage { peak, ..within }, "3145729 bytes held"),
            (Usage { calls, ..within }, "100161 operations"),
            (
                Usage {
                    allocated,
                    ..within
                },
                "67190785 bytes allocated",
            ),
        ] {
            let found = exceeded(both, beyond).expect("a bound is exceeded");
            assert!(found.starts_with(begin), "{found}");
            assert_eq!(exceeded(Place::DIRECT, beyond), None);
        }
    }
}

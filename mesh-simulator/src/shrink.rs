//! [`shrink`]: the smallest script that still fails, by delta debugging: parts are left out one
//! after the other, large ones first, for as long as the failure stays.

use crate::script::{Bytes, Http2Step, Script, Server, Step};

/// The most scripts that are tried.
const MAX_TRIES: usize = 600;

/// Returns a script that `fails` and is at most as large as the given one, which fails.
pub fn shrink(script: &Script, mut fails: impl FnMut(&Script) -> bool) -> Script {
    let mut smallest = script.clone();
    let mut tries = 0;
    loop {
        let mut is_smaller = false;
        for change in changes(&smallest) {
            if tries == MAX_TRIES {
                return smallest;
            }
            let Some(candidate) = change.apply(&smallest) else {
                continue;
            };
            tries += 1;
            if fails(&candidate) {
                smallest = candidate;
                is_smaller = true;
                break;
            }
        }
        if !is_smaller {
            return smallest;
        }
    }
}

/// A way to make a script smaller.
#[derive(Clone, Copy, Debug)]
enum Reduction {
    /// Leaves out a client's or server's connection.
    Part(usize),
    /// Leaves out steps of a part.
    Steps {
        part: usize,
        from: usize,
        count: usize,
    },
    /// Halves the bytes of a step.
    Halve { part: usize, step: usize },
    /// Sends the bytes of a step at once.
    Whole { part: usize, step: usize },
}

/// All ways, the ones that leave out most first.
fn changes(script: &Script) -> Vec<Reduction> {
    let lengths: Vec<usize> = script.parts().map(Vec::len).collect();
    let mut all: Vec<Reduction> = (0..lengths.len()).map(Reduction::Part).collect();
    let longest = lengths.iter().copied().max().unwrap_or_default();
    let mut count = longest.next_power_of_two();
    while count > 0 {
        for (part, length) in lengths.iter().copied().enumerate() {
            let starts = (0..length).step_by(count).rev();
            let fitting = starts.filter(|_| count <= length);
            all.extend(fitting.map(|from| Reduction::Steps { part, from, count }));
        }
        count /= 2;
    }
    for (part, length) in lengths.iter().copied().enumerate() {
        all.extend((0..length).map(|step| Reduction::Whole { part, step }));
        all.extend((0..length).map(|step| Reduction::Halve { part, step }));
    }
    all
}

impl Reduction {
    /// `None` if the script would stay the same, or become invalid.
    fn apply(self, script: &Script) -> Option<Script> {
        let mut script = script.clone();
        match self {
            Self::Part(part) => remove_part(&mut script, part)?,
            Self::Steps { part, from, count } => {
                let steps = part_mut(&mut script, part)?;
                let end = (from + count).min(steps.len());
                steps.drain(from..end);
            }
            Self::Halve { part, step } => halve(part_mut(&mut script, part)?.get_mut(step)?)?,
            Self::Whole { part, step } => match part_mut(&mut script, part)?.get_mut(step)? {
                Step::Send { piece, .. } if piece.is_some() => *piece = None,
                _ => return None,
            },
        }
        Some(script)
    }
}

fn remove_part(script: &mut Script, part: usize) -> Option<()> {
    let clients = script.clients.len();
    match &mut script.server {
        Server::Accepts(servers) | Server::Responds(servers)
            if part >= clients && servers.len() > 1 =>
        {
            servers.remove(part - clients);
        }
        _ if part < clients && clients > 1 => {
            script.clients.remove(part);
        }
        _ => return None,
    }
    Some(())
}

fn part_mut(script: &mut Script, part: usize) -> Option<&mut Vec<Step>> {
    let clients = script.clients.len();
    if part < clients {
        return script.clients.get_mut(part);
    }
    match &mut script.server {
        Server::Accepts(servers) | Server::Responds(servers) => servers.get_mut(part - clients),
        Server::Refuses => None,
    }
}

fn halve(step: &mut Step) -> Option<()> {
    match step {
        Step::Send { bytes, .. } | Step::Http2(Http2Step::Data { bytes, .. }) => halve_bytes(bytes),
        _ => None,
    }
}

fn halve_bytes(bytes: &mut Bytes) -> Option<()> {
    let part = bytes.0.last_mut()?;
    if part.times > 1 {
        part.times /= 2;
    } else if part.text.len() > 1 {
        part.text.truncate(part.text.len() / 2);
    } else if bytes.0.len() > 1 {
        bytes.0.pop();
    } else {
        return None;
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: &str = "\
protocol tcp

client:
  send pieces=3 \"a\" * 1000
  pause 1
  wait bytes 3
  finish

client:
  close

server:
  send \"xyz\"
  wait end
  reset
  close
";

    #[test]
    fn what_the_failure_needs_stays() {
        let script = Script::parse(LONG).expect("a script");
        let needs = |script: &Script| {
            let text = script.to_string();
            text.contains("finish") && text.contains("reset") && text.contains("send \"a\"")
        };
        let smallest = shrink(&script, needs).to_string();
        let expected = "protocol tcp\n\nclient:\n  send \"a\"\n  finish\n\nserver:\n  reset\n";
        assert_eq!(smallest, expected);
    }

    #[test]
    fn number_of_tries_is_bounded() {
        let script = Script::parse(LONG).expect("a script");
        let mut tries = 0;
        let same = shrink(&script, |_| {
            tries += 1;
            false
        });
        assert_eq!(same, script);
        assert!(tries <= MAX_TRIES);
        let mut tries = 0;
        let steps = "  pause 1\n".repeat(5000);
        let long = Script::parse(&format!("protocol tcp\nclient:\n{steps}server:\n")).unwrap();
        shrink(&long, |_| {
            tries += 1;
            false
        });
        assert_eq!(tries, MAX_TRIES);
    }
}

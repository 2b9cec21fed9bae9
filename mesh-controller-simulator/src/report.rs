//! What a run shows, in the order of time.

use std::time::Duration;

use crate::api::Outcome;
use crate::process::PROCESSES;
use crate::record::Record;
use crate::script::{Answer, Script};

/// The longest line.
const WIDTH: usize = 300;

/// Returns a line for each step of the script, each change of the served objects, each request that
/// did not get a right response, each claim of the Lease, each write of a status, and each new
/// state of a client.
pub fn timeline(script: &Script, record: &Record) -> Vec<String> {
    let mut lines: Vec<(Duration, String)> = Vec::new();
    for step in &script.steps {
        lines.push((step.at, format!("script      {}", step.action)));
    }
    for change in &record.changes {
        let generation = change
            .generation
            .map_or("gone".to_owned(), |it| it.to_string());
        lines.push((
            change.at,
            format!("serves      {}: {generation}", change.id),
        ));
    }
    for request in &record.requests {
        let is_regular = match request.outcome {
            Outcome::Status(code) => code < 400,
            Outcome::Faulty(Answer::Late(_)) => true,
            Outcome::Pending | Outcome::Faulty(_) => false,
        };
        if !is_regular {
            let (class, path, outcome) = (request.class, &request.path, request.outcome);
            let process = name(request.process);
            lines.push((
                request.at,
                format!("{process} {class:?} {path}: {outcome:?}"),
            ));
        }
    }
    for claim in &record.claims {
        let what = if claim.holds { "claims" } else { "releases" };
        let (process, sent) = (name(claim.process), claim.sent);
        lines.push((
            claim.at,
            format!("{process} {what} Lease {}, sent at {sent:?}", claim.lease),
        ));
    }
    for write in &record.writes {
        let process = name(write.process);
        lines.push((write.at, format!("{process} writes {write}")));
    }
    for seen in &record.clients {
        for observation in &seen.observed {
            let process = name(seen.process);
            let state = match observation.state.code() {
                Some(code) => format!("refused: {code:?}"),
                None => format!("generations {:?}", observation.state.generations()),
            };
            let text = format!("{process} sends {:?}: {state}", seen.target);
            lines.push((observation.at, text));
        }
    }
    lines.sort_by_key(|(at, _)| *at);
    let line = |(at, text): (Duration, String)| {
        let line = format!("{:>9.3} s  {text}", at.as_secs_f64());
        line.chars().take(WIDTH).collect()
    };
    lines.into_iter().map(line).collect()
}

/// Returns the first line of two runs of a script that differs.
pub fn first_difference(script: &Script, [first, second]: [&Record; 2]) -> Option<String> {
    let [first, second] = [first, second].map(|record| {
        let requests = record
            .requests
            .iter()
            .map(|request| (request.at, format!("{request:?}")));
        let mut lines: Vec<_> = requests.collect();
        let lines_of = timeline(script, record).into_iter();
        lines.sort();
        let requests = lines.into_iter().map(|(_, line)| line);
        requests.chain(lines_of).collect::<Vec<String>>()
    });
    let mut pairs = first.iter().zip(&second);
    let differing = pairs.find(|(first, second)| first != second);
    differing.map(|(first, second)| format!("{first}\n{second}"))
}

fn name(process: usize) -> String {
    match PROCESSES.get(process) {
        Some(controller) => format!("{controller:?} {process}"),
        None => format!("fresh {process}"),
    }
}

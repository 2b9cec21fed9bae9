//! Renders the numbers of all rounds as JSON, for independent evaluation.

use anyhow::Context;
use serde_json::{Map, Value, json};

use super::{Measured, Report, describe_goal, time_shares};
use crate::benchmark::report::table::verdict;
use crate::benchmark::row::{GoalResult, Round, Row};

pub(super) fn text(report: &Report) -> anyhow::Result<String> {
    let pairs = |pairs: &[(&'static str, String)]| -> Map<String, Value> {
        let pairs = pairs.iter();
        pairs
            .map(|(name, value)| ((*name).to_owned(), json!(value)))
            .collect()
    };
    let value = json!({
        "command": report.command,
        "caveats": report.caveats,
        "machine": pairs(&report.machine),
        "versions": pairs(&report.versions),
        "units": "seconds, bytes, operations; CPU is seconds per operation",
        "workloads": report.rows.iter().map(workload).collect::<Vec<_>>(),
    });
    let mut text = serde_json::to_string_pretty(&value).context("write JSON")?;
    text.push('\n');
    Ok(text)
}

fn workload(measured: &Measured) -> Value {
    let workload = measured.workload;
    let mut value = json!({
        "name": workload.name,
        "title": workload.title,
        "seconds": measured.took.as_secs(),
    });
    match &measured.outcome {
        Ok(row) => {
            value["goals"] = row
                .goal_results()
                .iter()
                .map(|result| goal(result, row))
                .collect();
            value["rounds"] = row.rounds.iter().map(|seen| round(seen, row)).collect();
        }
        Err(error) => value["error"] = json!(format!("{error:#}")),
    }
    if let Some(profile) = &measured.profile {
        value["profile of ours"] = time_shares::json(profile);
    }
    value
}

fn goal(result: &GoalResult, row: &Row) -> Value {
    json!({
        "goal": describe_goal(result.goal, row.workload.unit),
        "median": result.estimate.median,
        "interval": [result.estimate.low, result.estimate.high],
        "verdict": verdict(result.status),
    })
}

fn round(round: &Round, row: &Row) -> Value {
    let samples = round.samples.iter().map(|(sut, sample)| {
        let numbers = sample
            .iter()
            .map(|(metric, value)| (metric.name().to_owned(), json!(value)));
        (sut.name().to_owned(), Value::Object(numbers.collect()))
    });
    let failed = round.failed.iter();
    let failed = failed.map(|(sut, count)| (sut.name().to_owned(), json!(count)));
    json!({
        "samples": Value::Object(samples.collect()),
        "counted": row.with_noisy || round.noise.is_quiet(),
        "steal": round.noise.steal,
        "others": round.noise.others,
        "failed": Value::Object(failed.collect()),
    })
}

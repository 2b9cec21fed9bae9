//! Parses the report of `mesh-bench load`.

use anyhow::Context;
use serde_json::Value;

use super::Outcome;

pub(in super::super) fn read(output: &str) -> anyhow::Result<Outcome> {
    let report: Value = serde_json::from_str(output.trim()).context("parse the report as JSON")?;
    let number = |name: &str| report[name].as_f64();
    let micros = |name: &str| number(name).map(|micros| micros / 1e6);
    Ok(Outcome {
        operations: number("operations").context("no operations")?,
        failed: report["failed"].as_u64().context("no failed")?,
        seconds: number("seconds").context("no seconds")?,
        p50: micros("p50"),
        p99: micros("p99"),
        p999: micros("p999"),
        stalled: report["stalled"].as_u64(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bench_load_output_is_parsed() {
        let output = r#"{"failed":1,"operations":10,"p50":250.0,"p99":null,"p999":null,"seconds":2.0,"stalled":3}"#;
        let outcome = read(output).expect("all is there");
        assert_eq!((outcome.operations, outcome.failed), (10.0, 1));
        assert_eq!(outcome.stalled, Some(3));
        assert_eq!((outcome.p50, outcome.p99), (Some(250e-6), None));
        assert!(read("{}").is_err());
    }
}

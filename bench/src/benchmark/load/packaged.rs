//! Parses the output of the packaged load generators: wrk, h2load, iperf3.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use serde_json::Value;

use super::Outcome;
use crate::testbed::DIRECTORY;

/// Writes the file with the gRPC message of 100 bytes that h2load sends.
pub(super) fn grpc_message() -> anyhow::Result<PathBuf> {
    const BODY: u8 = 95;
    let path = Path::new(DIRECTORY).join("message");
    let mut message = vec![0, 0, 0, 0, BODY];
    message.resize(message.len() + usize::from(BODY), b'x');
    fs::write(&path, message)?;
    Ok(path)
}

/// One in this number of requests has a sampled trace context.
pub(in super::super) const SAMPLED: u32 = 100;

/// Writes a script for wrk that sends a trace context with each request.
pub(super) fn traced_requests() -> anyhow::Result<PathBuf> {
    let path = Path::new(DIRECTORY).join("traced.lua");
    fs::write(&path, traced_script())?;
    Ok(path)
}

/// Writes a script for wrk that sends a body of `size` bytes with each request.
pub(super) fn bodies(size: usize) -> anyhow::Result<PathBuf> {
    let path = Path::new(DIRECTORY).join(format!("body-{size}.lua"));
    let script = format!("wrk.method = \"POST\"\nwrk.body = string.rep(\"x\", {size})\n");
    fs::write(&path, script)?;
    Ok(path)
}

/// All requests but the sampled ones are the same, and therefore formatted once.
fn traced_script() -> String {
    const NAME: &str = "traceparent";
    const TRACE: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736";
    format!(
        "local sent, plain = 0, nil
local function traced(span, flags)
    local context = string.format(\"{TRACE}-%016x-%s\", span, flags)
    return wrk.format(\"GET\", \"/\", {{ [\"{NAME}\"] = context }})
end
function request()
    plain = plain or traced(1, \"00\")
    sent = sent + 1
    if sent % {SAMPLED} == 0 then
        return traced(sent, \"01\")
    end
    return plain
end
"
    )
}

pub(super) fn wrk(output: &str) -> anyhow::Result<Outcome> {
    let line = |part: &str| output.lines().find(|line| line.contains(part));
    // `  48123 requests in 1.00s, 9.87MB read`
    let summary = line(" requests in ").context("no summary")?;
    let mut words = summary.split_whitespace();
    let operations = words.next().and_then(|word| word.parse().ok());
    let seconds = words
        .nth(2)
        .and_then(|word| time(word.trim_end_matches(',')));
    let percentile = |share: &str| {
        let mut lines = output.lines().map(str::trim);
        time(lines.find_map(|line| line.strip_prefix(share))?.trim())
    };
    // `  Socket errors: connect 0, read 0, write 0, timeout 0`, `  Non-2xx or 3xx responses: 12`
    let numbers = |text: &str| -> u64 {
        text.split(|c: char| !c.is_ascii_digit())
            .filter_map(|number| number.parse::<u64>().ok())
            .sum()
    };
    let failed = line("Socket errors:").map_or(0, numbers)
        + line("Non-2xx")
            .and_then(|line| line.rsplit(':').next())
            .map_or(0, numbers);
    Ok(Outcome {
        operations: operations.context("no number of requests")?,
        failed,
        seconds: seconds.context("no duration")?,
        p50: percentile("50%"),
        p99: percentile("99%"),
        ..Outcome::default()
    })
}

pub(super) fn h2load(output: &str) -> anyhow::Result<Outcome> {
    let after = |prefix: &str| output.lines().find_map(|line| line.strip_prefix(prefix));
    // `finished in 1.00s, 16700.00 req/s, 2.61MB/s`
    let finished = after("finished in ").context("no summary")?;
    let seconds = finished.split(',').next().and_then(time);
    // `requests: 16700 total, 16828 started, 16700 done, 16700 succeeded, 0 failed, …`
    let requests = after("requests: ").context("no count of requests")?;
    let count = |what: &str| -> Option<u64> {
        let counts = requests.split(", ");
        let count = counts.filter_map(|part| part.split_once(' '));
        count
            .filter(|(_, name)| *name == what)
            .find_map(|(number, _)| number.parse().ok())
    };
    let succeeded = count("succeeded").context("no count of succeeded requests")?;
    if succeeded == 0 {
        bail!("no request succeeded");
    }
    Ok(Outcome {
        operations: succeeded as f64,
        failed: count("failed").context("no count of failed requests")?,
        seconds: seconds.context("no duration")?,
        ..Outcome::default()
    })
}

pub(super) fn iperf3(output: &str) -> anyhow::Result<Outcome> {
    let report: Value = serde_json::from_str(output).context("parse the output as JSON")?;
    if let Some(error) = report["error"].as_str() {
        bail!("{error}");
    }
    let received = &report["end"]["sum_received"];
    Ok(Outcome {
        operations: received["bytes"].as_f64().context("no bytes")? / 1e9,
        seconds: received["seconds"].as_f64().context("no duration")?,
        ..Outcome::default()
    })
}

/// Parses a duration as wrk and h2load write it, into seconds: `123.00us`, `1.20ms`, `1.00s`,
/// `1.00m`.
fn time(text: &str) -> Option<f64> {
    let split = text.find(|c: char| c.is_alphabetic())?;
    let (number, unit) = text.split_at(split);
    let unit = match unit {
        "us" => 1e-6,
        "ms" => 1e-3,
        "s" => 1.0,
        "m" => 60.0,
        _ => return None,
    };
    Some(number.parse::<f64>().ok()? * unit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_with_units_are_parsed() {
        for (text, expected) in [
            ("250.00us", Some(250e-6)),
            ("1.50ms", Some(1.5e-3)),
            ("2.00s", Some(2.0)),
            ("1.00m", Some(60.0)),
            ("12", None),
        ] {
            assert_eq!(time(text), expected, "{text}");
        }
    }

    #[test]
    fn wrk_output_is_parsed() {
        let output = "Running 1s test @ http://10.96.0.1:8001/
  1 threads and 64 connections
  Thread Stats   Avg      Stdev     Max   +/- Stdev
    Latency     1.39ms  210.00us   9.10ms   93.00%
    Req/Sec    46.50k     1.20k   48.00k    70.00%
  Latency Distribution
     50%    1.35ms
     75%    1.41ms
     90%    1.60ms
     99%    2.40ms
  46512 requests in 1.00s, 10.91MB read
  Socket errors: connect 0, read 2, write 0, timeout 1
  Non-2xx or 3xx responses: 4
Requests/sec:  46512.31
Transfer/sec:     10.91MB
";
        let outcome = wrk(output).expect("wrk's output");
        let expected = Outcome {
            operations: 46512.0,
            failed: 7,
            seconds: 1.0,
            p50: Some(1.35e-3),
            p99: Some(2.4e-3),
            ..Outcome::default()
        };
        assert_eq!(outcome, expected);
        assert!(wrk("unable to connect to 10.96.0.1:8001 Connection refused").is_err());
    }

    #[test]
    fn h2load_output_is_parsed() {
        let output = "starting benchmark...
finished in 2.00s, 24600.50 req/s, 3.61MB/s
requests: 49201 total, 49329 started, 49201 done, 49199 succeeded, 2 failed, 0 errored, 0 timeout
status codes: 49199 2xx, 0 3xx, 0 4xx, 2 5xx
";
        let outcome = h2load(output).expect("h2load's output");
        assert_eq!((outcome.operations, outcome.failed), (49199.0, 2));
        assert_eq!(outcome.seconds, 2.0);
        assert!(h2load(&output.replace("49199 succeeded", "0 succeeded")).is_err());
    }

    #[test]
    fn iperf3_output_is_parsed() {
        let output = r#"{"start":{},"end":{"sum_received":{"seconds":2.5,"bytes":5000000000}}}"#;
        let outcome = iperf3(output).expect("iperf3's output");
        assert_eq!((outcome.operations, outcome.seconds), (5.0, 2.5));
        let failed = iperf3(r#"{"error":"the server is busy"}"#);
        assert_eq!(
            failed.expect_err("an error").to_string(),
            "the server is busy"
        );
    }
}

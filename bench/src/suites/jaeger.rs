//! A request of an instrumented client to an instrumented server is one trace in Jaeger. Each proxy
//! has its two spans between theirs. Each format of the context is a case.

use std::fs;
use std::path::Path;

use anyhow::Context;
use mesh_test_support::eventually::try_eventually;
use serde_json::Value;

use super::Run;
use super::outcome::{Case, Outcome};
use super::topology::{INSTRUMENTATION, Position};
use crate::testbed::process::Process;

/// By the names that OpenTelemetry's SDKs have for them.
const FORMATS: [&str; 3] = ["tracecontext", "b3", "b3multi"];

/// Sends a request to a URL with the context in a format, and prints the number of the trace.
const CLIENT: &str = "
import urllib.request
format, url, collector = sys.argv[1:]
tracer = tracer('client', collector)
with tracer.start_as_current_span('request', kind=SpanKind.CLIENT) as span:
    fields = {}
    FORMATS[format].inject(fields)
    urllib.request.urlopen(urllib.request.Request(url, headers=fields)).read()
print(f'{span.get_span_context().trace_id:032x}')
";

pub(super) fn run(run: Run<'_>, python: &Path) -> anyhow::Result<Outcome> {
    fs::create_dir_all(&run.report).with_context(|| format!("create {}", run.report.display()))?;
    let cases = FORMATS.iter().map(|format| case(&run, python, format));
    let cases = cases.collect::<anyhow::Result<_>>()?;
    Ok(Outcome::new(cases, run.report))
}

fn case(run: &Run<'_>, python: &Path, format: &str) -> anyhow::Result<Case> {
    let mut command = run.topology.client(python)?;
    command
        .arg("-c")
        .arg([INSTRUMENTATION, CLIENT].concat())
        .arg(format)
        .arg(format!("http://{}/", run.target))
        .arg(run.topology.collector());
    let output = Process::start(&format!("{}-{format}", run.name), &mut command)?.output()?;
    let expected = expected(run.position);
    let mut trace = Value::Null;
    let complete = try_eventually("all spans are in Jaeger", || -> anyhow::Result<_> {
        trace = run.topology.trace(output.trim())?;
        Ok((spans(&trace).len() >= expected.len()).then_some(()))
    });
    let file = run.report.join(format!("{format}.json"));
    fs::write(&file, trace.to_string()).with_context(|| format!("write {}", file.display()))?;
    let chain = chain(&trace);
    Ok(Case {
        name: format.to_owned(),
        passed: complete.is_ok() && chain == expected,
        message: format!("{} instead of {}", chain.join(" > "), expected.join(" > ")),
    })
}

/// Returns the spans of a request in this position, each the parent of the next.
fn expected(position: Position) -> Vec<&'static str> {
    let outbound = ["outbound server", "outbound client"];
    let inbound = ["inbound server", "inbound client"];
    let proxies = match position {
        Position::Direct => Vec::new(),
        Position::Outbound => outbound.to_vec(),
        Position::Inbound | Position::InboundTls => inbound.to_vec(),
        Position::Both => [outbound, inbound].concat(),
    };
    [vec!["client"], proxies, vec!["server"]].concat()
}

fn spans(trace: &Value) -> &[Value] {
    trace["spans"].as_array().map_or(&[], Vec::as_slice)
}

/// Returns the direction and the kind of the first span, and of the only child of each. Ends with
/// the number of spans if there are others.
fn chain(trace: &Value) -> Vec<String> {
    let all = spans(trace);
    let children = |parent: Option<&Value>| -> Vec<&Value> {
        let is_child = |span: &&Value| span["references"][0].get("spanID") == parent;
        all.iter().filter(is_child).collect()
    };
    let mut chain = Vec::new();
    let mut next = children(None);
    while let [span] = next[..]
        && chain.len() < all.len()
    {
        chain.push(description(span));
        next = children(span.get("spanID"));
    }
    if chain.len() < all.len() {
        chain.push(format!("(of {} spans)", all.len()));
    }
    chain
}

fn description(span: &Value) -> String {
    let tags = span["tags"].as_array().map_or(&[][..], Vec::as_slice);
    let tag = |key: &str| {
        let tag = tags.iter().find(|tag| tag["key"] == key);
        tag.and_then(|tag| tag["value"].as_str())
    };
    let words = [tag("direction"), tag("span.kind")];
    words.into_iter().flatten().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn span(id: &str, parent: Option<&str>, tags: &[(&str, &str)]) -> Value {
        let tags: Vec<Value> = tags
            .iter()
            .map(|(key, value)| json!({"key": key, "value": value}))
            .collect();
        let references: Vec<Value> = parent
            .iter()
            .map(|parent| json!({"refType": "CHILD_OF", "spanID": parent}))
            .collect();
        json!({"spanID": id, "references": references, "tags": tags})
    }

    #[test]
    fn chain_follows_parents_and_names_spans_outside_of_it() {
        let client = span("a", None, &[("span.kind", "client")]);
        let proxy = span(
            "b",
            Some("a"),
            &[("span.kind", "server"), ("direction", "outbound")],
        );
        let server = span("c", Some("b"), &[("span.kind", "server")]);
        let other = span("d", Some("x"), &[("span.kind", "client")]);
        let of = |spans: &[&Value]| chain(&json!({"spans": spans}));
        assert_eq!(
            of(&[&server, &client, &proxy]),
            ["client", "outbound server", "server"]
        );
        assert_eq!(of(&[&client, &other]), ["client", "(of 2 spans)"]);
        assert_eq!(of(&[&other]), ["(of 1 spans)"]);
        assert!(chain(&Value::Null).is_empty());
    }
}

//! h2spec: RFC 7540 and RFC 7541 by raw frames, strict cases included.

use std::path::Path;

use anyhow::bail;

use super::Run;
use super::outcome::{Case, Outcome, report};

/// Timeout of a case in seconds, twice the default.
const CASE_TIMEOUT: &str = "5";

pub(super) fn run(run: Run<'_>, program: &Path) -> anyhow::Result<Outcome> {
    let (target, file) = (run.target, run.report);
    let mut command = run.topology.client(program)?;
    command
        .args(["-h", &target.ip().to_string()])
        .args(["-p", &target.port().to_string()])
        .args(["-P", "/ok", "-S", "-o", CASE_TIMEOUT, "-j"])
        .arg(&file);
    let (report, output) = report("h2spec", &run.name, &mut command, &file)?;
    let cases = read(&report);
    if cases.is_empty() {
        bail!("h2spec ran no case: {output}");
    }
    Ok(Outcome::new(cases, file))
}

/// Parses the cases of a JUnit report as Go's encoder writes it: attributes in double quotes,
/// `<failure>`, `<error>` or `<skipped>` inside the case.
fn read(report: &str) -> Vec<Case> {
    report
        .split("<testcase ")
        .skip(1)
        .map(|element| {
            let (attributes, rest) = element.split_once('>').unwrap_or((element, ""));
            let body = rest.split("</testcase>").next().unwrap_or_default();
            let bad = ["failure", "error", "skipped"]
                .into_iter()
                .find_map(|kind| Some((kind, element_text(body, kind)?)));
            Case {
                name: format!(
                    "{} {}",
                    attribute(attributes, "package"),
                    attribute(attributes, "classname")
                ),
                passed: bad.is_none(),
                message: bad
                    .map(|(kind, text)| format!("{kind}: {text}"))
                    .unwrap_or_default(),
            }
        })
        .collect()
}

/// Returns the text of an element, on one line.
fn element_text(body: &str, element: &str) -> Option<String> {
    let (_, rest) = body.split_once(&format!("<{element}"))?;
    let (_, rest) = rest.split_once('>')?;
    let text = rest.split("</").next().unwrap_or_default();
    let words: Vec<String> = text.split_whitespace().map(unescaped).collect();
    Some(words.join(" "))
}

fn attribute(attributes: &str, name: &str) -> String {
    let value = attributes
        .split_once(&format!("{name}=\""))
        .and_then(|(_, rest)| rest.split_once('"'))
        .map_or("", |(value, _)| value);
    unescaped(value)
}

fn unescaped(text: &str) -> String {
    [
        ("&#34;", "\""),
        ("&#39;", "'"),
        ("&quot;", "\""),
        ("&#xA;", " "),
        ("&lt;", "<"),
        ("&gt;", ">"),
        ("&amp;", "&"),
    ]
    .iter()
    .fold(text.to_owned(), |text, (from, to)| text.replace(from, to))
}

#[cfg(test)]
mod tests {
    use super::*;

    const REPORT: &str = r#"<?xml version="1.0" encoding="UTF-8"?>
<testsuites>
  <testsuite name="3.5. HTTP/2 Connection Preface" package="http2/3.5" id="3.5" tests="2" skipped="0" failures="1" errors="0">
    <testcase package="http2/3.5" classname="Sends client connection preface" time="0.0010"></testcase>
    <testcase package="http2/3.5" classname="Sends &#34;PRI&#34; &amp; more" time="5.0010">
      <failure>GOAWAY Frame (Error Code: PROTOCOL_ERROR)&#xA;Connection closed
        Timeout</failure>
    </testcase>
  </testsuite>
  <testsuite name="x" package="http2/4" id="4" tests="1" skipped="1" failures="0" errors="0">
    <testcase package="http2/4" classname="Skipped" time="0"><skipped></skipped></testcase>
  </testsuite>
</testsuites>"#;

    #[test]
    fn report_cases_are_parsed() {
        let cases = read(REPORT);
        let names: Vec<&str> = cases.iter().map(|case| case.name.as_str()).collect();
        assert_eq!(
            names,
            [
                "http2/3.5 Sends client connection preface",
                "http2/3.5 Sends \"PRI\" & more",
                "http2/4 Skipped"
            ]
        );
        let passed: Vec<bool> = cases.iter().map(|case| case.passed).collect();
        assert_eq!(passed, [true, false, false]);
        assert_eq!(
            cases[1].message,
            "failure: GOAWAY Frame (Error Code: PROTOCOL_ERROR) Connection closed Timeout"
        );
    }

    #[test]
    fn empty_report_has_no_cases() {
        assert_eq!(read("<testsuites></testsuites>"), []);
    }
}

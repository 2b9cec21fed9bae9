//! Client of Prometheus' query API, for statistics that the metrics API does not have.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use anyhow::Context as _;
use serde::Deserialize;

use super::connection::Connection;
use super::http::{Get, get_any_status};

pub(crate) const PORT: u16 = 9090;

/// A server of the API.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Server<'a> {
    /// The name of the server for error messages.
    pub(crate) name: &'a str,
    pub(crate) host: &'a str,
    /// The path of its API, without a slash at its end.
    pub(crate) prefix: &'a str,
}

/// One element of an instant vector.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Sample {
    pub(crate) labels: BTreeMap<String, String>,
    pub(crate) value: f64,
}

/// The body of a response.
#[derive(Deserialize)]
struct Body {
    data: Option<Data>,
    error: Option<String>,
}

#[derive(Deserialize)]
struct Data {
    result: Vec<Element>,
}

#[derive(Deserialize)]
struct Element {
    metric: BTreeMap<String, String>,
    /// The time, and the number as a text.
    value: (f64, String),
}

/// The timeout of the metrics API for a query.
const QUERY_TIMEOUT: Duration = Duration::from_secs(10);

/// Evaluates a query now. Samples that are not numbers are left out.
pub(crate) async fn query(
    connection: Connection,
    server: &Server<'_>,
    query: &str,
) -> anyhow::Result<Vec<Sample>> {
    let Server { name, host, prefix } = *server;
    let request = Get {
        server: name,
        host,
        path: &format!("{prefix}/api/v1/query?query={}", percent_encoded(query)),
        timeout: QUERY_TIMEOUT,
    };
    // An invalid query has a status of its own, and a body with the reason.
    let (status, body) = get_any_status(connection, &request).await?;
    parse(&body).with_context(|| format!("{name} responded with {status}"))
}

impl Sample {
    /// Returns the value of a label; empty if it is absent.
    pub(crate) fn label(&self, name: &str) -> &str {
        self.labels.get(name).map_or("", String::as_str)
    }
}

fn parse(body: &str) -> anyhow::Result<Vec<Sample>> {
    let body: Body = serde_json::from_str(body).context("the response is not an instant vector")?;
    if let Some(error) = body.error {
        anyhow::bail!(error);
    }
    let result = body.data.context("the response has no data")?.result;
    let samples = result.into_iter().filter_map(|element| {
        let value: f64 = element.value.1.parse().ok()?;
        value.is_finite().then_some(Sample {
            labels: element.metric,
            value,
        })
    });
    Ok(samples.collect())
}

/// Encodes everything but letters and digits.
fn percent_encoded(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len() * 3);
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() {
            encoded.push(byte.into());
        } else {
            // A write to a string does not fail.
            let _infallible = write!(encoded, "%{byte:02X}");
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vectors_are_parsed_and_errors_shown() {
        let body = r#"{"status":"success","data":{"resultType":"vector","result":[
            {"metric":{"a":"b"},"value":[1.5,"2.25"]},
            {"metric":{},"value":[1,"NaN"]},
            {"metric":{},"value":[1,"+Inf"]}]}}"#;
        let samples = parse(body).unwrap();
        let [sample] = &samples[..] else {
            panic!("{samples:?}");
        };
        assert_eq!((sample.label("a"), sample.label("c")), ("b", ""));
        assert_eq!(sample.value, 2.25);
        let error = parse(r#"{"status":"error","error":"bad query"}"#).unwrap_err();
        assert_eq!(error.to_string(), "bad query");
        for bad in ["", "<html>", "{}", r#"{"data":{"result":[{"metric":{}}]}}"#] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn queries_are_encoded() {
        assert_eq!(percent_encoded("a{b=\"ä\"}"), "a%7Bb%3D%22%C3%A4%22%7D");
    }
}

//! Responses of Prometheus' HTTP API.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::value::RawValue;

/// The number of samples of a response. The largest tables, of edges between pods, have some per
/// pair of pods that communicate.
pub const MAX_SAMPLES: usize = 100_000;

/// The length of a label's value. Names and identities have at most 253 characters; a longer value
/// is one that a client chose, such as an authority.
pub const MAX_LABEL_VALUE: usize = 1024;

/// The length of an error text of Prometheus, which may repeat the query.
const MAX_ERROR: usize = 500;

/// A sample of an instant vector.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    pub labels: BTreeMap<String, String>,
    /// Seconds since 1970.
    pub time: f64,
    pub value: f64,
}

/// Why a response has no samples.
#[derive(Debug, thiserror::Error)]
pub(super) enum VectorError {
    #[error("its response is not one of Prometheus' HTTP API: {0}")]
    Malformed(serde_json::Error),
    #[error("{kind}: {text}")]
    Rejected { kind: String, text: String },
    #[error("the result is a {0}, not a vector")]
    NotVector(String),
    #[error("the result has {0} samples, at most {MAX_SAMPLES}; select a namespace or a name")]
    TooManySamples(usize),
}

#[derive(Deserialize)]
struct Response<'a> {
    status: String,
    #[serde(default, borrow)]
    data: Option<&'a RawValue>,
    #[serde(default, rename = "errorType")]
    error_type: String,
    #[serde(default)]
    error: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Data<'a> {
    result_type: String,
    #[serde(borrow)]
    result: &'a RawValue,
}

#[derive(Deserialize)]
struct RawSample {
    metric: BTreeMap<String, String>,
    value: (f64, String),
}

#[derive(Deserialize)]
struct Configuration {
    yaml: String,
}

#[derive(Deserialize)]
struct ServerConfiguration {
    global: GlobalConfiguration,
}

#[derive(Deserialize)]
struct GlobalConfiguration {
    scrape_interval: Option<String>,
}

impl Sample {
    /// Returns the value of a label, or an empty text, which is the same to Prometheus.
    pub fn label(&self, name: &str) -> &str {
        self.labels.get(name).map_or("", String::as_str)
    }

    /// Returns the rounded value; 0 if it is not a number, as the quantile of no requests.
    pub fn count(&self) -> u64 {
        if self.value.is_finite() {
            self.value.round() as u64
        } else {
            0
        }
    }
}

/// Parses the response to an instant query. Samples with a label value that is too long are
/// omitted.
pub(super) fn parse(body: &[u8]) -> Result<Vec<Sample>, VectorError> {
    let data: Data<'_> = parse_data(body)?;
    if data.result_type != "vector" {
        return Err(VectorError::NotVector(cut(&data.result_type)));
    }
    let raw: Vec<RawSample> =
        serde_json::from_str(data.result.get()).map_err(VectorError::Malformed)?;
    if raw.len() > MAX_SAMPLES {
        return Err(VectorError::TooManySamples(raw.len()));
    }
    let fits = |sample: &RawSample| {
        sample
            .metric
            .values()
            .all(|value| value.len() <= MAX_LABEL_VALUE)
    };
    let samples = raw.into_iter().filter(fits).map(|sample| Sample {
        labels: sample.metric,
        time: sample.value.0,
        value: sample.value.1.parse().unwrap_or(f64::NAN),
    });
    Ok(samples.collect())
}

/// Returns the global scrape interval of the response to a request for the configuration.
pub(super) fn scrape_interval(body: &[u8]) -> Option<String> {
    let configuration: Configuration = parse_data(body).ok()?;
    let server: ServerConfiguration = serde_norway::from_str(&configuration.yaml).ok()?;
    server.global.scrape_interval
}

fn parse_data<'a, T: Deserialize<'a>>(body: &'a [u8]) -> Result<T, VectorError> {
    let response: Response<'a> = serde_json::from_slice(body).map_err(VectorError::Malformed)?;
    match response.data {
        Some(data) if response.status == "success" => {
            serde_json::from_str(data.get()).map_err(VectorError::Malformed)
        }
        _ => Err(VectorError::Rejected {
            kind: cut(&response.error_type),
            text: cut(&response.error),
        }),
    }
}

/// Returns the start of a text of Prometheus.
pub(super) fn cut(text: &str) -> String {
    text.chars().take(MAX_ERROR).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vector(samples: &str) -> Vec<u8> {
        let text = format!(
            r#"{{"status":"success","data":{{"resultType":"vector","result":[{samples}]}},"warnings":["w"]}}"#
        );
        text.into_bytes()
    }

    fn sample(value: &str) -> Sample {
        let text = format!(r#"{{"metric":{{"pod":"a"}},"value":[1700000000.5,"{value}"]}}"#);
        parse(&vector(&text)).unwrap().remove(0)
    }

    #[test]
    fn values_are_rounded_and_others_are_zero() {
        for (text, expect) in [
            ("12.5", 13),
            ("12.4", 12),
            ("0", 0),
            ("-3", 0),
            ("NaN", 0),
            ("+Inf", 0),
            ("1e3", 1000),
        ] {
            let sample = sample(text);
            assert_eq!(sample.count(), expect, "{text}");
            assert_eq!((sample.label("pod"), sample.label("none")), ("a", ""));
        }
    }

    #[test]
    fn errors_and_other_responses_are_reported() {
        for (body, expect) in [
            (
                r#"{"status":"error","errorType":"bad_data","error":"parse error"}"#,
                "bad_data: parse error",
            ),
            (
                r#"{"status":"success","data":{"resultType":"scalar","result":[1,"1"]}}"#,
                "the result is a scalar, not a vector",
            ),
            ("<html>", "its response is not one of Prometheus' HTTP API"),
        ] {
            let error = parse(body.as_bytes()).unwrap_err().to_string();
            assert!(error.starts_with(expect), "{error}");
        }
    }

    #[test]
    fn samples_and_label_values_are_bounded() {
        let long = format!(
            r#"{{"metric":{{"a":"{}"}},"value":[1,"1"]}},{{"metric":{{}},"value":[1,"2"]}}"#,
            "x".repeat(MAX_LABEL_VALUE + 1)
        );
        let kept = parse(&vector(&long)).unwrap();
        assert_eq!(kept.len(), 1);
        assert_eq!(kept[0].count(), 2);
        let one = r#"{"metric":{},"value":[1,"1"]}"#;
        let many = vec![one; MAX_SAMPLES + 1].join(",");
        let error = parse(&vector(&many)).unwrap_err();
        assert!(matches!(error, VectorError::TooManySamples(_)), "{error}");
    }

    #[test]
    fn scrape_interval_is_read_from_configuration() {
        let body = br#"{"status":"success","data":{"yaml":"global:\n  scrape_interval: 10s\n  evaluation_interval: 1m\nscrape_configs: []\n"}}"#;
        assert_eq!(scrape_interval(body).as_deref(), Some("10s"));
        assert_eq!(scrape_interval(b"{}"), None);
    }
}

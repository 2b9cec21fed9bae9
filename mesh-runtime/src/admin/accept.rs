//! Selects the format of `/metrics` by the field `accept` (RFC 9110, section 12.5.1).
//!
//! A client receives the protobuf format if it names that with its parameters and prefers it to the
//! others. It receives OpenMetrics if it prefers that to the text format, or names it and prefers
//! neither. All others receive the text format, as from Linkerd's proxy: clients without the field,
//! those that take anything, and those that take none of the formats.

use http::header::ACCEPT;
use http::{HeaderMap, HeaderValue};

use crate::metrics::Format;

/// A member of the field, such as `text/plain;version=0.0.4;q=0.5`.
#[derive(Debug)]
struct MediaRange<'a> {
    kind: &'a str,
    subtype: &'a str,
    /// All parameters but the weight.
    parameters: Vec<(&'a str, String)>,
    /// Thousandths.
    weight: u16,
}

/// A media type that can be sent.
struct Offer {
    kind: &'static str,
    subtype: &'static str,
    /// Without those that have no effect here.
    parameters: &'static [(&'static str, &'static str)],
}

/// How well a range fits to an offer. The most specific range that fits determines the weight.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Fit {
    precision: Precision,
    weight: u16,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
enum Precision {
    /// No range fits.
    #[default]
    None,
    Any,
    Kind,
    Subtype,
    Parameters,
}

/// Longer fields select the text format. Prometheus sends about 300 bytes.
const MAX_BYTES: usize = 4096;

const OPEN_METRICS: Offer = Offer {
    kind: "application",
    subtype: "openmetrics-text",
    parameters: &[("version", "1.0.0"), ("charset", "utf-8")],
};

const TEXT: Offer = Offer {
    kind: "text",
    subtype: "plain",
    parameters: &[("version", "0.0.4"), ("charset", "utf-8")],
};

/// Other messages and encodings have the same type, so that a range must have the parameters.
const PROTOBUF: Offer = Offer {
    kind: "application",
    subtype: "vnd.google.protobuf",
    parameters: &[
        ("proto", "io.prometheus.client.MetricFamily"),
        ("encoding", "delimited"),
    ],
};

/// Returns the format of the response to a request with these headers.
pub(super) fn format(headers: &HeaderMap) -> Format {
    let values = || headers.get_all(ACCEPT).iter();
    if values().map(HeaderValue::len).sum::<usize>() > MAX_BYTES {
        return Format::Text;
    }
    let mut open_metrics = Fit::default();
    let mut text = Fit::default();
    let mut protobuf = 0;
    let members = values()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| split_unquoted(value, ','));
    for range in members.filter_map(MediaRange::parse) {
        open_metrics = open_metrics.max(OPEN_METRICS.fit(&range));
        text = text.max(TEXT.fit(&range));
        if PROTOBUF.is_named_by(&range) {
            protobuf = protobuf.max(range.weight);
        }
    }
    if protobuf > open_metrics.weight.max(text.weight) {
        return Format::Protobuf;
    }
    let is_named = open_metrics.precision >= Precision::Subtype && open_metrics.weight > 0;
    if open_metrics.weight > text.weight || (open_metrics.weight == text.weight && is_named) {
        Format::OpenMetrics
    } else {
        Format::Text
    }
}

impl<'a> MediaRange<'a> {
    /// Returns `None` for a malformed member, which then does not count.
    fn parse(member: &'a str) -> Option<Self> {
        let mut parts = split_unquoted(member, ';');
        let (kind, subtype) = parts.next()?.trim().split_once('/')?;
        let mut range = Self {
            kind,
            subtype,
            parameters: Vec::new(),
            weight: 1000,
        };
        // Parameters may be empty, as in `text/plain;`.
        for parameter in parts.map(str::trim).filter(|part| !part.is_empty()) {
            let (name, value) = parameter.split_once('=')?;
            if name.eq_ignore_ascii_case("q") {
                range.weight = weight(value)?;
            } else {
                range.parameters.push((name, unquoted(value)));
            }
        }
        Some(range)
    }
}

impl Offer {
    fn fit(&self, range: &MediaRange<'_>) -> Fit {
        let weight = range.weight;
        let precision = self.precision(range);
        match precision {
            Precision::None => Fit::default(),
            precision => Fit { precision, weight },
        }
    }

    fn precision(&self, range: &MediaRange<'_>) -> Precision {
        if !range
            .parameters
            .iter()
            .all(|(name, value)| self.has(name, value))
        {
            return Precision::None;
        }
        let is_kind = range.kind.eq_ignore_ascii_case(self.kind);
        match (range.kind, range.subtype) {
            ("*", "*") => Precision::Any,
            (_, "*") if is_kind => Precision::Kind,
            (_, subtype) if is_kind && subtype.eq_ignore_ascii_case(self.subtype) => {
                if range.parameters.is_empty() {
                    Precision::Subtype
                } else {
                    Precision::Parameters
                }
            }
            _ => Precision::None,
        }
    }

    /// Whether a range has this type with all of its parameters.
    fn is_named_by(&self, range: &MediaRange<'_>) -> bool {
        let has = |offered: &(&str, &str)| {
            let mut names = range.parameters.iter();
            names.any(|(name, _)| name.eq_ignore_ascii_case(offered.0))
        };
        self.precision(range) == Precision::Parameters && self.parameters.iter().all(has)
    }

    fn has(&self, parameter: &str, value: &str) -> bool {
        // What to do with names that are not ASCII letters, digits and underscores. There are none.
        if parameter.eq_ignore_ascii_case("escaping") {
            return true;
        }
        let mut parameters = self.parameters.iter();
        parameters.any(|(name, offered)| {
            name.eq_ignore_ascii_case(parameter) && offered.eq_ignore_ascii_case(value)
        })
    }
}

/// Parses a weight: `0` to `1` with at most three decimal places.
fn weight(text: &str) -> Option<u16> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    if fraction.len() > 3 || !fraction.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let thousandths: u16 = format!("{fraction:0<3}").parse().ok()?;
    match (whole, thousandths) {
        ("0", thousandths) => Some(thousandths),
        ("1", 0) => Some(1000),
        _ => None,
    }
}

/// Returns the content of a quoted string, or a token as it is.
fn unquoted(value: &str) -> String {
    let quoted = value.strip_prefix('"');
    let Some(content) = quoted.and_then(|rest| rest.strip_suffix('"')) else {
        return value.to_owned();
    };
    let mut is_escaped = false;
    let mut is_text = |c: &char| {
        is_escaped = *c == '\\' && !is_escaped;
        !is_escaped
    };
    content.chars().filter(|c| is_text(c)).collect()
}

/// Splits a text at the separators outside of quoted strings.
fn split_unquoted(text: &str, separator: char) -> impl Iterator<Item = &str> {
    let mut is_quoted = false;
    let mut is_escaped = false;
    text.split(move |c: char| {
        let was_escaped = std::mem::take(&mut is_escaped);
        match c {
            _ if was_escaped => false,
            '\\' => {
                is_escaped = is_quoted;
                false
            }
            '"' => {
                is_quoted = !is_quoted;
                false
            }
            c => c == separator && !is_quoted,
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Prometheus 2.42 and others until 2.48.
    const PROMETHEUS_2_42: &str = "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,text/plain;version=0.0.4;q=0.5,*/*;q=0.1";
    /// Prometheus 2.49 and later.
    const PROMETHEUS_2_55: &str = "application/openmetrics-text;version=1.0.0;q=0.5,application/openmetrics-text;version=0.0.1;q=0.4,text/plain;version=0.0.4;q=0.3,*/*;q=0.2";
    /// Prometheus 2.49 and later with native histograms.
    const WITH_PROTOBUF: &str = "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited;q=0.6,application/openmetrics-text;version=1.0.0;q=0.5,application/openmetrics-text;version=0.0.1;q=0.4,text/plain;version=0.0.4;q=0.3,*/*;q=0.2";
    const PROMETHEUS_3: &str = "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,application/openmetrics-text;version=0.0.1;q=0.5,text/plain;version=1.0.0;escaping=allow-utf-8;q=0.4,text/plain;version=0.0.4;q=0.3,*/*;q=0.2";

    fn of(fields: &[&str]) -> Format {
        let mut headers = HeaderMap::new();
        for field in fields {
            headers.append(ACCEPT, field.parse().unwrap());
        }
        format(&headers)
    }

    #[test]
    fn clients_that_prefer_openmetrics_receive_it() {
        for field in [
            PROMETHEUS_2_42,
            PROMETHEUS_2_55,
            PROMETHEUS_3,
            "application/openmetrics-text",
            "Application/OpenMetrics-Text; Version=\"1.0.0\" ; Charset=UTF-8",
            "application/openmetrics-text; version=\"1.\\0.0\"",
            "text/plain;q=0.5, application/openmetrics-text;q=0.501",
            "application/openmetrics-text;q=1.000;version=1.0.0, text/plain;q=0.999",
            // Equal weights.
            "application/openmetrics-text, text/plain",
            "application/openmetrics-text;q=0.1, */*;q=0.1",
            // By a range.
            "application/*",
            "text/plain;q=0, */*;q=0.1",
            "text/*;q=0.1, application/*;q=0.2",
            // The exact range counts before others.
            "application/openmetrics-text;version=1.0.0;q=0.9, application/openmetrics-text;q=0, text/plain;q=0.5",
            // Malformed members do not count.
            "text/plain;q=2, application/openmetrics-text;q=0.1",
            "text, application/openmetrics-text;, ,",
            "a/b;c=\"text/plain, \\\", */*;q=1\", application/openmetrics-text;q=0.1",
        ] {
            assert_eq!(of(&[field]), Format::OpenMetrics, "{field}");
        }
        assert_eq!(
            of(&["text/plain;q=0.5", "application/openmetrics-text"]),
            Format::OpenMetrics
        );
    }

    #[test]
    fn protobuf_is_sent_to_clients_that_name_it_with_its_parameters_and_prefer_it() {
        let protobuf = "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited";
        for field in [
            WITH_PROTOBUF.to_owned(),
            protobuf.to_owned(),
            format!("{protobuf};q=0.2, */*;q=0.1"),
            format!("{protobuf};escaping=allow-utf-8"),
            protobuf.to_uppercase(),
        ] {
            assert_eq!(of(&[&field]), Format::Protobuf, "{field}");
        }
        for (other, format) in [
            (format!("{protobuf};q=0.5, */*;q=0.5"), Format::Text),
            (format!("{protobuf};q=0"), Format::Text),
            (format!("{protobuf};version=1"), Format::Text),
            (protobuf.replace("delimited", "text"), Format::Text),
            (protobuf.replace(";encoding=delimited", ""), Format::Text),
            (protobuf.replace("MetricFamily", "Metric"), Format::Text),
            ("application/vnd.google.protobuf".to_owned(), Format::Text),
            (
                format!("{protobuf};q=0.5, application/openmetrics-text;q=0.5"),
                Format::OpenMetrics,
            ),
        ] {
            assert_eq!(of(&[&other]), format, "{other}");
        }
    }

    #[test]
    fn other_clients_receive_text() {
        assert_eq!(of(&[]), Format::Text);
        for field in [
            "",
            "*/*",
            "text/plain",
            "text/html, */*;q=0.8",
            "application/*, text/*",
            "application/json",
            "text/plain, application/openmetrics-text;q=0.9",
            "application/openmetrics-text;q=0",
            "application/openmetrics-text;q=0.000, */*;q=0.1",
            "application/openmetrics-text;version=0.0.1",
            "application/openmetrics-text;version=2.0.0, text/plain;q=0.1",
            "application/openmetrics-text;charset=latin1",
            "application/openmetrics-text;unknown=1",
            // Malformed.
            "application/openmetrics-text;q=1.001",
            "application/openmetrics-text;q=0.1234",
            "application/openmetrics-text;q=-1",
            "application/openmetrics-text;q=\"1\"",
            "application/openmetrics-text;q=",
            "application/openmetrics-text;q",
            "application/openmetrics-text;version",
            "application/openmetrics-text/x",
            "*/openmetrics-text",
            "\"application/openmetrics-text\"",
            "\"application/openmetrics-text, application/openmetrics-text",
            "\\\"\\",
        ] {
            assert_eq!(of(&[field]), Format::Text, "{field}");
        }
    }

    #[test]
    fn longest_field_is_read_and_longer_ones_select_text() {
        let field = |length: usize| {
            let named = "application/openmetrics-text";
            format!("{}{named}", ",".repeat(length - named.len()))
        };
        assert_eq!(of(&[&field(MAX_BYTES)]), Format::OpenMetrics);
        assert_eq!(of(&[&field(MAX_BYTES + 1)]), Format::Text);
        let half = field(MAX_BYTES / 2);
        assert_eq!(of(&[&half, &half]), Format::OpenMetrics);
        assert_eq!(of(&[&half, &half, ","]), Format::Text);
    }

    #[test]
    fn field_that_is_not_ascii_does_not_count() {
        let mut headers = HeaderMap::new();
        let field = b"application/openmetrics-text;x=\xff";
        headers.append(ACCEPT, HeaderValue::from_bytes(field).unwrap());
        assert_eq!(format(&headers), Format::Text);
        headers.append(
            ACCEPT,
            HeaderValue::from_static("application/openmetrics-text"),
        );
        assert_eq!(format(&headers), Format::OpenMetrics);
    }
}

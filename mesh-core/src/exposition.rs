//! Prometheus' text exposition format, as far as the programs of the mesh use it.
//!
//! The command line and the metrics API read the metrics of proxies, controllers and agents.

use std::collections::BTreeMap;

/// A sample of a metric.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    /// The name of the metric.
    pub name: String,
    /// The labels by name.
    pub labels: BTreeMap<String, String>,
    /// The value.
    pub value: f64,
}

/// A sample whose labels have not been parsed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Line<'a> {
    /// Name and labels as written. They identify a series.
    pub series: &'a str,
    /// The value.
    pub value: f64,
}

impl Sample {
    /// Returns the value of a label. A missing label equals an empty one, as in Prometheus.
    pub fn label(&self, name: &str) -> &str {
        self.labels.get(name).map_or("", String::as_str)
    }
}

impl<'a> Line<'a> {
    /// Returns the name of the metric.
    pub fn name(&self) -> &'a str {
        let (name, _labels) = self.series.split_once('{').unwrap_or((self.series, ""));
        name
    }

    /// Returns the labels; `None` if they are malformed.
    pub fn labels(&self) -> Option<BTreeMap<String, String>> {
        match self.series.split_once('{') {
            Some((_name, labels)) => parse_labels(labels),
            None => Some(BTreeMap::new()),
        }
    }
}

/// Returns the samples of a scrape. Comments and malformed lines are skipped.
pub fn parse(text: &str) -> Vec<Sample> {
    lines(text)
        .filter_map(|line| {
            Some(Sample {
                name: line.name().to_owned(),
                labels: line.labels()?,
                value: line.value,
            })
        })
        .collect()
}

/// Returns the samples of a scrape without parsing their labels. Comments and malformed lines are
/// skipped.
pub fn lines(text: &str) -> impl Iterator<Item = Line<'_>> {
    text.lines()
        .filter(|line| !line.starts_with('#'))
        .filter_map(|line| {
            let (series, rest) = split(line)?;
            let value = rest.split_whitespace().next()?.parse().ok()?;
            Some(Line { series, value })
        })
}

/// Returns name and labels, and the text after them.
fn split(line: &str) -> Option<(&str, &str)> {
    let name_end = line.find(['{', ' '])?;
    let (mut is_quoted, mut is_escaped) = (false, false);
    for (at, byte) in line.bytes().enumerate().skip(name_end) {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' if is_quoted => is_escaped = true,
            b'"' => is_quoted = !is_quoted,
            b'}' if !is_quoted => return Some(line.split_at(at + 1)),
            b' ' if at == name_end => return Some(line.split_at(at)),
            _ => {}
        }
    }
    None
}

/// Parses `a="b",c="d"} …`, where a backslash escapes backslash, quote and newline.
fn parse_labels(mut rest: &str) -> Option<BTreeMap<String, String>> {
    let mut labels = BTreeMap::new();
    loop {
        rest = rest.trim_start_matches([',', ' ']);
        if rest.starts_with('}') {
            return Some(labels);
        }
        let (name, after) = rest.split_once("=\"")?;
        let mut value = String::new();
        let mut chars = after.char_indices();
        let end = loop {
            match chars.next()? {
                (at, '"') => break at,
                (_, '\\') => match chars.next()?.1 {
                    'n' => value.push('\n'),
                    other => value.push(other),
                },
                (_, other) => value.push(other),
            }
        };
        labels.insert(name.to_owned(), value);
        rest = &after[end + 1..];
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_parsed_and_other_lines_skipped() {
        let text = "# HELP a b\n# TYPE a counter\na{x=\"1\",y=\"q\\\"\\\\\\n,}\"} 3\nb 2.5e3\nbroken{x=\"1\nb_bucket{le=\"+Inf\"} 7\nno_value\n# EOF\n";
        let samples = parse(text);
        let names: Vec<(&str, f64)> = samples
            .iter()
            .map(|sample| (sample.name.as_str(), sample.value))
            .collect();
        assert_eq!(names, [("a", 3.0), ("b", 2500.0), ("b_bucket", 7.0)]);
        assert_eq!(samples[0].label("y"), "q\"\\\n,}");
        assert_eq!(samples[0].label("absent"), "");
        assert_eq!(samples[2].label("le"), "+Inf");
    }

    #[test]
    fn lines_have_the_text_of_their_series() {
        let text = "a{x=\"} 1\",y=\"é\\\"}\"} 3 1700000000000\nb 1\nc{malformed} 2\n";
        let found: Vec<Line<'_>> = lines(text).collect();
        let series: Vec<(&str, &str, f64)> = found
            .iter()
            .map(|line| (line.series, line.name(), line.value))
            .collect();
        assert_eq!(
            series,
            [
                ("a{x=\"} 1\",y=\"é\\\"}\"}", "a", 3.0),
                ("b", "b", 1.0),
                ("c{malformed}", "c", 2.0)
            ]
        );
        assert_eq!(found[0].labels().unwrap()["x"], "} 1");
        assert_eq!(found[1].labels(), Some(BTreeMap::new()));
        assert_eq!(found[2].labels(), None);
    }
}

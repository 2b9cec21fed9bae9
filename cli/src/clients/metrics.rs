//! Parser for the Prometheus text format, as far as the daemons of the mesh use it.

use std::collections::BTreeMap;

/// A sample of a metric.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Sample {
    pub(crate) name: String,
    pub(crate) labels: BTreeMap<String, String>,
    pub(crate) value: f64,
}

impl Sample {
    /// Returns the value of a label. A missing label equals an empty one, as in Prometheus.
    pub(crate) fn label(&self, name: &str) -> &str {
        self.labels.get(name).map_or("", String::as_str)
    }
}

/// Returns the samples of a scrape. Comments and malformed lines are skipped.
pub(crate) fn parse(text: &str) -> Vec<Sample> {
    text.lines()
        .filter(|line| !line.starts_with('#'))
        .filter_map(parse_line)
        .collect()
}

fn parse_line(line: &str) -> Option<Sample> {
    let name_end = line.find(['{', ' '])?;
    let (name, rest) = line.split_at(name_end);
    let (labels, rest) = match rest.strip_prefix('{') {
        Some(rest) => parse_labels(rest)?,
        None => (BTreeMap::new(), rest),
    };
    let value = rest.split_whitespace().next()?.parse().ok()?;
    Some(Sample {
        name: name.to_owned(),
        labels,
        value,
    })
}

/// Parses `a="b",c="d"} …`, where a backslash escapes backslash, quote and newline. Returns the
/// labels and the text after them.
fn parse_labels(mut rest: &str) -> Option<(BTreeMap<String, String>, &str)> {
    let mut labels = BTreeMap::new();
    loop {
        rest = rest.trim_start_matches([',', ' ']);
        if let Some(after) = rest.strip_prefix('}') {
            return Some((labels, after));
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
        let text = "# HELP a b\n# TYPE a counter\na{x=\"1\",y=\"q\\\"\\\\\\n,}\"} 3\nb 2.5e3\nbroken{x=\"1\nb_bucket{le=\"+Inf\"} 7\n# EOF\n";
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
}

//! OpenMetrics 1.0.0: <https://prometheus.io/docs/specs/om/open_metrics_spec/>.
//!
//! Prometheus stores series of the same names as from the text format. OpenMetrics adds `_total` to
//! the name of a counter's family in its samples. Where that would change the name of a series, the
//! family has the type `unknown`, whose samples have the family's name, as in Prometheus' own
//! libraries ([`counter_base`]). `_created` is absent, because the time of a series' creation is
//! not known.

use std::collections::BTreeSet;
use std::fmt::{self, Write as _};

use super::cell::HistogramSnapshot;
use super::exemplar::StoredExemplar;
use super::labels::Labels;
use super::snapshot::{FamilySnapshot, Samples};

/// A number; Rust writes the infinite ones in another way.
struct Number(f64);

/// A number in the form that OpenMetrics recommends for labels, so that it is the same in the
/// exposition of every program.
struct CanonicalNumber(f64);

/// A text within quotes or after `# HELP`.
struct Escaped<'a>(&'a str);

/// Encodes the families in their order. Families without samples are omitted.
pub(super) fn encode(families: impl IntoIterator<Item = FamilySnapshot>) -> Vec<u8> {
    let families: Vec<FamilySnapshot> = families
        .into_iter()
        .filter(|family| !family.samples.is_empty())
        .collect();
    let names: BTreeSet<&str> = families.iter().map(|family| family.name).collect();
    let mut text = String::new();
    for family in &families {
        write_family(&mut text, family, &names);
    }
    text.push_str("# EOF\n");
    text.into_bytes()
}

fn write_family(text: &mut String, family: &FamilySnapshot, names: &BTreeSet<&str>) {
    let name = family.name;
    match &family.samples {
        Samples::Counters(samples) => {
            match counter_base(name, names) {
                Some(base) => write_description(text, base, "counter", family.help),
                None => write_description(text, name, "unknown", family.help),
            }
            write_numbers(text, name, samples);
        }
        Samples::Gauges(samples) => {
            write_description(text, name, "gauge", family.help);
            write_numbers(text, name, samples);
        }
        Samples::Histograms(samples) => {
            write_description(text, name, "histogram", family.help);
            write_histograms(text, name, samples);
        }
    }
}

/// Returns the name of a counter's family: the name of its samples without `_total`. `None` if
/// there is no such name, because the counter does not end in `_total` or another family has it.
fn counter_base<'a>(name: &'a str, names: &BTreeSet<&str>) -> Option<&'a str> {
    name.strip_suffix("_total")
        .filter(|base| !base.is_empty() && !names.contains(base))
}

fn write_description(text: &mut String, name: &str, kind: &str, help: &str) {
    if !help.is_empty() {
        append(text, format_args!("# HELP {name} {}\n", Escaped(help)));
    }
    append(text, format_args!("# TYPE {name} {kind}\n"));
}

fn write_numbers(text: &mut String, name: &str, samples: &[(Labels, f64)]) {
    for (labels, value) in samples {
        write_sample(text, name, &rendered(labels), *value);
    }
}

fn write_sample(text: &mut String, name: &str, labels: &str, value: f64) {
    text.push_str(name);
    if !labels.is_empty() {
        append(text, format_args!("{{{labels}}}"));
    }
    append(text, format_args!(" {}\n", Number(value)));
}

fn write_histograms(text: &mut String, name: &str, samples: &[(Labels, HistogramSnapshot)]) {
    // The histograms of a family have the same bounds.
    let buckets = samples.first().map(|(_, first)| &first.buckets);
    let bounds: Vec<String> = buckets
        .into_iter()
        .flatten()
        .map(|(bound, _)| CanonicalNumber(*bound).to_string())
        .chain(["+Inf".to_owned()])
        .collect();
    for (labels, histogram) in samples {
        write_histogram(text, name, &rendered(labels), &bounds, histogram);
    }
}

fn write_histogram(
    text: &mut String,
    name: &str,
    labels: &str,
    bounds: &[String],
    histogram: &HistogramSnapshot,
) {
    let separator = if labels.is_empty() { "" } else { "," };
    let counts = histogram.buckets.iter().map(|(_, count)| *count);
    let counts = counts.chain([histogram.count]);
    for (index, (bound, count)) in bounds.iter().zip(counts).enumerate() {
        append(
            text,
            format_args!("{name}_bucket{{{labels}{separator}le=\"{bound}\"}} {count}"),
        );
        if let Some(Some(exemplar)) = histogram.exemplars.get(index) {
            write_exemplar(text, exemplar);
        }
        text.push('\n');
    }
    write_sample(text, &format!("{name}_sum"), labels, histogram.sum);
    write_sample(
        text,
        &format!("{name}_count"),
        labels,
        histogram.count as f64,
    );
}

/// The names of the labels are those that Grafana and the OpenTelemetry collector expect. Names and
/// values have 63 characters together; 128 are allowed.
fn write_exemplar(text: &mut String, exemplar: &StoredExemplar) {
    let StoredExemplar {
        trace_id,
        span_id,
        value,
        millis,
    } = *exemplar;
    append(
        text,
        format_args!(
            " # {{trace_id=\"{trace_id:032x}\",span_id=\"{span_id:016x}\"}} {} {}.{:03}",
            Number(value),
            millis / 1000,
            millis % 1000
        ),
    );
}

/// Returns the labels as between braces.
fn rendered(labels: &Labels) -> String {
    let mut text = String::new();
    for (name, value) in labels.iter() {
        let separator = if text.is_empty() { "" } else { "," };
        append(
            &mut text,
            format_args!("{separator}{name}=\"{}\"", Escaped(value)),
        );
    }
    text
}

fn append(text: &mut String, arguments: fmt::Arguments<'_>) {
    // A string takes all text.
    let _ = text.write_fmt(arguments);
}

impl fmt::Display for Number {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            f64::INFINITY => f.write_str("+Inf"),
            f64::NEG_INFINITY => f.write_str("-Inf"),
            number => fmt::Display::fmt(&number, f),
        }
    }
}

impl fmt::Display for CanonicalNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let number = self.0;
        // As the format `%g` of C, with a fraction in any case: an exponent of two digits at least
        // for numbers from 10⁶ and below 10⁻⁴.
        let scientific = format!("{number:e}");
        let exponent = scientific
            .split_once('e')
            .and_then(|(digits, exponent)| Some((digits, exponent.parse::<i32>().ok()?)));
        match exponent {
            Some((digits, exponent)) if !(-4..6).contains(&exponent) => {
                let sign = if exponent < 0 { '-' } else { '+' };
                write!(f, "{digits}e{sign}{:02}", exponent.unsigned_abs())
            }
            Some(_) => write!(f, "{number:?}"),
            None => fmt::Display::fmt(&Number(number), f),
        }
    }
}

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rest = self.0;
        while let Some(index) = rest.find(['\\', '"', '\n']) {
            f.write_str(&rest[..index])?;
            f.write_str(match rest.as_bytes()[index] {
                b'\\' => "\\\\",
                b'"' => "\\\"",
                _ => "\\n",
            })?;
            rest = &rest[index + 1..];
        }
        f.write_str(rest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(families: impl IntoIterator<Item = FamilySnapshot>) -> String {
        String::from_utf8(encode(families)).unwrap()
    }

    fn family(name: &'static str, samples: Samples) -> FamilySnapshot {
        FamilySnapshot {
            name,
            help: "Help",
            samples,
        }
    }

    fn one(value: f64) -> Vec<(Labels, f64)> {
        vec![(Labels::new(), value)]
    }

    #[test]
    fn counter_family_has_the_name_without_total() {
        let labels = Labels::new().with("direction", "inbound").with("zone", "");
        let counter = Samples::Counters(vec![(labels, 2.0), (Labels::new(), 0.5)]);
        assert_eq!(
            text([family("request_total", counter)]),
            "# HELP request Help\n\
             # TYPE request counter\n\
             request_total{direction=\"inbound\",zone=\"\"} 2\n\
             request_total 0.5\n\
             # EOF\n"
        );
    }

    #[test]
    fn series_keep_their_names_where_openmetrics_would_change_them() {
        for (families, expected) in [
            (
                vec![family("span_exports", Samples::Counters(one(3.0)))],
                "# HELP span_exports Help\n# TYPE span_exports unknown\nspan_exports 3\n",
            ),
            (
                vec![family("_total", Samples::Counters(one(3.0)))],
                "# HELP _total Help\n# TYPE _total unknown\n_total 3\n",
            ),
            // The family of the counter would have the name of the gauge's.
            (
                vec![
                    family("open", Samples::Gauges(one(1.0))),
                    family("open_total", Samples::Counters(one(2.0))),
                ],
                "# HELP open Help\n# TYPE open gauge\nopen 1\n\
                 # HELP open_total Help\n# TYPE open_total unknown\nopen_total 2\n",
            ),
            (
                vec![family("open_total", Samples::Gauges(one(1.0)))],
                "# HELP open_total Help\n# TYPE open_total gauge\nopen_total 1\n",
            ),
        ] {
            assert_eq!(text(families), format!("{expected}# EOF\n"));
        }
    }

    #[test]
    fn family_without_samples_is_omitted() {
        for samples in [
            Samples::Counters(Vec::new()),
            Samples::Gauges(Vec::new()),
            Samples::Histograms(Vec::new()),
        ] {
            assert_eq!(text([family("x_total", samples)]), "# EOF\n");
        }
        // Nor does it take its name from another one.
        let families = [
            family("open", Samples::Gauges(Vec::new())),
            family("open_total", Samples::Counters(one(2.0))),
        ];
        assert!(text(families).contains("# TYPE open counter\n"));
    }

    #[test]
    fn histogram_has_canonical_bounds_and_exemplars_of_buckets() {
        let exemplar = |span_id, value, millis| {
            Some(StoredExemplar {
                trace_id: 0x4bf9_2f35_77b3_4da6_a3ce_929d_0e0e_4736,
                span_id,
                value,
                millis,
            })
        };
        let histogram = |exemplars| HistogramSnapshot {
            buckets: vec![(0.025, 1), (1.0, 1)],
            count: 3,
            sum: 11.5,
            exemplars,
            native: None,
        };
        let labels = Labels::new().with("path", "a\"b\\c\nd");
        let exemplars = vec![
            exemplar(0x00f0_67aa_0ba9_02b7, 0.025, 1_700_000_000_007),
            None,
            exemplar(1, 9.0, 12),
        ];
        let samples = vec![
            (labels, histogram(exemplars)),
            (Labels::new(), histogram(Vec::new())),
        ];
        let trace = "trace_id=\"4bf92f3577b34da6a3ce929d0e0e4736\"";
        let path = "path=\"a\\\"b\\\\c\\nd\"";
        assert_eq!(
            text([family("latency", Samples::Histograms(samples))]),
            format!(
                "# HELP latency Help\n\
                 # TYPE latency histogram\n\
                 latency_bucket{{{path},le=\"0.025\"}} 1 # {{{trace},span_id=\"00f067aa0ba902b7\"}} 0.025 1700000000.007\n\
                 latency_bucket{{{path},le=\"1.0\"}} 1\n\
                 latency_bucket{{{path},le=\"+Inf\"}} 3 # {{{trace},span_id=\"0000000000000001\"}} 9 0.012\n\
                 latency_sum{{{path}}} 11.5\n\
                 latency_count{{{path}}} 3\n\
                 latency_bucket{{le=\"0.025\"}} 1\n\
                 latency_bucket{{le=\"1.0\"}} 1\n\
                 latency_bucket{{le=\"+Inf\"}} 3\n\
                 latency_sum 11.5\n\
                 latency_count 3\n\
                 # EOF\n"
            )
        );
    }

    #[test]
    fn help_is_escaped_and_omitted_if_empty() {
        let with_help = |help| FamilySnapshot {
            name: "x",
            help,
            samples: Samples::Gauges(one(1.0)),
        };
        let escaped = text([with_help("a \"b\" \\ c\nd é")]);
        assert!(
            escaped.starts_with("# HELP x a \\\"b\\\" \\\\ c\\nd é\n# TYPE x gauge\n"),
            "{escaped}"
        );
        assert_eq!(text([with_help("")]), "# TYPE x gauge\nx 1\n# EOF\n");
    }

    #[test]
    fn numbers_have_the_forms_of_the_specification() {
        for (number, expected) in [
            (0.0, "0"),
            (-1.5, "-1.5"),
            (1e21, "1000000000000000000000"),
            (f64::INFINITY, "+Inf"),
            (f64::NEG_INFINITY, "-Inf"),
            (f64::NAN, "NaN"),
        ] {
            assert_eq!(Number(number).to_string(), expected);
        }
        for (number, expected) in [
            (0.0, "0.0"),
            (0.0005, "0.0005"),
            (0.000_05, "5e-05"),
            (1e-10, "1e-10"),
            (1.0, "1.0"),
            (2.5, "2.5"),
            (102_400.0, "102400.0"),
            (1e6, "1e+06"),
            (1_048_576.0, "1.048576e+06"),
            (1e10, "1e+10"),
            (1e100, "1e+100"),
            (-50_000.0, "-50000.0"),
            (f64::INFINITY, "+Inf"),
        ] {
            assert_eq!(CanonicalNumber(number).to_string(), expected);
        }
    }
}

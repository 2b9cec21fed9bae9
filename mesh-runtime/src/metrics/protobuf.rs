//! Prometheus' protobuf format: each family is a message of `io.prometheus.client`, after its
//! length. It is the only format that has native histograms.
//!
//! The messages are a part of
//! <https://github.com/prometheus/client_model/blob/master/io/prometheus/client/metrics.proto>. A
//! field that is absent here has its default value, also where that differs from an unset one.

use prost::Message;
use prost_types::Timestamp;

use super::cell::HistogramSnapshot;
use super::exemplar::StoredExemplar;
use super::labels::Labels;
use super::native::{NativeSnapshot, SCHEMA, ZERO_THRESHOLD};
use super::snapshot::{FamilySnapshot, Samples};

#[derive(Clone, PartialEq, Message)]
struct MetricFamily {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "2")]
    help: String,
    #[prost(enumeration = "MetricType", tag = "3")]
    kind: i32,
    #[prost(message, repeated, tag = "4")]
    metric: Vec<Metric>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, prost::Enumeration)]
enum MetricType {
    Counter = 0,
    Gauge = 1,
    Histogram = 4,
}

#[derive(Clone, PartialEq, Message)]
struct Metric {
    #[prost(message, repeated, tag = "1")]
    label: Vec<LabelPair>,
    #[prost(message, optional, tag = "2")]
    gauge: Option<Value>,
    #[prost(message, optional, tag = "3")]
    counter: Option<Value>,
    #[prost(message, optional, tag = "7")]
    histogram: Option<Histogram>,
}

#[derive(Clone, PartialEq, Message)]
struct LabelPair {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "2")]
    value: String,
}

/// `Gauge` and `Counter`, which have the same field.
#[derive(Clone, PartialEq, Message)]
struct Value {
    #[prost(double, tag = "1")]
    value: f64,
}

#[derive(Clone, PartialEq, Message)]
struct Histogram {
    #[prost(uint64, tag = "1")]
    sample_count: u64,
    #[prost(double, tag = "2")]
    sample_sum: f64,
    #[prost(message, repeated, tag = "3")]
    bucket: Vec<Bucket>,
    #[prost(sint32, tag = "5")]
    schema: i32,
    #[prost(double, tag = "6")]
    zero_threshold: f64,
    #[prost(uint64, tag = "7")]
    zero_count: u64,
    #[prost(message, repeated, tag = "12")]
    positive_span: Vec<BucketSpan>,
    /// The difference of each count to the count of the bucket before it.
    #[prost(sint64, repeated, tag = "13")]
    positive_delta: Vec<i64>,
    #[prost(message, repeated, tag = "16")]
    exemplars: Vec<Exemplar>,
}

#[derive(Clone, PartialEq, Message)]
struct Bucket {
    #[prost(uint64, tag = "1")]
    cumulative_count: u64,
    #[prost(double, tag = "2")]
    upper_bound: f64,
    #[prost(message, optional, tag = "3")]
    exemplar: Option<Exemplar>,
}

/// Consecutive buckets. The offset of the first span is its first key. The offset of any other span
/// is the number of empty buckets before it.
#[derive(Clone, Copy, PartialEq, Message)]
struct BucketSpan {
    #[prost(sint32, tag = "1")]
    offset: i32,
    #[prost(uint32, tag = "2")]
    length: u32,
}

#[derive(Clone, PartialEq, Message)]
struct Exemplar {
    #[prost(message, repeated, tag = "1")]
    label: Vec<LabelPair>,
    #[prost(double, tag = "2")]
    value: f64,
    #[prost(message, optional, tag = "3")]
    timestamp: Option<Timestamp>,
}

/// Encodes the families in their order. Families without samples are omitted.
pub(super) fn encode(families: impl Iterator<Item = FamilySnapshot>) -> Vec<u8> {
    let mut encoded = Vec::new();
    for family in families.filter(|family| !family.samples.is_empty()) {
        encoded.extend_from_slice(&message(&family).encode_length_delimited_to_vec());
    }
    encoded
}

fn message(family: &FamilySnapshot) -> MetricFamily {
    let (kind, metric) = match &family.samples {
        Samples::Counters(samples) => (MetricType::Counter, metrics(samples, counter)),
        Samples::Gauges(samples) => (MetricType::Gauge, metrics(samples, gauge)),
        Samples::Histograms(samples) => (MetricType::Histogram, metrics(samples, histogram)),
    };
    MetricFamily {
        name: family.name.to_owned(),
        help: family.help.to_owned(),
        kind: kind.into(),
        metric,
    }
}

fn metrics<V>(samples: &[(Labels, V)], metric: fn(&V) -> Metric) -> Vec<Metric> {
    let metric = |(labels, value): &(Labels, V)| Metric {
        label: labels
            .iter()
            .map(|(name, value)| pair(name, value))
            .collect(),
        ..metric(value)
    };
    samples.iter().map(metric).collect()
}

fn pair(name: &str, value: impl Into<String>) -> LabelPair {
    LabelPair {
        name: name.to_owned(),
        value: value.into(),
    }
}

fn counter(value: &f64) -> Metric {
    Metric {
        counter: Some(Value { value: *value }),
        ..Metric::default()
    }
}

fn gauge(value: &f64) -> Metric {
    Metric {
        gauge: Some(Value { value: *value }),
        ..Metric::default()
    }
}

fn histogram(snapshot: &HistogramSnapshot) -> Metric {
    let exemplars = snapshot.exemplars.iter().map(Option::as_ref);
    let exemplars = exemplars.map(|stored| stored.map(exemplar));
    let buckets = snapshot.buckets.iter().copied();
    let buckets = buckets.chain([(f64::INFINITY, snapshot.count)]);
    let mut message = Histogram {
        sample_count: snapshot.count,
        sample_sum: snapshot.sum,
        bucket: buckets
            .zip(exemplars.clone().chain(std::iter::repeat(None)))
            .map(|((upper_bound, cumulative_count), exemplar)| Bucket {
                cumulative_count,
                upper_bound,
                exemplar,
            })
            .collect(),
        exemplars: exemplars.flatten().collect(),
        ..Histogram::default()
    };
    if let Some(native) = &snapshot.native {
        set_native(&mut message, native);
    }
    Metric {
        histogram: Some(message),
        ..Metric::default()
    }
}

fn set_native(message: &mut Histogram, native: &NativeSnapshot) {
    message.schema = SCHEMA;
    message.zero_threshold = ZERO_THRESHOLD;
    message.zero_count = native.zero;
    let mut next = 0;
    let mut last = 0;
    for &(key, count) in &native.buckets {
        match message.positive_span.last_mut() {
            Some(span) if key == next => span.length += 1,
            _ => message.positive_span.push(BucketSpan {
                offset: key - next,
                length: 1,
            }),
        }
        next = key + 1;
        // Counts are below 2⁶³, so that their differences have the same bits as signed numbers.
        message
            .positive_delta
            .push(count.wrapping_sub(last).cast_signed());
        last = count;
    }
}

/// OpenMetrics defines the labels.
fn exemplar(stored: &StoredExemplar) -> Exemplar {
    let StoredExemplar {
        trace_id,
        span_id,
        value,
        millis,
    } = *stored;
    // Millions of years are too large for the one, and the other is below 10⁹.
    let seconds = i64::try_from(millis / 1000).unwrap_or(i64::MAX);
    let nanos = i32::try_from(millis % 1000 * 1_000_000).unwrap_or_default();
    Exemplar {
        label: vec![
            pair("trace_id", format!("{trace_id:032x}")),
            pair("span_id", format!("{span_id:016x}")),
        ],
        value,
        timestamp: Some(Timestamp { seconds, nanos }),
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use super::super::{Exemplar as Observed, Exemplars, Format, Labels, Registry};
    use super::*;

    /// Decodes the families of a scrape.
    fn scrape(registry: &Registry) -> Vec<MetricFamily> {
        let encoded = registry.encode_as(Format::Protobuf);
        let mut rest = &encoded[..];
        let mut families = Vec::new();
        while !rest.is_empty() {
            families.push(MetricFamily::decode_length_delimited(&mut rest).unwrap());
        }
        families
    }

    fn spans(spans: &[BucketSpan]) -> Vec<(i32, u32)> {
        spans
            .iter()
            .map(|span| (span.offset, span.length))
            .collect()
    }

    #[test]
    fn families_have_their_names_types_labels_and_values() {
        let registry = Registry::new();
        let labels = Labels::new().with("zone", "").with("a", "b\"");
        let requests = registry
            .counter_family("request_total", "Requests")
            .with(&labels);
        requests.inc_by(3);
        let open = registry.gauge_family("open", "Open").with(&Labels::new());
        open.set(-2);
        registry.gauge_family("unused", "Without samples");
        let families = scrape(&registry);
        let metric = |metric: Metric| vec![metric];
        assert_eq!(
            families,
            [
                MetricFamily {
                    name: "open".into(),
                    help: "Open".into(),
                    kind: MetricType::Gauge.into(),
                    metric: metric(gauge(&-2.0)),
                },
                MetricFamily {
                    name: "request_total".into(),
                    help: "Requests".into(),
                    kind: MetricType::Counter.into(),
                    metric: metric(Metric {
                        label: vec![pair("zone", ""), pair("a", "b\"")],
                        ..counter(&3.0)
                    }),
                },
            ]
        );
        drop((requests, open));
    }

    #[test]
    fn histogram_has_fixed_and_exponential_buckets() {
        let registry = Registry::new();
        let family = registry.histogram_family("latency_ms", "Latency", &[1.0, 5.0]);
        let latency = family.with(&Labels::new());
        let first = &scrape(&registry)[0].metric[0];
        let native = first.histogram.clone().unwrap();
        assert_eq!((native.sample_count, native.positive_span.len()), (0, 0));
        for value in [0.0, 1.0, 1.0, 1.05, 4.0, 4.0, 4.0, 7.0] {
            latency.observe(value);
        }
        let metric = &scrape(&registry)[0].metric[0];
        let histogram = metric.histogram.clone().unwrap();
        assert_eq!((histogram.sample_count, histogram.sample_sum), (8, 22.05));
        let fixed = histogram.bucket.iter();
        let fixed: Vec<_> = fixed
            .map(|bucket| (bucket.upper_bound, bucket.cumulative_count))
            .collect();
        assert_eq!(fixed, [(1.0, 3), (5.0, 7), (f64::INFINITY, 8)]);
        assert_eq!((histogram.schema, histogram.zero_count), (3, 1));
        assert_eq!(histogram.zero_threshold, 2_f64.powi(-14));
        // Keys 0 and 1, 16, and 23 (2^(22/8) is 6.7).
        assert_eq!(spans(&histogram.positive_span), [(0, 2), (14, 1), (6, 1)]);
        assert_eq!(histogram.positive_delta, [2, -1, 2, -2]);
    }

    #[test]
    fn exemplars_belong_to_both_kinds_of_buckets() {
        let registry = Registry::new();
        let family = registry.histogram_family_with("x", "X", &[1.0, 5.0], Exemplars::Kept);
        let latency = family.with(&Labels::new());
        let exemplar = Observed {
            trace_id: 7,
            span_id: 9,
            at: UNIX_EPOCH + Duration::from_millis(1_500),
        };
        latency.observe_with(2.0, Some(&exemplar));
        let metric = &scrape(&registry)[0].metric[0];
        let histogram = metric.histogram.clone().unwrap();
        let kept = Exemplar {
            label: vec![
                pair("trace_id", format!("{:032}", 7)),
                pair("span_id", format!("{:016}", 9)),
            ],
            value: 2.0,
            timestamp: Some(Timestamp {
                seconds: 1,
                nanos: 500_000_000,
            }),
        };
        let of_buckets = histogram
            .bucket
            .iter()
            .map(|bucket| bucket.exemplar.clone());
        let of_buckets: Vec<_> = of_buckets.collect();
        assert_eq!(of_buckets, [None, Some(kept.clone()), None]);
        assert_eq!(histogram.exemplars, [kept]);
    }
}

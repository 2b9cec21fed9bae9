//! Headers of contexts, valid and invalid, and what forwarding changes in them.

use http::{HeaderMap, HeaderName, HeaderValue};
use mesh_core::trace::SpanId;
use proptest::prelude::*;

use super::TraceContext;

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const SPAN: &str = "00f067aa0ba902b7";
const NEXT: &str = "b7ad6b7169203331";

type Fields = Vec<(String, String)>;

fn headers(fields: &[(&str, &str)]) -> HeaderMap {
    let field = |(name, value): &(&str, &str)| {
        (
            name.parse::<HeaderName>().unwrap(),
            HeaderValue::from_str(value).unwrap(),
        )
    };
    let mut headers = HeaderMap::new();
    for (name, value) in fields.iter().map(field) {
        headers.append(name, value);
    }
    headers
}

/// The values read: the trace, the span and the flags.
fn read(fields: &[(&str, &str)]) -> Option<(String, String, u8)> {
    let context = TraceContext::extract(&headers(fields))?;
    let (trace, span) = (context.trace_id.to_string(), context.span_id.to_string());
    Some((trace, span, context.flags.bits()))
}

/// The headers of the forwarded request, sorted.
fn forwarded(fields: &[(&str, &str)]) -> Fields {
    let mut headers = headers(fields);
    let context = TraceContext::extract(&headers).unwrap();
    context.inject(SpanId::parse(NEXT.as_bytes()).unwrap(), &mut headers);
    let mut fields: Fields = headers
        .iter()
        .map(|(name, value)| (name.to_string(), value.to_str().unwrap().to_owned()))
        .collect();
    fields.sort();
    fields
}

fn fields(fields: &[(&str, &str)]) -> Fields {
    let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
    fields.iter().map(owned).collect()
}

fn context(flags: u8) -> Option<(String, String, u8)> {
    Some((TRACE.to_owned(), SPAN.to_owned(), flags))
}

#[test]
fn traceparent_is_read_and_its_span_replaced() {
    let parent = format!("00-{TRACE}-{SPAN}-01");
    let unsampled = format!("00-{TRACE}-{SPAN}-00");
    assert_eq!(read(&[("traceparent", &parent)]), context(1));
    assert_eq!(read(&[("traceparent", &unsampled)]), context(0));
    assert_eq!(
        forwarded(&[("traceparent", &parent), ("tracestate", "a=1, b=2 ")]),
        fields(&[
            ("traceparent", &format!("00-{TRACE}-{NEXT}-01")),
            ("tracestate", "a=1, b=2 "),
        ])
    );
}

#[test]
fn traceparent_of_a_later_version_is_read_and_forwarded_as_00() {
    let later = format!("cc-{TRACE}-{SPAN}-ff-more");
    assert_eq!(read(&[("traceparent", &later)]), context(3));
    assert_eq!(
        forwarded(&[("traceparent", &later)]),
        fields(&[("traceparent", &format!("00-{TRACE}-{NEXT}-03"))])
    );
    let exact = format!("cc-{TRACE}-{SPAN}-01");
    assert_eq!(read(&[("traceparent", &exact)]), context(1));
}

#[test]
fn invalid_traceparent_is_not_a_context() {
    let zero_trace = "0".repeat(32);
    let zero_span = "0".repeat(16);
    for value in [
        String::new(),
        "00".to_owned(),
        format!("00-{TRACE}-{SPAN}"),
        format!("00-{TRACE}-{SPAN}-1"),
        format!("00-{TRACE}-{SPAN}-011"),
        format!("00-{TRACE}-{SPAN}-01-"),
        format!("00-{TRACE}-{SPAN}-01-more"),
        format!("00-{TRACE}-{SPAN}-0x"),
        format!("00-{zero_trace}-{SPAN}-01"),
        format!("00-{TRACE}-{zero_span}-01"),
        format!("00-{}-{SPAN}-01", TRACE.to_uppercase()),
        format!("00_{TRACE}_{SPAN}_01"),
        format!("ff-{TRACE}-{SPAN}-01"),
        format!("cc-{TRACE}-{SPAN}-01more"),
        format!("0-{TRACE}-{SPAN}-001"),
        format!(" 00-{TRACE}-{SPAN}-01"),
        format!("00-{TRACE}-{SPAN}-01{}", "x".repeat(60_000)),
    ] {
        assert_eq!(read(&[("traceparent", &value)]), None, "{value}");
    }
    let parent = format!("00-{TRACE}-{SPAN}-01");
    assert_eq!(
        read(&[("traceparent", &parent), ("traceparent", &parent)]),
        None,
        "two of them"
    );
    let bytes = HeaderValue::from_bytes(&[0xff; 55]).unwrap();
    let opaque = HeaderMap::from_iter([(HeaderName::from_static("traceparent"), bytes)]);
    assert_eq!(TraceContext::extract(&opaque), None);
}

#[test]
fn only_valid_trace_state_is_reported() {
    let parent = format!("00-{TRACE}-{SPAN}-01");
    let state = |values: &[&str]| {
        let mut fields = vec![("traceparent", parent.as_str())];
        fields.extend(values.iter().map(|value| ("tracestate", *value)));
        let headers = headers(&fields);
        let context = TraceContext::extract(&headers).unwrap();
        context.trace_state(&headers).to_string()
    };
    assert_eq!(state(&[]), "");
    assert_eq!(state(&["a=1;x,, b@c=2 y\t"]), "a=1;x,b@c=2 y");
    assert_eq!(state(&["a=1", "b=2"]), "a=1,b=2");
    let longest = format!("a={},b={}", "x".repeat(252), "y".repeat(255));
    assert_eq!(longest.len(), 512);
    assert_eq!(state(&[&longest]), longest);
    for invalid in [
        "a",
        "a=",
        "=1",
        "A=1",
        "a=1=2",
        &format!("{longest}z"),
        &format!("{}=1", "k".repeat(257)),
        &vec!["a=1"; 33].join(","),
    ] {
        assert_eq!(state(&[invalid]), "", "{invalid}");
    }
    assert_eq!(state(&[&longest, "c=3"]), "", "together too long");
    assert_eq!(state(&["a=1", "B=2"]), "", "one of them invalid");
}

#[test]
fn b3_headers_are_read_and_the_span_replaced() {
    let multiple = |trace: &str, more: &[(&str, &str)]| {
        let all = [("x-b3-traceid", trace), ("x-b3-spanid", SPAN)];
        read(&[&all, more].concat())
    };
    assert_eq!(multiple(TRACE, &[("x-b3-sampled", "1")]), context(1));
    assert_eq!(multiple(TRACE, &[("x-b3-sampled", "true")]), context(1));
    assert_eq!(multiple(TRACE, &[("x-b3-flags", "1")]), context(1));
    assert_eq!(multiple(TRACE, &[("x-b3-sampled", "0")]), context(0));
    assert_eq!(multiple(TRACE, &[]), context(0), "deferred");
    let (short, _, _) = multiple("a3ce929d0e0e4736", &[]).unwrap();
    assert_eq!(short, "0000000000000000a3ce929d0e0e4736");
    assert_eq!(
        forwarded(&[
            ("x-b3-traceid", "a3ce929d0e0e4736"),
            ("x-b3-spanid", SPAN),
            ("x-b3-parentspanid", "1111111111111111"),
            ("x-b3-sampled", "1"),
        ]),
        fields(&[
            ("x-b3-parentspanid", SPAN),
            ("x-b3-sampled", "1"),
            ("x-b3-spanid", NEXT),
            ("x-b3-traceid", "a3ce929d0e0e4736"),
        ])
    );
    for (trace, span) in [
        ("0000000000000000", SPAN),
        (TRACE, "0000000000000000"),
        (TRACE, "00f067aa0ba902b"),
        ("4bf92f3577b34da6a3ce929d0e0e473", SPAN),
        ("", SPAN),
        (TRACE, ""),
    ] {
        let fields = [
            ("x-b3-traceid", trace),
            ("x-b3-spanid", span),
            ("x-b3-sampled", "1"),
        ];
        assert_eq!(read(&fields), None, "{trace} {span}");
    }
    assert_eq!(
        read(&[("x-b3-traceid", TRACE), ("x-b3-sampled", "1")]),
        None
    );
    let twice = [("x-b3-spanid", SPAN), ("x-b3-sampled", "1")];
    assert_eq!(multiple(TRACE, &twice), None);
}

#[test]
fn single_b3_header_is_read_and_the_span_replaced() {
    let single = |value: &str| read(&[("b3", value)]);
    assert_eq!(single(&format!("{TRACE}-{SPAN}-1")), context(1));
    assert_eq!(single(&format!("{TRACE}-{SPAN}-d-{NEXT}")), context(1));
    assert_eq!(single(&format!("{TRACE}-{SPAN}-0")), context(0));
    assert_eq!(single(&format!("{TRACE}-{SPAN}")), context(0));
    let (short, _, _) = single(&format!("a3ce929d0e0e4736-{SPAN}-1")).unwrap();
    assert_eq!(short, "0000000000000000a3ce929d0e0e4736");
    for invalid in [
        "",
        "0",
        "1",
        "d",
        TRACE,
        &format!("{TRACE}-{SPAN}-2"),
        &format!("{TRACE}-{SPAN}-1-2"),
        &format!("{TRACE}-{SPAN}-1-{NEXT}-1"),
        &format!("{}-{SPAN}-1", "0".repeat(32)),
        &format!("{TRACE}-{}-1", "0".repeat(16)),
        &"-".repeat(60_000),
    ] {
        assert_eq!(single(invalid), None, "{invalid}");
    }
    assert_eq!(
        forwarded(&[("b3", &format!("a3ce929d0e0e4736-{SPAN}-d"))]),
        fields(&[("b3", &format!("a3ce929d0e0e4736-{NEXT}-d-{SPAN}"))])
    );
    assert_eq!(
        forwarded(&[("b3", &format!("{TRACE}-{SPAN}-1-{SPAN}"))]),
        fields(&[("b3", &format!("{TRACE}-{NEXT}-1-{SPAN}"))])
    );
}

/// `grpc-trace-bin` of the trace, with the option that it is sampled.
const BINARY: &str = "AABL+S81d7NNpqPOkp0ODkc2AQDwZ6oLqQK3AgE";

#[test]
fn binary_context_is_read_and_its_span_replaced() {
    let binary = |value: &str| read(&[("grpc-trace-bin", value)]);
    assert_eq!(binary(BINARY), context(1));
    assert_eq!(binary(&format!("{BINARY}=")), context(1), "with padding");
    // The options are 0, or absent.
    assert_eq!(
        binary("AABL+S81d7NNpqPOkp0ODkc2AQDwZ6oLqQK3AgA"),
        context(0)
    );
    assert_eq!(binary("AABL+S81d7NNpqPOkp0ODkc2AQDwZ6oLqQK3"), context(0));
    // An unknown field follows: 3, and a byte.
    assert_eq!(
        binary("AABL+S81d7NNpqPOkp0ODkc2AQDwZ6oLqQK3AgEDBA"),
        context(1)
    );
    assert_eq!(
        forwarded(&[("grpc-trace-bin", BINARY)]),
        fields(&[("grpc-trace-bin", "AABL+S81d7NNpqPOkp0ODkc2Abeta3FpIDMxAgE")])
    );
    for invalid in [
        "",
        "A",
        "AA",
        "%%%%",
        // Version 1.
        "AQBL+S81d7NNpqPOkp0ODkc2AQDwZ6oLqQK3AgE",
        // Without the last byte of the options, and of the span.
        "AABL+S81d7NNpqPOkp0ODkc2AQDwZ6oLqQK3Ag",
        "AABL+S81d7NNpqPOkp0ODkc2AQDwZ6oLqQI",
        // Only the trace.
        "AABL+S81d7NNpqPOkp0ODkc2",
        // The trace is 0.
        "AAAAAAAAAAAAAAAAAAAAAAAAAQDwZ6oLqQK3AgE",
        // The options twice.
        "AABL+S81d7NNpqPOkp0ODkc2AQDwZ6oLqQK3AgECAQ",
        &"A".repeat(60_000),
    ] {
        assert_eq!(binary(invalid), None, "{invalid}");
    }
    let twice = [("grpc-trace-bin", BINARY), ("grpc-trace-bin", BINARY)];
    assert_eq!(read(&twice), None);
}

#[test]
fn first_format_counts_and_others_stay_as_they_are() {
    let parent = format!("00-{TRACE}-{SPAN}-01");
    let other = "1111111111111111";
    let all = [
        ("x-b3-traceid", TRACE),
        ("x-b3-spanid", other),
        ("x-b3-sampled", "1"),
        ("b3", &format!("{TRACE}-{other}-1")),
        ("grpc-trace-bin", BINARY),
        ("traceparent", &parent),
    ];
    assert_eq!(read(&all), context(1));
    let forwarded = forwarded(&all);
    let changed: Vec<_> = forwarded
        .iter()
        .filter(|(name, value)| !all.contains(&(name.as_str(), value.as_str())))
        .collect();
    let expect = ("traceparent".to_owned(), format!("00-{TRACE}-{NEXT}-01"));
    assert_eq!(changed, [&expect]);
    assert_eq!(read(&all[..5]), context(1), "the binary one");
    let invalid = [("traceparent", "invalid"), ("grpc-trace-bin", BINARY)];
    assert_eq!(read(&invalid), None, "a later format does not replace it");
    assert_eq!(read(&[("tracestate", "a=1")]), None);
}

proptest! {
    /// The forwarded context belongs to the same trace, with the new span, a value never panics,
    /// and a context is forwarded as sampled if it was read as sampled.
    #[test]
    fn forwarded_context_is_the_same_trace(
        name in prop::sample::select(&["traceparent", "grpc-trace-bin", "b3"][..]),
        value in "[ -~]{0,80}|00-[0-9a-f]{32}-[0-9a-f]{16}-0[0-3]|[0-9a-f]{32}-[0-9a-f]{16}-1|AA[A-Za-z0-9+/]{37}",
    ) {
        let mut headers = headers(&[(name, &value)]);
        let sampled = TraceContext::extract(&headers).filter(|context| context.flags.is_sampled());
        prop_assert_eq!(TraceContext::extract_sampled(&headers), sampled);
        if let Some(before) = TraceContext::extract(&headers) {
            let next = SpanId::parse(NEXT.as_bytes()).unwrap();
            before.inject(next, &mut headers);
            let after = TraceContext::extract(&headers);
            // An unsampled `b3` is never rewritten by the proxy.
            if before.flags.is_sampled() {
                prop_assert_eq!(after, Some(TraceContext { span_id: next, ..before }));
            }
        }
    }
}

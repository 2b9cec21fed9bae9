//! Texts that describe faults, and those that do not.

use super::*;

const HTTP: RequestKind = RequestKind::Http;
const GRPC: RequestKind = RequestKind::Grpc;

fn problem(text: &str, requests: RequestKind) -> String {
    parse("it", text, requests).unwrap_err().to_string()
}

fn ratio(percent: &str) -> Option<(u32, u32)> {
    match parse("it", &format!("abort=503,percent={percent}"), HTTP) {
        Ok(Filter::InjectHttpFailure { ratio, .. }) => Some((ratio.numerator, ratio.denominator)),
        Ok(other) => panic!("{other:?}"),
        Err(error) => {
            assert!(error.problem.contains("not a percentage"), "{error}");
            None
        }
    }
}

#[test]
fn abort_has_a_status_of_the_requests_of_its_route() {
    let http = parse("it", " abort = 503 , ", HTTP).unwrap();
    assert_eq!(
        http,
        Filter::InjectHttpFailure {
            status: StatusCode::SERVICE_UNAVAILABLE,
            message: "fault it".into(),
            ratio: Ratio::ALL,
        }
    );
    for (text, expected) in [
        ("cancelled", 1),
        ("unavailable", 14),
        ("unauthenticated", 16),
        ("1", 1),
        ("16", 16),
    ] {
        let call = parse("it", &format!("abort={text}"), GRPC).unwrap();
        let Filter::InjectGrpcFailure { code, .. } = call else {
            panic!("{call:?}");
        };
        assert_eq!(code, expected, "{text}");
    }
    for status in ["199", "600", "1xx", "unavailable", "-1", "+503", ""] {
        let problem = problem(&format!("abort={status}"), HTTP);
        assert!(problem.contains("200 to 599"), "{problem}");
    }
    for status in ["0", "17", "503", "Unavailable", "014", ""] {
        let problem = problem(&format!("abort={status}"), GRPC);
        assert!(problem.contains("1 to 16"), "{problem}");
    }
}

#[test]
fn percentage_has_up_to_four_decimals() {
    for (percent, numerator) in [
        ("0", 0),
        ("0.0001", 1),
        ("0.5", 5_000),
        ("12.34", 123_400),
        ("99.9999", 999_999),
        ("100", 1_000_000),
        ("100.0000", 1_000_000),
    ] {
        assert_eq!(ratio(percent), Some((numerator, 1_000_000)), "{percent}");
    }
    for percent in [
        "", ".", ".5", "5.", "-1", "+1", "1e1", "50%", "100.0001", "101", "0.00001", "0050",
        "1.2.3",
    ] {
        assert_eq!(ratio(percent), None, "{percent}");
    }
}

#[test]
fn delay_has_a_bound_and_is_the_same_for_all_requests() {
    for (text, millis) in [("1ms", 1), ("2s", 2_000), ("5m", 300_000)] {
        for requests in [HTTP, GRPC] {
            let filter = parse("it", &format!("delay={text}, percent=10"), requests).unwrap();
            let expected = Filter::Delay {
                duration: Duration::from_millis(millis),
                ratio: Ratio {
                    numerator: 100_000,
                    denominator: 1_000_000,
                },
            };
            assert_eq!(filter, expected, "{text}");
        }
    }
    for delay in ["0", "0s", "301s", "6m", "1.5s", "soon", "5", ""] {
        let problem = problem(&format!("delay={delay}"), HTTP);
        assert!(problem.contains("1ms to 5m"), "{problem}");
    }
}

#[test]
fn other_texts_describe_no_fault() {
    for (text, expected) in [
        ("", "has neither abort nor delay"),
        ("percent=1", "has neither abort nor delay"),
        ("abort=503,delay=1s", "has both abort and delay"),
        ("abort=503,abort=504", "has abort twice"),
        (
            "abort=503,percentage=1",
            "\"percentage\", which is not a setting",
        ),
        ("503", "\"503\", which is not a setting"),
    ] {
        let problem = problem(text, HTTP);
        assert!(problem.contains(expected), "{text}: {problem}");
    }
}

#[test]
fn reference_names_a_fault_whose_annotation_has_its_name() {
    assert!(is_reference(GROUP, KIND));
    assert!(!is_reference(GROUP, "Other"));
    assert!(!is_reference("other.io", KIND));
    assert_eq!(annotation("it"), "fault.linkerd.io/it");
}

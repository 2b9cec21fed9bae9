//! Messages of taps, to the proxy's types and back.

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use proptest::sample::select;

use super::*;
use crate::tests::arbitrary::{network, socket_addr};

fn text() -> impl Strategy<Value = String> + Clone {
    "[a-z/:.]{0,8}"
}

fn label() -> impl Strategy<Value = (String, String)> {
    (text(), text())
}

fn any_labels() -> impl Strategy<Value = Labels> {
    vec(label(), 0..3).prop_map(|pairs| pairs.into_iter().collect())
}

fn any_method() -> impl Strategy<Value = Method> {
    let names = ["GET", "TRACE", "PATCH", "PURGE"];
    select(names.to_vec()).prop_map(|name| Method::from_bytes(name.as_bytes()).unwrap())
}

fn filters() -> impl Strategy<Value = TapFilter> {
    let ports = (1u16.., 1u16..).prop_map(|(min, max)| AddrFilter::Ports { min, max });
    let addr = prop_oneof![network().prop_map(AddrFilter::Network), ports].boxed();
    let text_filter = prop_oneof![
        text().prop_map(TextFilter::Exact),
        text().prop_map(TextFilter::Prefix)
    ]
    .boxed();
    let leaf = prop_oneof![
        addr.clone().prop_map(TapFilter::Source),
        addr.prop_map(TapFilter::Destination),
        label().prop_map(|(name, value)| TapFilter::DestinationLabel { name, value }),
        label().prop_map(|(name, value)| TapFilter::RouteLabel { name, value }),
        select(&["http", "https", "ws"][..]).prop_map(|s| TapFilter::Scheme(s.to_owned())),
        any_method().prop_map(TapFilter::Method),
        text_filter.clone().prop_map(TapFilter::Authority),
        text_filter.prop_map(TapFilter::Path),
    ];
    leaf.prop_recursive(4, 24, 3, |inner| {
        prop_oneof![
            vec(inner.clone(), 0..3).prop_map(TapFilter::All),
            vec(inner.clone(), 0..3).prop_map(TapFilter::Any),
            inner.prop_map(|filter| TapFilter::Not(Box::new(filter))),
        ]
    })
}

fn any_headers() -> impl Strategy<Value = Option<TapHeaders>> {
    option::of(vec(("[a-z-]{1,6}", vec(any::<u8>(), 0..6)), 0..3))
}

fn any_duration() -> impl Strategy<Value = Duration> {
    (0u64..1_000_000, 0u32..1_000_000_000).prop_map(|(s, n)| Duration::new(s, n))
}

fn kinds() -> impl Strategy<Value = TapEventKind> {
    let request = (any_method(), "(https?|ws)?", text(), text(), any_headers()).prop_map(
        |(method, scheme, authority, path, headers)| TapEventKind::Request {
            method,
            scheme,
            authority,
            path,
            headers,
        },
    );
    let response = (any_duration(), 100u16..1000, any_headers()).prop_map(
        |(since_request, status, headers)| TapEventKind::Response {
            since_request,
            status: StatusCode::from_u16(status).unwrap(),
            headers,
        },
    );
    let end = prop_oneof![
        Just(TapStreamEnd::Complete),
        any::<u16>().prop_map(TapStreamEnd::GrpcStatus),
        any::<u32>().prop_map(TapStreamEnd::Reset),
    ];
    let end = (
        any_duration(),
        any_duration(),
        any::<u64>(),
        end,
        any_headers(),
    )
        .prop_map(
            |(since_request, since_response, response_bytes, end, trailers)| TapEventKind::End {
                since_request,
                since_response,
                response_bytes,
                end,
                trailers,
            },
        );
    prop_oneof![request, response, end]
}

fn contexts() -> impl Strategy<Value = TapContext> {
    let direction = select(&[TapDirection::Inbound, TapDirection::Outbound][..]);
    let labels = (any_labels(), any_labels(), any_labels());
    (direction, socket_addr(), socket_addr(), labels).prop_map(
        |(direction, source, destination, labels)| TapContext {
            direction,
            source,
            source_labels: labels.0,
            destination,
            destination_labels: labels.1,
            route_labels: labels.2,
        },
    )
}

proptest! {
    #[test]
    fn requests_survive_the_wire(
        filter in filters(),
        limit in 1u32..,
        with_headers: bool,
    ) {
        let sent = TapRequest { limit, filter, with_headers };
        prop_assert_eq!(request(request_to_proto(&sent)), Ok(sent));
    }

    #[test]
    fn events_survive_the_wire(
        context in contexts(),
        base: u32,
        stream: u64,
        kind in kinds(),
    ) {
        let id = TapStreamId { base, stream };
        let sent = TapEvent { context: Arc::new(context), id, kind };
        prop_assert_eq!(event(event_to_proto(&sent)), Ok(sent));
    }
}

fn observe(matches: usize) -> wire::ObserveRequest {
    let filter = TapFilter::All(vec![TapFilter::Any(vec![]); matches]);
    request_to_proto(&TapRequest {
        limit: 1,
        filter,
        with_headers: false,
    })
}

#[test]
fn filter_of_too_many_conditions_is_refused() {
    assert!(request(observe(MAX_FILTERS - 1)).is_ok());
    let error = request(observe(MAX_FILTERS)).unwrap_err();
    assert_eq!(error.field, "match.all[999]", "{error}");
}

#[test]
fn invalid_requests_name_their_field() {
    let mut zero = observe(1);
    zero.limit = 0;
    let mut none = observe(1);
    none.r#match = None;
    let with = |kind| {
        let mut request = observe(1);
        request.r#match = Some(Match {
            r#match: Some(kind),
        });
        request
    };
    let netmask = |mask| {
        let ip = Some(std::net::IpAddr::from([10, 0, 0, 1]).into());
        with(wire_match::Match::Source(wire_match::Tcp {
            r#match: Some(wire_match::tcp::Match::Netmask(wire_match::tcp::Netmask {
                ip,
                mask,
            })),
        }))
    };
    let ports = |min, max| {
        with(wire_match::Match::Destination(wire_match::Tcp {
            r#match: Some(wire_match::tcp::Match::Ports(wire_match::tcp::PortRange {
                min,
                max,
            })),
        }))
    };
    let table = [
        (zero, "limit"),
        (none, "match"),
        (netmask(33), "match.source.netmask.mask"),
        (ports(0, 0), "match.destination.ports.min"),
        (ports(1, 65536), "match.destination.ports.max"),
    ];
    for (request, field) in table {
        assert_eq!(self::request(request).unwrap_err().field, field);
    }
    let one = request(ports(80, 0)).unwrap().filter;
    assert_eq!(
        one,
        TapFilter::Destination(AddrFilter::Ports { min: 80, max: 80 })
    );
}

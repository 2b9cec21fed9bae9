//! JSON in the mapping of protobuf, as `protojson` writes it with fields that have no value.

use mesh_api::linkerd2::common::net::ip_address::Ip;
use mesh_api::linkerd2::common::net::{IPv6, IpAddress, TcpAddress};
use mesh_api::linkerd2::tap::TapEvent;
use mesh_api::linkerd2::tap::tap_event::http::{
    Event as HttpEvent, RequestInit, ResponseEnd, StreamId,
};
use mesh_api::linkerd2::tap::tap_event::{EndpointMeta, Event, Http};
use mesh_api::linkerd2::viz::headers::{Header, header};
use mesh_api::linkerd2::viz::{Eos, Headers, HttpMethod, Scheme, eos, http_method, scheme};

use super::*;

fn parsed(text: &str) -> Value {
    serde_json::from_str(text).unwrap()
}

#[test]
fn durations_have_the_fewest_of_0_3_6_and_9_digits() {
    let table = [
        (0, 0, "0s"),
        (75, 0, "75s"),
        (1, 500_000_000, "1.500s"),
        (0, 1_000, "0.000001s"),
        (3, 1, "3.000000001s"),
        (-1, -500_000_000, "-1.500s"),
        (0, -1_000_000, "-0.001s"),
    ];
    for (seconds, nanos, expected) in table {
        let duration = Duration { seconds, nanos };
        assert_eq!(duration.to_json(), expected);
    }
}

#[test]
fn rows_have_all_fields() {
    let row = Row {
        resource: Some(Resource {
            namespace: "shop".to_owned(),
            r#type: "deployment".to_owned(),
            name: "web".to_owned(),
        }),
        time_window: "1m".to_owned(),
        meshed_pod_count: 2,
        running_pod_count: u64::MAX,
        stats: Some(BasicStats {
            success_count: 7,
            ..BasicStats::default()
        }),
        errors_by_pod: BTreeMap::from([(
            "web-1".to_owned(),
            PodErrors {
                errors: vec![PodError {
                    error: Some(Error::Container(ContainerError {
                        message: "back-off".to_owned(),
                        container: "web".to_owned(),
                        image: "web:1".to_owned(),
                        reason: "CrashLoopBackOff".to_owned(),
                    })),
                }],
            },
        )]),
        ..Row::default()
    };
    let response = StatSummaryResponse {
        response: Some(stat_summary_response::Response::Ok(
            stat_summary_response::Ok {
                stat_tables: vec![StatTable {
                    table: Some(Table::PodGroup(PodGroup { rows: vec![row] })),
                }],
            },
        )),
    };
    let expected = r#"{"ok":{"statTables":[{"podGroup":{"rows":[{
        "resource":{"namespace":"shop","type":"deployment","name":"web"},
        "timeWindow":"1m","status":"","meshedPodCount":"2",
        "runningPodCount":"18446744073709551615","failedPodCount":"0",
        "stats":{"successCount":"7","failureCount":"0","latencyMsP50":"0","latencyMsP95":"0",
            "latencyMsP99":"0","actualSuccessCount":"0","actualFailureCount":"0"},
        "tcpStats":null,"tsStats":null,"srvStats":null,
        "errorsByPod":{"web-1":{"errors":[{"container":{"message":"back-off","container":"web",
            "image":"web:1","reason":"CrashLoopBackOff"}}]}}
    }]}}]}}"#;
    assert_eq!(response.to_json(), parsed(expected));
    assert_eq!(StatSummaryResponse::default().to_json(), json!({}));
}

#[test]
fn pods_name_their_owner_by_its_kind() {
    let pod = Pod {
        name: "shop/web-1".to_owned(),
        pod_ip: "10.1.0.1".to_owned(),
        uptime: Some(Duration {
            seconds: 60,
            nanos: 0,
        }),
        owner: Some(Owner::StatefulSet("shop/web".to_owned())),
        ..Pod::default()
    };
    let expected = r#"{"name":"shop/web-1","podIP":"10.1.0.1","status":"","added":false,
        "sinceLastReport":null,"controllerNamespace":"","controlPlane":false,"uptime":"60s",
        "proxyReady":false,"proxyVersion":"","resourceVersion":"","statefulSet":"shop/web"}"#;
    assert_eq!(pod.to_json(), parsed(expected));
}

#[test]
fn checks_have_the_names_of_their_fields() {
    let result = CheckResult {
        subsystem_name: "prometheus".to_owned(),
        check_description: "can talk".to_owned(),
        status: CheckStatus::Error.into(),
        friendly_message_to_user: "refused".to_owned(),
    };
    let expected = r#"{"SubsystemName":"prometheus","CheckDescription":"can talk",
        "Status":"ERROR","FriendlyMessageToUser":"refused"}"#;
    assert_eq!(result.to_json(), parsed(expected));
    let unknown = CheckResult {
        status: 77,
        ..CheckResult::default()
    };
    assert_eq!(unknown.to_json()["Status"], json!(77));
}

#[test]
fn tap_events_are_written() {
    let id = Some(StreamId {
        base: 1,
        stream: 1 << 60,
    });
    let init = RequestInit {
        id,
        method: Some(HttpMethod {
            r#type: Some(http_method::Type::Registered(1)),
        }),
        scheme: Some(Scheme {
            r#type: Some(scheme::Type::Unregistered("ftp".to_owned())),
        }),
        authority: "web:80".to_owned(),
        path: "/a".to_owned(),
        headers: Some(Headers {
            headers: vec![
                Header {
                    name: "a".to_owned(),
                    value: Some(header::Value::ValueStr("b".to_owned())),
                },
                Header {
                    name: "c".to_owned(),
                    value: Some(header::Value::ValueBin(vec![0xff])),
                },
            ],
        }),
    };
    let event = |event| TapEvent {
        source: Some(TcpAddress {
            ip: Some(IpAddress {
                ip: Some(Ip::Ipv4(0x7f00_0001)),
            }),
            port: 4000,
        }),
        destination: Some(TcpAddress {
            ip: Some(IpAddress {
                ip: Some(Ip::Ipv6(IPv6 { first: 1, last: 2 })),
            }),
            port: 80,
        }),
        source_meta: Some(EndpointMeta {
            labels: BTreeMap::from([("pod".to_owned(), "a".to_owned())]),
        }),
        proxy_direction: 1,
        event: Some(Event::Http(Http { event: Some(event) })),
        ..TapEvent::default()
    };
    let expected = r#"{"source":{"ip":{"ipv4":2130706433},"port":4000},
        "sourceMeta":{"labels":{"pod":"a"}},
        "destination":{"ip":{"ipv6":{"first":"1","last":"2"}},"port":80},
        "destinationMeta":null,"routeMeta":null,"proxyDirection":"INBOUND",
        "http":{"requestInit":{"id":{"base":1,"stream":"1152921504606846976"},
            "method":{"registered":"POST"},"scheme":{"unregistered":"ftp"},
            "authority":"web:80","path":"/a",
            "headers":{"headers":[{"name":"a","valueStr":"b"},{"name":"c","valueBin":"/w=="}]}}}}"#;
    assert_eq!(
        event(HttpEvent::RequestInit(init)).to_json(),
        parsed(expected)
    );
    let end = ResponseEnd {
        id,
        response_bytes: 9,
        eos: Some(Eos {
            end: Some(eos::End::ResetErrorCode(8)),
        }),
        ..ResponseEnd::default()
    };
    let json = event(HttpEvent::ResponseEnd(end)).to_json();
    let expected = r#"{"id":{"base":1,"stream":"1152921504606846976"},"sinceRequestInit":null,
        "sinceResponseInit":null,"responseBytes":"9","eos":{"resetErrorCode":8},"trailers":null}"#;
    assert_eq!(json["http"]["responseEnd"], parsed(expected));
}

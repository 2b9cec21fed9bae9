//! The output for reports that are sent and that are not.

use mesh_k8s::heartbeat::{Observations, Parameter};
use serde_json::json;

use super::*;

fn report() -> Report {
    let observations = Observations {
        architecture: Ok("amd64".to_owned()),
        config: Err("forbidden".to_owned()),
        kubernetes_version: Ok("v1.34.1".to_owned()),
        extensions: Ok(Vec::new()),
        service_profiles: Ok(None),
    };
    let figure = Parameter {
        name: "total-rps".to_owned(),
        value: Ok("12\u{1b}".to_owned()),
        meaning: "requests per second that proxies receive",
    };
    Report::new(&observations, vec![figure])
}

fn on() -> Sending {
    Sending::On {
        url: "https://a.example/mesh".to_owned(),
        schedule: "5 4 * * *".to_owned(),
    }
}

fn off() -> Sending {
    Sending::Off {
        reason: "the value heartbeatUrl is empty".to_owned(),
        remedy: "set it".to_owned(),
    }
}

#[test]
fn table_has_request_and_what_is_left_out() {
    let (sending, report) = (on(), report());
    let expect = "\
A report is sent to https://a.example/mesh (schedule: 5 4 * * *).
GET https://a.example/mesh?arch=amd64&k8s-version=v1.34.1&source=heartbeat&total-rps=12%1B

PARAMETER    VALUE     MEANING
arch         amd64     architecture of the node that sends the report
k8s-version  v1.34.1   version of Kubernetes
source       heartbeat  kind of the report
total-rps    12\\u{1b}  requests per second that proxies receive

Left out of the report:
PARAMETER              REASON
service-profile-count  the API server does not count them

Not readable from here; the report has what the Job can read:
PARAMETER     REASON
install-time  forbidden
uuid          forbidden
version       forbidden
";
    let words = |text: &str| {
        let lines = text.lines();
        let lines = lines.map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "));
        lines.collect::<Vec<String>>()
    };
    assert_eq!(words(&render(&document(&sending, &report))), words(expect));
}

#[test]
fn report_that_is_off_is_shown_with_remedy() {
    let (sending, report) = (off(), report());
    let text = render(&document(&sending, &report));
    let head =
        "No report is sent: the value heartbeatUrl is empty.\nTo have it sent: set it\n\nPARAMETER";
    assert!(text.starts_with(head), "{text}");
    assert!(!text.contains("GET "), "{text}");
    assert!(text.contains("\nLeft out of the report:\n"), "{text}");
}

#[test]
fn json_has_status_of_each_parameter() {
    let (sending, report) = (on(), report());
    let json = serde_json::to_value(document(&sending, &report)).unwrap();
    assert_eq!(json["sending"], "on");
    assert_eq!(json["url"], "https://a.example/mesh");
    let request = json["request"].as_str().unwrap();
    assert!(
        request.starts_with("https://a.example/mesh?arch=amd64&"),
        "{request}"
    );
    let parameter = |name: &str| {
        let mut parameters = json["parameters"].as_array().unwrap().iter();
        parameters.find(|it| it["name"] == name).unwrap().clone()
    };
    let source = json!({
        "name": "source", "status": "sent", "value": "heartbeat", "meaning": "kind of the report",
    });
    assert_eq!(parameter("source"), source);
    assert_eq!(parameter("uuid")["status"], "unknown");
    assert_eq!(parameter("uuid")["reason"], "forbidden");
    assert_eq!(parameter("service-profile-count")["status"], "leftOut");

    let off = off();
    let json = serde_json::to_value(document(&off, &report)).unwrap();
    assert_eq!(json["sending"], "off");
    assert_eq!(json["remedy"], "set it");
    assert_eq!(json.get("request"), None);
}

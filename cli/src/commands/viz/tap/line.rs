//! An event as a line, in Linkerd's form.

use mesh_core::labels::{Labels, workload_label};
use mesh_core::tap::{TapContext, TapDirection, TapEvent, TapEventKind, TapStreamEnd};

use crate::output::printable;
use crate::resource::ResourceKind;

/// The number of the last status that gRPC defines.
const LAST_GRPC_STATUS: u16 = 16;

/// Renders an event. With a kind, the line names the resources of this kind and the route.
pub(super) fn render(event: &TapEvent, resources: Option<ResourceKind>) -> String {
    let context = &*event.context;
    let (name, detail) = match &event.kind {
        TapEventKind::Request {
            method,
            authority,
            path,
            ..
        } => (
            "req",
            format!(":method={method} :authority={authority} :path={path}"),
        ),
        TapEventKind::Response {
            since_request,
            status,
            ..
        } => {
            let status = status.as_u16();
            let latency = since_request.as_micros();
            ("rsp", format!(":status={status} latency={latency}µs"))
        }
        TapEventKind::End {
            since_response,
            response_bytes,
            end,
            ..
        } => {
            let duration = since_response.as_micros();
            let end = stream_end(*end);
            (
                "end",
                format!("{end}duration={duration}µs response-length={response_bytes}B"),
            )
        }
    };
    let (base, stream) = (event.id.base, event.id.stream);
    let flow = flow(context);
    let resources = resources.map(|kind| shown_resources(context, kind));
    let resources = resources.unwrap_or_default();
    printable(&format!(
        "{name} id={base}:{stream} {flow} {detail}{resources}"
    ))
}

fn flow(context: &TapContext) -> String {
    // A space aligns `in` with `out`.
    let (proxy, peer) = match context.direction {
        TapDirection::Inbound => ("in ", &context.source_labels),
        TapDirection::Outbound => ("out", &context.destination_labels),
    };
    let (source, destination) = (context.source, context.destination);
    let tls = peer.get("tls").unwrap_or_default();
    format!("proxy={proxy} src={source} dst={destination} tls={tls}")
}

/// Returns a status or an error code, with a blank after it.
fn stream_end(end: TapStreamEnd) -> String {
    match end {
        TapStreamEnd::Complete => String::new(),
        TapStreamEnd::GrpcStatus(code) => format!("grpc-status={} ", grpc_status(code)),
        TapStreamEnd::Reset(code) => format!("reset-error={code} "),
    }
}

/// Returns the name of a status as Go writes it.
fn grpc_status(code: u16) -> String {
    match code {
        0 => "OK".to_owned(),
        1 => "Canceled".to_owned(),
        2..=LAST_GRPC_STATUS => format!("{:?}", tonic::Code::from_i32(code.into())),
        _ => format!("Code({code})"),
    }
}

fn shown_resources(context: &TapContext, kind: ResourceKind) -> String {
    let source = shown_resource("src", &context.source_labels, kind);
    let destination = shown_resource("dst", &context.destination_labels, kind);
    let route = context.route_labels.iter();
    let route: String = route
        .map(|(name, value)| format!(" rt_{name}={value}"))
        .collect();
    format!("{source}{destination}{route}")
}

/// Returns the resource of this kind, or else the pod.
fn shown_resource(end: &str, labels: &Labels, kind: ResourceKind) -> String {
    let mut text = String::new();
    if let Some(name) = labels.get(workload_label(kind.as_str())) {
        text += &format!(" {end}_res={}/{name}", kind.short());
    } else if let Some(pod) = labels.get("pod") {
        text += &format!(" {end}_pod={pod}");
    }
    if kind != ResourceKind::Namespace
        && let Some(namespace) = labels.get("namespace")
    {
        text += &format!(" {end}_ns={namespace}");
    }
    text
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use http::{Method, StatusCode};
    use mesh_core::tap::TapStreamId;

    use super::*;

    fn event(direction: TapDirection, kind: TapEventKind) -> TapEvent {
        let context = TapContext {
            direction,
            source: "10.0.0.1:5000".parse().unwrap(),
            source_labels: [("tls", "true"), ("pod", "client-1"), ("namespace", "shop")]
                .into_iter()
                .collect(),
            destination: "[fd00::2]:80".parse().unwrap(),
            destination_labels: [
                ("tls", "not_provided_by_service_discovery"),
                ("deployment", "web"),
            ]
            .into_iter()
            .collect(),
            route_labels: [("route", "GET /a")].into_iter().collect(),
        };
        TapEvent {
            context: Arc::new(context),
            id: TapStreamId { base: 1, stream: 2 },
            kind,
        }
    }

    fn request(path: &str) -> TapEventKind {
        TapEventKind::Request {
            method: Method::GET,
            scheme: "http".to_owned(),
            authority: "web:80".to_owned(),
            path: path.to_owned(),
            headers: None,
        }
    }

    #[test]
    fn events_are_lines_of_linkerd() {
        let inbound = "proxy=in  src=10.0.0.1:5000 dst=[fd00::2]:80 tls=true";
        assert_eq!(
            render(&event(TapDirection::Inbound, request("/a")), None),
            format!("req id=1:2 {inbound} :method=GET :authority=web:80 :path=/a")
        );
        let response = TapEventKind::Response {
            since_request: Duration::from_micros(1_500_000),
            status: StatusCode::OK,
            headers: None,
        };
        assert_eq!(
            render(&event(TapDirection::Inbound, response), None),
            format!("rsp id=1:2 {inbound} :status=200 latency=1500000µs")
        );
        for (end, text) in [
            (TapStreamEnd::Complete, ""),
            (TapStreamEnd::GrpcStatus(0), "grpc-status=OK "),
            (TapStreamEnd::GrpcStatus(5), "grpc-status=NotFound "),
            (TapStreamEnd::GrpcStatus(99), "grpc-status=Code(99) "),
            (TapStreamEnd::Reset(8), "reset-error=8 "),
        ] {
            let end = TapEventKind::End {
                since_request: Duration::from_millis(9),
                since_response: Duration::from_millis(2),
                response_bytes: 12,
                end,
                trailers: None,
            };
            assert_eq!(
                render(&event(TapDirection::Inbound, end), None),
                format!("end id=1:2 {inbound} {text}duration=2000µs response-length=12B")
            );
        }
    }

    #[test]
    fn wide_lines_have_resources_and_route() {
        let line = render(
            &event(TapDirection::Outbound, request("/a")),
            Some(ResourceKind::Deployment),
        );
        assert!(line.contains("proxy=out"), "{line}");
        assert!(
            line.contains("tls=not_provided_by_service_discovery"),
            "{line}"
        );
        let end = " src_pod=client-1 src_ns=shop dst_res=deploy/web rt_route=GET /a";
        assert!(line.ends_with(end), "{line}");
    }

    #[test]
    fn control_characters_of_peers_do_not_reach_the_terminal() {
        let line = render(&event(TapDirection::Inbound, request("/\x1b[2J\n")), None);
        assert!(line.ends_with(":path=/\\u{1b}[2J\\n"), "{line}");
    }
}

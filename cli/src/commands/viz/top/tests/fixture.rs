//! Requests for the tests of the view and its drawing.

use std::sync::Arc;
use std::time::Duration;

use http::Method;
use mesh_core::labels::Labels;
use mesh_core::tap::{TapContext, TapDirection, TapEvent, TapEventKind, TapStreamEnd, TapStreamId};

use super::super::live::LiveRequests;

/// Records a completed request.
pub(in crate::commands::viz::top) fn complete(
    live: &mut LiveRequests,
    pod: &str,
    path: &str,
    millis: u64,
    ok: bool,
) {
    let context = Arc::new(TapContext {
        direction: TapDirection::Outbound,
        source: "10.0.0.1:5000".parse().unwrap(),
        source_labels: [("pod", "client-0")].into_iter().collect(),
        destination: "10.0.0.2:80".parse().unwrap(),
        destination_labels: [("pod", pod)].into_iter().collect(),
        route_labels: Labels::default(),
    });
    let request = TapEventKind::Request {
        method: Method::GET,
        scheme: "http".to_owned(),
        authority: "web".to_owned(),
        path: path.to_owned(),
        headers: None,
    };
    let end = TapEventKind::End {
        since_request: Duration::from_millis(millis),
        since_response: Duration::ZERO,
        response_bytes: 0,
        end: if ok {
            TapStreamEnd::Complete
        } else {
            TapStreamEnd::Reset(2)
        },
        trailers: None,
    };
    let id = TapStreamId {
        base: 1,
        stream: live.completed(),
    };
    for kind in [request, end] {
        live.record(&TapEvent {
            context: context.clone(),
            id,
            kind,
        });
    }
}

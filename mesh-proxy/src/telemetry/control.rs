//! The metrics of control-plane calls: `control_request_total` and related families, with one set
//! of series for each service.
//!
//! Used on the control thread. Most calls are streams that last for hours; their latencies are
//! observed with the first frame, and their responses are counted when they end.

use std::sync::Arc;

use http::{HeaderMap, StatusCode};
use mesh_core::identity::Identity;
use mesh_runtime::metrics::{Counter, Labels, Registry};
use tokio::time::Instant;

use super::http::{EndpointFamilies, grpc_status};
use super::labels::{self, ClientTls, NoClientTls};
use super::status::{GrpcStatus, Outcome, StreamError};

/// The series of one control-plane service.
#[derive(Debug)]
pub(crate) struct ControlCalls {
    families: EndpointFamilies,
    labels: Labels,
    requests: Counter,
}

/// One call, until the end of its response. Counts as failed if it is dropped before.
#[derive(Debug)]
pub(crate) struct ControlCall {
    calls: Arc<ControlCalls>,
    since: Instant,
    status: Option<StatusCode>,
    /// The gRPC status in the headers of a trailers-only response.
    grpc_status: Option<u16>,
    latency_observed: bool,
    ended: bool,
}

impl ControlCalls {
    /// `authority` is the host and port of the service, and `identity` the one that it must
    /// authenticate as; `None` for a service in this pod, which is connected to in plaintext.
    pub(crate) fn new(registry: &Registry, authority: &str, identity: Option<Identity>) -> Self {
        let families = EndpointFamilies::control(registry);
        let tls = match identity {
            Some(server) => ClientTls::Established { server },
            None => ClientTls::None(NoClientTls::Loopback),
        };
        let labels = labels::control(authority, &tls);
        Self {
            requests: families.requests(&labels),
            families,
            labels,
        }
    }

    /// Counts a call that is being sent.
    pub(crate) fn begin(self: &Arc<Self>) -> ControlCall {
        self.requests.inc();
        ControlCall {
            calls: self.clone(),
            since: Instant::now(),
            status: None,
            grpc_status: None,
            latency_observed: false,
            ended: false,
        }
    }
}

impl ControlCall {
    pub(crate) fn response_headers(&mut self, status: StatusCode, headers: &HeaderMap) {
        self.status = Some(status);
        self.grpc_status = grpc_status(headers);
    }

    /// Observes the latency with the first frame of the response's body.
    pub(crate) fn response_frame(&mut self) {
        let Some(status) = self.status else { return };
        if !std::mem::replace(&mut self.latency_observed, true) {
            let ControlCalls {
                families, labels, ..
            } = &*self.calls;
            families.latency(labels, status, self.since.elapsed());
        }
    }

    /// Counts a complete response.
    pub(crate) fn end(&mut self, trailers: Option<&HeaderMap>) {
        let code = trailers.and_then(grpc_status).or(self.grpc_status);
        let grpc = Some(code.map_or(GrpcStatus::Missing, GrpcStatus::Code));
        match self.status {
            Some(status) => self.finish(Outcome::Response { status, grpc }),
            None => self.fail(),
        }
    }

    /// Counts a missing or incomplete response.
    pub(crate) fn fail(&mut self) {
        self.finish(Outcome::Failed {
            status: self.status,
            error: StreamError::Unknown,
        });
    }

    fn finish(&mut self, outcome: Outcome) {
        if !std::mem::replace(&mut self.ended, true) {
            // A response without a body.
            self.response_frame();
            let ControlCalls {
                families, labels, ..
            } = &*self.calls;
            families.end(labels, outcome);
        }
    }
}

impl Drop for ControlCall {
    fn drop(&mut self) {
        self.fail();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn latency_of_a_stream_ends_with_its_first_message() {
        let registry = Registry::new();
        let calls = Arc::new(ControlCalls::new(
            &registry,
            "policy.linkerd.svc.:8090",
            None,
        ));
        let mut call = calls.begin();
        call.response_headers(StatusCode::OK, &HeaderMap::new());
        tokio::time::advance(std::time::Duration::from_millis(3)).await;
        call.response_frame();
        tokio::time::advance(std::time::Duration::from_secs(3_600)).await;
        call.response_frame();
        call.end(None);
        let text = String::from_utf8(registry.encode()).unwrap();
        let sums = text.lines().filter(|line| line.contains("latency_ms_sum"));
        let sums: Vec<_> = sums.filter_map(|line| line.rsplit(' ').next()).collect();
        assert_eq!(sums, ["3"], "{text}");
    }

    #[test]
    fn calls_are_counted_at_start_and_end() {
        let registry = Registry::new();
        let calls = |identity: Option<&str>| {
            let identity = identity.map(|id| Identity::parse(id).unwrap());
            Arc::new(ControlCalls::new(
                &registry,
                "policy.linkerd.svc.:8090",
                identity,
            ))
        };
        let local = calls(None);
        let calls = calls(Some("policy.test"));
        let trailers = |code: &str| {
            HeaderMap::from_iter([("grpc-status".parse().unwrap(), code.parse().unwrap())])
        };
        let no_headers = HeaderMap::new();
        let mut open = calls.begin();
        open.response_headers(StatusCode::OK, &no_headers);
        let mut ended = calls.begin();
        ended.response_headers(StatusCode::OK, &no_headers);
        ended.end(Some(&trailers("0")));
        ended.end(None);
        let mut failed = calls.begin();
        failed.response_headers(StatusCode::OK, &trailers("14"));
        failed.end(None);
        drop((ended, failed, calls.begin()));
        drop(local.begin());

        let text = String::from_utf8(registry.encode()).unwrap();
        let of = "addr=\"policy.linkerd.svc.:8090\",tls=\"true\",server_id=\"policy.test\"";
        for line in [
            format!("control_request_total{{{of}}} 4\n"),
            format!("control_response_total{{{of},status_code=\"200\",classification=\"success\",grpc_status=\"0\",error=\"\"}} 1\n"),
            format!("control_response_total{{{of},status_code=\"200\",classification=\"failure\",grpc_status=\"14\",error=\"\"}} 1\n"),
            format!("control_response_total{{{of},classification=\"failure\",grpc_status=\"\",error=\"unclassified\"}} 1\n"),
            format!("control_response_latency_ms_count{{{of},status_code=\"200\"}} 2\n"),
            "control_request_total{addr=\"policy.linkerd.svc.:8090\",tls=\"no_identity\",no_tls_reason=\"loopback\"} 1\n".to_owned(),
        ] {
            assert!(text.contains(&line), "{line}{text}");
        }
        drop(open);
    }
}

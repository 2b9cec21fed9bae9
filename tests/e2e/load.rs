//! A steady load of HTTP requests from the client's pod, by h2load, and the outcome of every
//! request.
//!
//! h2load runs detached in the pod, not under `kubectl exec`, so that it survives an outage of the
//! API server.

use std::sync::atomic::{AtomicU32, Ordering};

use mesh_test_support::cluster::Cluster;
use mesh_test_support::eventually::eventually;

use crate::shop;

/// A running load.
pub(crate) struct Load<'a> {
    cluster: &'a Cluster,
    what: String,
    /// File in the pod with the output of h2load, and its end marker.
    file: String,
}

/// The counters of h2load.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct LoadReport {
    pub(crate) succeeded: u64,
    /// Requests with a 4xx or 5xx status, aborted, or without a response.
    pub(crate) failed: u64,
    pub(crate) report: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HttpVersion {
    Http1,
    Http2,
}

/// Connections of a load, which share its 200 requests per second.
const CONNECTIONS: u32 = 8;
const EACH: u32 = 200 / CONNECTIONS;

/// The last line of the file once h2load has exited.
const END: &str = "== h2load ended";

static NEXT: AtomicU32 = AtomicU32::new(0);

impl<'a> Load<'a> {
    /// Starts 200 requests per second for `seconds`.
    pub(crate) fn start(
        cluster: &'a Cluster,
        url: &str,
        version: HttpVersion,
        seconds: u32,
    ) -> Self {
        let file = format!("/tmp/load-{}", NEXT.fetch_add(1, Ordering::Relaxed));
        let protocol = match version {
            HttpVersion::Http1 => "--h1",
            HttpVersion::Http2 => "",
        };
        let script = format!(
            "setsid sh -c 'h2load {protocol} -c {CONNECTIONS} --rps {EACH} -D {seconds} {url}; echo {END}' > {file} 2>&1 < /dev/null &"
        );
        let load = Self {
            cluster,
            what: format!("{url} for {seconds} s"),
            file,
        };
        let (ok, output) = load.run(&script);
        assert!(ok, "{}: {output}", load.what);
        load
    }

    /// Returns whether requests are still being sent.
    pub(crate) fn is_running(&self) -> bool {
        !self.report().contains(END)
    }

    /// Waits for the end of the load.
    pub(crate) fn finish(self) -> LoadReport {
        eventually(&format!("the end of the load on {}", self.what), || {
            !self.is_running()
        });
        parse_report(self.report())
    }

    fn report(&self) -> String {
        // Omits progress lines.
        let (_, output) = self.run(&format!("grep -v '^progress' {}", self.file));
        output
    }

    fn run(&self, script: &str) -> (bool, String) {
        self.cluster
            .exec(shop::NAMESPACE, "deployment/client", ["sh", "-c", script])
    }
}

/// Parses the two summary lines:
/// `requests: 12 total, 12 started, 12 done, 12 succeeded, 0 failed, 0 errored, 0 timeout` and
/// `status codes: 12 2xx, ...`.
fn parse_report(report: String) -> LoadReport {
    let line = |start: &str| {
        let found = report.lines().find_map(|line| line.strip_prefix(start));
        found.unwrap_or_else(|| panic!("h2load printed no {start:?}: {report}"))
    };
    let of = |line: &str, what: &str| -> u64 {
        let part = line
            .split(", ")
            .find_map(|part| part.trim().strip_suffix(what));
        part.and_then(|number| number.trim().parse().ok())
            .unwrap_or_else(|| panic!("h2load did not count {what:?}: {line}"))
    };
    let requests = line("requests: ");
    let codes = line("status codes: ");
    LoadReport {
        succeeded: of(codes, " 2xx"),
        failed: of(requests, " failed")
            + of(requests, " timeout")
            + of(codes, " 4xx")
            + of(codes, " 5xx"),
        report,
    }
}

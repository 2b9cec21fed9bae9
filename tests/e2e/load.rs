//! A steady load of HTTP requests from the client's pod, by h2load, and what became of every one of
//! them.
//!
//! h2load runs in the pod on its own, not at the end of a `kubectl exec`, so that it goes on when
//! the API server does not.

use std::sync::atomic::{AtomicU32, Ordering};

use crate::{
    cluster::{Cluster, wait_until},
    shop,
};

/// Requests that are being sent.
pub(crate) struct Load<'a> {
    cluster: &'a Cluster,
    what: String,
    /// In the pod: what h2load said, and whether it has ended.
    file: String,
}

/// What h2load counted.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct LoadReport {
    pub(crate) succeeded: u64,
    /// Answered with 4xx or 5xx, broken off, or never answered.
    pub(crate) failed: u64,
    pub(crate) report: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HttpVersion {
    Http1,
    Http2,
}

/// Connections of a load; its 200 requests a second are shared among them.
const CONNECTIONS: u32 = 8;
const EACH: u32 = 200 / CONNECTIONS;

/// The last line of a file, once h2load has ended.
const END: &str = "== h2load ended";

static NEXT: AtomicU32 = AtomicU32::new(0);

impl<'a> Load<'a> {
    /// Starts 200 requests a second for so many seconds.
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

    /// Whether requests are still being sent.
    pub(crate) fn is_running(&self) -> bool {
        !self.report().contains(END)
    }

    /// Waits for the end.
    pub(crate) fn finish(self) -> LoadReport {
        wait_until(&format!("the end of the load on {}", self.what), || {
            if self.is_running() {
                Err("h2load still runs".to_owned())
            } else {
                Ok(())
            }
        });
        parse_report(self.report())
    }

    fn report(&self) -> String {
        // Without the progress of every tenth.
        let (_, output) = self.run(&format!("grep -v '^progress' {}", self.file));
        output
    }

    fn run(&self, script: &str) -> (bool, String) {
        self.cluster
            .exec(shop::NAMESPACE, "deployment/client", &["sh", "-c", script])
    }
}

/// Reads the two lines that count:
/// `requests: 12 total, 12 started, 12 done, 12 succeeded, 0 failed, 0 errored, 0 timeout` and
/// `status codes: 12 2xx, ...`.
fn parse_report(report: String) -> LoadReport {
    let line = |start: &str| {
        let found = report.lines().find_map(|line| line.strip_prefix(start));
        found.unwrap_or_else(|| panic!("h2load did not say {start:?}: {report}"))
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

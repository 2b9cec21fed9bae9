//! A steady load of HTTP requests from the client's pod, by h2load, and downloads that last longer
//! than a pod takes to stop, by curl: with the outcome of every request.
//!
//! Both run detached in the pod, not under `kubectl exec`, so that they survive an outage of the
//! API server.

use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use mesh_test_support::cluster::Cluster;
use mesh_test_support::eventually::eventually;

use crate::shop;

/// A running load.
pub(crate) struct Load<'a>(Detached<'a>);

/// A running load that logs every request.
pub(crate) struct LoggedLoad<'a> {
    load: Load<'a>,
    /// File in the pod.
    log: String,
}

/// A request of a [`LoggedLoad`].
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Request {
    /// The time since 1970 when it ended.
    pub(crate) ended: Duration,
    /// Whether it got a 2xx or 3xx response.
    pub(crate) succeeded: bool,
}

/// Running downloads.
pub(crate) struct Downloads<'a>(Detached<'a>);

/// A command that runs in the client's pod.
struct Detached<'a> {
    cluster: &'a Cluster,
    what: String,
    /// When the command has run for as long as it was told.
    ends: Instant,
    /// File in the pod with the output of the command, and its end marker.
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

/// The rate of a load whose purpose is to be interrupted, in requests per second.
pub(crate) const STEADY: u32 = 200;

/// Connections of a load, which share its requests.
const CONNECTIONS: u32 = 10;

/// Downloads at the same time.
const DOWNLOADS: u32 = 4;

/// The line that a download writes when it has received everything.
const COMPLETE: &str = "complete";

/// The last line of the file once the command has exited.
const END: &str = "== ended";

/// The pause between two questions whether a long command has ended.
const PAUSE: Duration = Duration::from_secs(1);

static NEXT: AtomicU32 = AtomicU32::new(0);

impl<'a> Load<'a> {
    /// Starts `rate` requests per second, a multiple of [`CONNECTIONS`], for `seconds`.
    pub(crate) fn start(
        cluster: &'a Cluster,
        url: &str,
        version: HttpVersion,
        rate: u32,
        seconds: u32,
    ) -> Self {
        let protocol = match version {
            HttpVersion::Http1 => "--h1",
            HttpVersion::Http2 => "",
        };
        Self::start_with(cluster, url, protocol, rate, seconds)
    }

    fn start_with(cluster: &'a Cluster, url: &str, options: &str, rate: u32, seconds: u32) -> Self {
        let each = rate / CONNECTIONS;
        Self(Detached::start(
            cluster,
            &format!("the load on {url} for {seconds} s"),
            &format!("h2load {options} -c {CONNECTIONS} --rps {each} -D {seconds} {url}"),
            seconds,
        ))
    }

    /// Returns whether requests are still being sent.
    pub(crate) fn is_running(&self) -> bool {
        self.0.is_running()
    }

    /// Waits for the end of the load.
    pub(crate) fn finish(self) -> LoadReport {
        parse_report(self.0.finish())
    }
}

impl<'a> LoggedLoad<'a> {
    /// Starts a load by HTTP/1.1, as [`Load::start`] does.
    pub(crate) fn start(cluster: &'a Cluster, url: &str, rate: u32, seconds: u32) -> Self {
        let log = format!("/tmp/requests-{}", NEXT.fetch_add(1, Ordering::Relaxed));
        let options = format!("--h1 --log-file={log}");
        let load = Load::start_with(cluster, url, &options, rate, seconds);
        Self { load, log }
    }

    /// Waits for the end of the load, and returns its requests.
    pub(crate) fn finish(self) -> Vec<Request> {
        let pod = self.load.0;
        pod.wait();
        let (ok, log) = pod.run(&format!("cat {}", self.log));
        assert!(ok, "{}: {log}", pod.output());
        log.lines().map(parse_request).collect()
    }
}

impl<'a> Downloads<'a> {
    /// Starts downloads that follow each other for `seconds`. The last ones end later.
    pub(crate) fn start(
        cluster: &'a Cluster,
        url: &str,
        version: HttpVersion,
        seconds: u32,
    ) -> Self {
        let protocol = match version {
            HttpVersion::Http1 => "--http1.1",
            HttpVersion::Http2 => "--http2-prior-knowledge",
        };
        let one = format!("curl -sS --fail -o /dev/null {protocol} {url} && echo {COMPLETE}");
        let sequence = format!("while [ $(date +%s) -lt $end ]; do {one}; done");
        let command = format!(
            "end=$(($(date +%s) + {seconds})); for n in $(seq {DOWNLOADS}); do {sequence} & done; wait"
        );
        Self(Detached::start(
            cluster,
            &format!("the downloads of {url} for {seconds} s"),
            &command,
            seconds,
        ))
    }

    /// Waits for the last download. Returns the number of complete ones, and the reports of the
    /// others.
    pub(crate) fn finish(self) -> (usize, Vec<String>) {
        let output = self.0.finish();
        let (complete, others): (Vec<&str>, _) = output.lines().partition(|line| *line == COMPLETE);
        let is_failure = |line: &&str| *line != END && !line.is_empty();
        let failures = others.into_iter().filter(is_failure);
        (complete.len(), failures.map(str::to_owned).collect())
    }
}

impl<'a> Detached<'a> {
    fn start(cluster: &'a Cluster, what: &str, command: &str, seconds: u32) -> Self {
        let file = format!("/tmp/load-{}", NEXT.fetch_add(1, Ordering::Relaxed));
        let detached = Self {
            cluster,
            what: what.to_owned(),
            ends: Instant::now() + Duration::from_secs(seconds.into()),
            file,
        };
        let (ok, output) = detached.run(&format!(
            "setsid sh -c '{command}; echo {END}' > {} 2>&1 < /dev/null &",
            detached.file
        ));
        assert!(ok, "{what}: {output}");
        detached
    }

    fn is_running(&self) -> bool {
        !self.output().contains(END)
    }

    /// Waits for the end of the command, which may take longer than [`eventually`] waits.
    fn wait(&self) {
        while Instant::now() < self.ends && self.is_running() {
            thread::park_timeout(PAUSE);
        }
        eventually(&format!("the end of {}", self.what), || !self.is_running());
    }

    /// Waits for the end of the command, and returns its output.
    fn finish(self) -> String {
        self.wait();
        self.output()
    }

    fn output(&self) -> String {
        // Omits progress lines.
        let (_, output) = self.run(&format!("grep -v '^progress' {}", self.file));
        output
    }

    fn run(&self, script: &str) -> (bool, String) {
        self.cluster
            .exec(shop::NAMESPACE, "deployment/client", ["sh", "-c", script])
    }
}

/// Parses a line of the log: when the request was sent, in microseconds since 1970, its status, and
/// its duration in microseconds. The status is -1 if there was no response.
fn parse_request(line: &str) -> Request {
    let fields = line.split('\t').map(|field| field.parse().ok());
    match fields.collect::<Option<Vec<i64>>>().as_deref() {
        Some(&[sent, status, duration]) => Request {
            ended: Duration::from_micros((sent + duration).unsigned_abs()),
            succeeded: (200..400).contains(&status),
        },
        _ => panic!("h2load logged {line:?}"),
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

//! Observes the pods of both ends while the connection is made: the decisions of the kernel by the
//! node agents' traces, the requests by taps of the proxies.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use mesh_core::redirection::RedirectionEvent;
use mesh_core::tap::{TapEvent, TapEventKind};
use parking_lot::Mutex;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::super::facts::{Connection, Exchange, Fact, Facts, TappedRequest, TappedResponse};
use super::candidate::Candidate;
use super::exchange::MARKER;
use super::{OF_CLIENT, OF_SERVER, workload};
use crate::clients::tap::TapQuery;
use crate::mesh::Mesh;
use crate::mesh::agent_process::{AgentProcess, next_line};
use crate::mesh::tap::{TapStream, Taps};
use crate::resource::{MeshPod, Resource, ResourceKind};

/// What one observer has seen. The lock protects the list: the observer appends, the command reads.
type Seen<T> = Arc<Mutex<Vec<T>>>;

pub(super) struct Observers {
    client_kernel: Fact<Seen<RedirectionEvent>>,
    server_kernels: Vec<(Candidate, Fact<Seen<RedirectionEvent>>)>,
    client_tap: Fact<Seen<TapEvent>>,
    server_taps: Vec<Fact<Seen<TapEvent>>>,
    /// The observers end with the command.
    tasks: JoinSet<()>,
}

/// Maximum number of endpoints that are observed. Each has a trace and a tap.
const MAX_OBSERVED: usize = 8;

/// Events that one observer keeps; a busy pod has more within the time of a question.
const MAX_EVENTS: usize = 10_000;

/// Requests per second that a tap reports. They have the same method and path as the question's.
const MAX_RPS: f32 = 1_000.0;

/// A source of taps responds before the proxies have its subscription, which takes one connection.
const SUBSCRIBE_TIME: Duration = Duration::from_millis(300);

/// How long events are waited for after the response.
const COLLECT_TIME: Duration = Duration::from_secs(1);
const POLL_INTERVAL: Duration = Duration::from_millis(20);

impl Observers {
    /// Observes nothing, for this reason.
    pub(super) fn none(reason: &str) -> Self {
        Self {
            client_kernel: Err(reason.to_owned()),
            server_kernels: Vec::new(),
            client_tap: Err(reason.to_owned()),
            server_taps: vec![Err(reason.to_owned())],
            tasks: JoinSet::new(),
        }
    }

    /// `path` is the request's path, if a request is sent.
    pub(super) async fn start(
        mesh: &Mesh,
        client: &MeshPod,
        node: &str,
        candidates: &[Candidate],
        path: Option<&str>,
    ) -> Self {
        let observed = &candidates[..candidates.len().min(MAX_OBSERVED)];
        let client_name = client.to_string();
        let taps = Taps::new(mesh);
        let (client_kernel, client_tap, server_kernels, server_taps) = tokio::join!(
            trace(mesh, node, &client_name),
            tap(&taps, (&client.namespace, &client.name), path),
            join_all(observed.iter().map(|server| trace_server(mesh, server))),
            join_all(observed.iter().map(|server| tap(
                &taps,
                (&server.namespace, &server.name),
                path
            ))),
        );
        let mut tasks = JoinSet::new();
        let client_kernel = client_kernel.map(|process| record_trace(process, &mut tasks));
        let client_tap = client_tap.map(|stream| record_tap(stream, &mut tasks));
        let server_kernels = observed
            .iter()
            .zip(server_kernels)
            .map(|(server, process)| {
                let events = process.map(|process| record_trace(process, &mut tasks));
                (server.clone(), events)
            })
            .collect();
        let server_taps = server_taps
            .into_iter()
            .map(|stream| stream.map(|stream| record_tap(stream, &mut tasks)))
            .collect();
        if client_tap.is_ok() {
            tokio::time::sleep(SUBSCRIBE_TIME).await;
        }
        Self {
            client_kernel,
            server_kernels,
            client_tap,
            server_taps,
            tasks,
        }
    }

    /// Waits until the client's observers have seen the connection, for a bounded time, and adds
    /// what they have seen to the facts.
    pub(super) async fn collect(&self, facts: &mut Facts) {
        let deadline = Instant::now() + COLLECT_TIME;
        loop {
            facts.client_kernel = read(&self.client_kernel);
            facts.client_tap = self.tap_of_client(facts);
            if self.has_seen(facts) || Instant::now() >= deadline || self.tasks.is_empty() {
                return;
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }

    fn has_seen(&self, facts: &Facts) -> bool {
        let Connection::Made {
            local, exchange, ..
        } = &facts.connection
        else {
            return true;
        };
        let tapped = match (&facts.client_tap, exchange) {
            (Ok(Some(tapped)), Exchange::Response(_)) => tapped.response.is_some(),
            (Ok(Some(_)) | Err(_), _) => true,
            (Ok(None), _) => false,
        };
        let traced = facts.client_kernel.as_ref().is_ok_and(|events| {
            let mut events = events.iter();
            events.any(|event| {
                event.source == Some(*local) || event.destination == facts.target.address
            })
        });
        tapped && (traced || facts.client_kernel.is_err())
    }

    fn tap_of_client(&self, facts: &Facts) -> Fact<Option<TappedRequest>> {
        let events = read(&self.client_tap)?;
        Ok(view(&events, OF_CLIENT, facts))
    }

    /// Returns the report of the request by the server's proxy, whichever endpoint the server is.
    pub(super) fn tap_of_server(&self, facts: &Facts) -> Fact<Option<TappedRequest>> {
        let mut reason = Err("the server is not one of the tapped pods".to_owned());
        for tap in &self.server_taps {
            reason = match read(tap) {
                Ok(events) => match view(&events, OF_SERVER, facts) {
                    Some(tapped) => return Ok(Some(tapped)),
                    None => Ok(None),
                },
                Err(error) => Err(error),
            };
        }
        reason
    }

    pub(super) fn kernel_of(&self, candidate: &Candidate) -> Fact<Vec<RedirectionEvent>> {
        let mut all = self.server_kernels.iter();
        match all.find(|(of, _)| of == candidate) {
            Some((_, events)) => read(events),
            None => Err("the pod was not traced".to_owned()),
        }
    }
}

fn read<T: Clone>(seen: &Fact<Seen<T>>) -> Fact<Vec<T>> {
    let seen = seen.as_ref().map_err(String::clone)?;
    Ok(seen.lock().clone())
}

fn push<T>(seen: &Seen<T>, event: T) {
    let mut seen = seen.lock();
    if seen.len() < MAX_EVENTS {
        seen.push(event);
    }
}

async fn trace_server(mesh: &Mesh, server: &Candidate) -> Fact<AgentProcess> {
    let Candidate {
        namespace, name, ..
    } = server;
    let pod = workload::pod(mesh, namespace, name).await;
    let pod = pod.map_err(|error| format!("{error:#}"))?;
    let node = workload::node(mesh, &pod);
    trace(mesh, &node, &format!("{namespace}/{name}")).await
}

/// Starts a trace of the kernel programs in a pod.
async fn trace(mesh: &Mesh, node: &str, pod: &str) -> Fact<AgentProcess> {
    let start = async {
        let mut process = mesh
            .run_agent(node, &["trace", "--stdin", "--pod", pod])
            .await?;
        let line = process.first_line().await?;
        anyhow::ensure!(
            line.contains("\"tracing\""),
            "unexpected output of `mesh-agent trace`: {line}"
        );
        anyhow::Ok(process)
    };
    start.await.map_err(|error| format!("{error:#}"))
}

fn record_trace(process: AgentProcess, tasks: &mut JoinSet<()>) -> Seen<RedirectionEvent> {
    let seen = Seen::default();
    tasks.spawn(follow(process, seen.clone()));
    seen
}

/// Reads a trace. Owns the whole process, because the end of its input ends the trace.
async fn follow(mut process: AgentProcess, seen: Seen<RedirectionEvent>) {
    // The events seen before the end of the trace, or before an invalid line, stay.
    while let Ok(Some(line)) = next_line(&mut process.output).await {
        if let Ok(event) = serde_json::from_str(&line) {
            push(&seen, event);
        }
    }
}

/// Starts a tap of a pod's proxy.
async fn tap(
    taps: &Taps<'_>,
    (namespace, name): (&str, &str),
    path: Option<&str>,
) -> Fact<TapStream> {
    let Some(path) = path else {
        return Err("a tap reports requests, and none was sent".to_owned());
    };
    let start = async {
        let target = Resource {
            kind: ResourceKind::Pod,
            name: Some(name.to_owned()),
        };
        let mut query = TapQuery::new(&target, namespace)?;
        query.path = Some(path.to_owned());
        query.max_rps = MAX_RPS;
        query.with_headers = true;
        taps.start(&query).await
    };
    start.await.map_err(|error| format!("{error:#}"))
}

fn record_tap(mut stream: TapStream, tasks: &mut JoinSet<()>) -> Seen<TapEvent> {
    let seen: Seen<TapEvent> = Seen::default();
    let events = seen.clone();
    tasks.spawn(async move {
        // The events seen before the end of the tap stay.
        while let Ok(Some(event)) = stream.next().await {
            push(&events, event);
        }
    });
    seen
}

/// Returns the request with the marker of the facts' request, as one proxy reported it.
fn view(
    events: &[TapEvent],
    direction: mesh_core::tap::TapDirection,
    facts: &Facts,
) -> Option<TappedRequest> {
    let marker = facts.request.as_ref()?.marker.as_bytes();
    let is_marked = |event: &&TapEvent| match &event.kind {
        TapEventKind::Request { headers, .. } => {
            event.context.direction == direction
                && headers
                    .iter()
                    .flatten()
                    .any(|(name, value)| name == MARKER && value == marker)
        }
        TapEventKind::Response { .. } | TapEventKind::End { .. } => false,
    };
    // The last attempt of a retry decides.
    let request = events.iter().rfind(is_marked)?;
    let same = events.iter().filter(|event| event.id == request.id);
    let mut view = TappedRequest {
        source: request.context.source,
        destination: request.context.destination,
        source_labels: request.context.source_labels.clone(),
        destination_labels: request.context.destination_labels.clone(),
        response: None,
        end: None,
    };
    for event in same {
        match &event.kind {
            TapEventKind::Response {
                since_request,
                status,
                ..
            } => {
                view.response = Some(TappedResponse {
                    status: *status,
                    after: *since_request,
                });
            }
            TapEventKind::End { end, .. } => view.end = Some(*end),
            TapEventKind::Request { .. } => {}
        }
    }
    Some(view)
}

//! The API server of a world: the HTTP API of Kubernetes as far as the controllers use it, on a
//! simulated network, with the faults of a script.

use std::cell::{Ref, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::io;
use std::net::IpAddr;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream::{self, LocalBoxStream, StreamExt as _};
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use mesh_cluster::simulation::SENT_AT;
use mesh_simnet::{Accepted, Process};
use mesh_test_support::kube_api;
use rand::rngs::SmallRng;
use rand::{RngExt as _, SeedableRng as _};
use serde_json::{Value, json};
use tokio::sync::Notify;
use tokio::task::{JoinSet, spawn_local};
use tokio::time::{Instant, sleep};

use self::path::{Path, Query};
use crate::history::History;
use crate::resources::Resource;
use crate::script::{Answer, Cut, Requests};
use crate::store::{Id, Objects, Store};

mod path;
mod reads;
mod watch;
mod writes;

pub use self::path::Class;
pub use self::writes::{Claim, SLICE_LEASE, STATUS_LEASE, Write};

/// An API server. Clones are the same one.
#[derive(Clone)]
pub struct ApiServer(Rc<Shared>);

struct Shared {
    state: RefCell<State>,
    /// Wakes watches.
    changed: Notify,
    /// Resets all connections.
    restarted: Notify,
}

struct State {
    start: Instant,
    random: SmallRng,
    store: Store,
    /// Reads have the state of this version.
    lags_at: Option<u64>,
    history: History,
    rules: Vec<Rule>,
    next_rule: u64,
    unserved: BTreeSet<Resource>,
    watches: BTreeMap<u64, Option<Cut>>,
    next_watch: u64,
    processes: BTreeMap<IpAddr, usize>,
    requests: Vec<Received>,
    claims: Vec<Claim>,
    writes: Vec<Write>,
    /// Whether it restarts.
    is_down: bool,
    /// When the API server has gone back in time.
    restorations: Vec<Duration>,
    /// The most objects in a page of a list.
    page: usize,
}

struct Rule {
    number: u64,
    to: Requests,
    with: Answer,
    percent: u64,
    seed: u64,
    /// How often each path has been asked for.
    counts: BTreeMap<String, u64>,
}

/// A request that has arrived.
#[derive(Clone, Debug)]
pub struct Received {
    /// The number of the process.
    pub process: usize,
    pub class: Class,
    pub path: String,
    pub sent: Duration,
    pub at: Duration,
    pub outcome: Outcome,
}

/// What a client learns from a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// There is no response yet.
    Pending,
    Status(u16),
    /// A complete and regular response of a fault, or one that is cut.
    Faulty(Answer),
}

type ApiBody = StreamBody<LocalBoxStream<'static, Result<Frame<Bytes>, io::Error>>>;

/// A restored state is at least this many versions older. A new history that has caught up with the
/// old one before the next check is not noticed (docs/reliability.md, row 7); its first 110 seconds
/// have some hundred commits.
const MIN_REWIND: u64 = 400;

/// What listens on the port of API servers.
pub const PORT: u16 = 6443;

impl ApiServer {
    /// Creates an API server with these objects. It pages its lists by a size from the seed.
    pub fn new(seed: u64, objects: impl IntoIterator<Item = Value>) -> Self {
        let mut random = SmallRng::seed_from_u64(seed);
        let page = [1, 2, 500][random.random_range(0..3)];
        let mut state = State {
            start: Instant::now(),
            random,
            store: Store::default(),
            lags_at: None,
            history: History::default(),
            rules: Vec::new(),
            next_rule: 0,
            unserved: BTreeSet::new(),
            watches: BTreeMap::new(),
            next_watch: 0,
            processes: BTreeMap::new(),
            requests: Vec::new(),
            claims: Vec::new(),
            writes: Vec::new(),
            is_down: false,
            restorations: Vec::new(),
            page,
        };
        for object in objects {
            state.write(object, 0);
        }
        Self(Rc::new(Shared {
            state: RefCell::new(state),
            changed: Notify::new(),
            restarted: Notify::new(),
        }))
    }

    /// Numbers the process of a host.
    pub fn name_process(&self, host: IpAddr, number: usize) {
        self.0.state.borrow_mut().processes.insert(host, number);
    }

    /// Serves until the world ends.
    pub async fn serve(self, process: Process) {
        loop {
            let Ok(listener) = process.listen(PORT) else {
                unreachable!("nothing else listens on the host of the API server");
            };
            let mut connections = JoinSet::new();
            loop {
                tokio::select! {
                    biased;
                    () = self.0.restarted.notified() => break,
                    accepted = listener.accept() => {
                        connections.spawn_local(self.clone().serve_connection(accepted));
                    }
                    Some(_ended) = connections.join_next(), if !connections.is_empty() => {}
                }
            }
            connections.shutdown().await;
            drop(listener);
            // Until the script starts it again.
            self.0.restarted.notified().await;
        }
    }

    async fn serve_connection(self, accepted: Accepted) {
        let host = accepted.peer.ip();
        let process = self.0.state.borrow().processes.get(&host).copied();
        let process = process.unwrap_or(usize::MAX);
        let service = service_fn(move |request| {
            let api = self.clone();
            async move { Ok::<_, Infallible>(api.respond(process, request).await) }
        });
        let io = TokioIo::new(accepted.stream);
        // The length of a date depends on the day.
        let connection = http1::Builder::new()
            .auto_date_header(false)
            .serve_connection(io, service);
        let _closed = connection.await;
    }

    async fn respond(&self, process: usize, request: Request<Incoming>) -> Response<ApiBody> {
        let (parts, body) = request.into_parts();
        let text = parts.uri.path().to_owned();
        let query = Query::parse(parts.uri.query().unwrap_or_default());
        let parsed = Path::parse(&text);
        let class = Class::of(&parts.method, &text, &query);
        let header = |name| parts.headers.get(name)?.to_str().ok();
        let sent = header(SENT_AT).and_then(|it| it.parse().ok());
        let sent = Duration::from_millis(sent.unwrap_or_default());
        let number = self.0.state.borrow_mut().receive(Received {
            process,
            class,
            // The check for an older state is a request of its own, and so is a list for a name.
            path: match (query.limit, &query.fields) {
                (Some(1), _) => format!("{text}?limit=1"),
                (_, Some(fields)) => format!("{text}?fieldSelector={fields}"),
                _ => text.clone(),
            },
            sent,
            at: Duration::ZERO,
            outcome: Outcome::Pending,
        });
        let answer = self.0.state.borrow_mut().answer(class, &text);
        let faulty = |answer| {
            self.0
                .state
                .borrow_mut()
                .conclude(number, Outcome::Faulty(answer));
        };
        match answer {
            Some(answer @ Answer::Nothing) => {
                faulty(answer);
                return std::future::pending().await;
            }
            Some(answer @ Answer::Status { code, retry_after }) => {
                faulty(answer);
                return refusal(code, retry_after);
            }
            Some(Answer::Late(delay)) => sleep(delay).await,
            Some(Answer::Half | Answer::Empty | Answer::Expired) | None => {}
        }
        let Some(path) = parsed.filter(|path| self.0.state.borrow().is_served(path)) else {
            self.0
                .state
                .borrow_mut()
                .conclude(number, Outcome::Status(404));
            return refusal(404, None);
        };
        let accept = header("accept").unwrap_or_default();
        let only_metadata = accept.contains("as=PartialObjectMetadata");
        let is_apply = header("content-type").is_some_and(|it| it.contains("apply-patch"));
        let body = match body.collect().await {
            Ok(body) => body.to_bytes(),
            // The client has gone.
            Err(_broken) => return std::future::pending().await,
        };
        if class == Class::Watch {
            let response = self.watch(&path, &query, only_metadata, answer);
            let status = response.status().as_u16();
            let outcome = match answer {
                Some(answer @ (Answer::Empty | Answer::Expired)) => Outcome::Faulty(answer),
                _ => Outcome::Status(status),
            };
            self.0.state.borrow_mut().conclude(number, outcome);
            return response;
        }
        let read = Read {
            path: &path,
            query: &query,
            only_metadata,
        };
        let (status, value) = match parts.method {
            Method::GET => self.0.state.borrow().read(&read),
            method => {
                let body: Value = serde_json::from_slice(&body).unwrap_or_default();
                let origin = (process, sent);
                let mut state = self.0.state.borrow_mut();
                let is_event = path
                    .resource()
                    .is_some_and(|it| it.api().plural == "events");
                let written = match method {
                    Method::POST | Method::PUT if !is_event => state.put(&path, body, origin),
                    Method::PATCH | Method::POST => state.patch(&path, &body, is_apply, origin),
                    Method::DELETE => state.remove(&path, &body, origin),
                    _ => (405, failure(405)),
                };
                drop(state);
                self.0.changed.notify_waiters();
                written
            }
        };
        if answer == Some(Answer::Half) {
            faulty(Answer::Half);
            return half(&value);
        }
        let outcome = Outcome::Status(status);
        self.0.state.borrow_mut().conclude(number, outcome);
        with_status(status, &value)
    }

    /// Writes an object as another client does. `None` deletes the object of a name.
    pub fn write(&self, object: Value, skipped: u64) {
        self.0.state.borrow_mut().write(object, skipped);
        self.0.changed.notify_waiters();
    }

    pub fn delete(&self, id: &Id, skipped: u64) {
        self.0.state.borrow_mut().delete(id, skipped);
        self.0.changed.notify_waiters();
    }

    /// Changes metadata of an object that has no meaning.
    pub fn touch(&self, id: &Id) {
        let mut state = self.0.state.borrow_mut();
        let Some(mut object) = state.store.get(id).cloned() else {
            return;
        };
        let version = state.store.version();
        object["metadata"]["annotations"]["example.com/touched"] = version.to_string().into();
        state.store.commit(id.clone(), Some(object), 0);
        drop(state);
        self.0.changed.notify_waiters();
    }

    pub fn answer_for(&self, to: Requests, with: Answer, percent: u64, lasting: Duration) {
        let mut state = self.0.state.borrow_mut();
        let number = state.next_rule;
        state.next_rule += 1;
        let seed = state.random.random();
        state.rules.push(Rule {
            number,
            to,
            with,
            percent,
            seed,
            counts: BTreeMap::new(),
        });
        drop(state);
        let api = self.clone();
        spawn_local(async move {
            sleep(lasting).await;
            let mut state = api.0.state.borrow_mut();
            state.rules.retain(|rule| rule.number != number);
        });
    }

    pub fn cut_watches(&self, how: Cut, percent: u64) {
        let mut guard = self.0.state.borrow_mut();
        let State {
            watches, random, ..
        } = &mut *guard;
        for cut in watches.values_mut() {
            if random.random_range(0..100) < percent && cut.is_none() {
                *cut = Some(how);
            }
        }
        drop(guard);
        self.0.changed.notify_waiters();
    }

    pub fn compact(&self) {
        self.0.state.borrow_mut().store.compact();
    }

    pub fn restart(&self, down: Duration, undone: usize) {
        if std::mem::replace(&mut self.0.state.borrow_mut().is_down, true) {
            return;
        }
        // The process stops before its state changes.
        self.0.restarted.notify_one();
        let api = self.clone();
        spawn_local(async move {
            sleep(down).await;
            let mut state = api.0.state.borrow_mut();
            state.is_down = false;
            if undone > 0 {
                let version = state
                    .store
                    .version_before(undone)
                    .min(far_back(&state.store));
                state.lags_at = None;
                state.store.restore(version);
                state.record();
                let now = state.now();
                state.restorations.push(now);
            }
            drop(state);
            api.0.restarted.notify_one();
        });
    }

    pub fn lag(&self, undone: usize, lasting: Duration) {
        let mut state = self.0.state.borrow_mut();
        if state.lags_at.is_some() {
            return;
        }
        state.lags_at = Some(state.store.version_before(undone));
        state.record();
        drop(state);
        let api = self.clone();
        spawn_local(async move {
            sleep(lasting).await;
            let mut state = api.0.state.borrow_mut();
            // Watches get every change that they have missed.
            let lagged = state.lags_at.take().unwrap_or_default();
            let missed = state.store.since(lagged).iter();
            let missed: Vec<u64> = missed.map(|commit| commit.version).collect();
            for version in missed {
                state.lags_at = Some(version);
                state.record();
            }
            state.lags_at = None;
            state.record();
            drop(state);
            api.0.changed.notify_waiters();
        });
    }

    pub fn unserve(&self, resource: Resource, lasting: Duration) {
        self.0.state.borrow_mut().unserved.insert(resource);
        self.0.changed.notify_waiters();
        let api = self.clone();
        spawn_local(async move {
            sleep(lasting).await;
            api.0.state.borrow_mut().unserved.remove(&resource);
        });
    }

    pub fn history(&self) -> Ref<'_, History> {
        Ref::map(self.0.state.borrow(), |state| &state.history)
    }

    pub fn requests(&self) -> Ref<'_, Vec<Received>> {
        Ref::map(self.0.state.borrow(), |state| &state.requests)
    }

    pub fn claims(&self) -> Ref<'_, Vec<Claim>> {
        Ref::map(self.0.state.borrow(), |state| &state.claims)
    }

    pub fn restorations(&self) -> Vec<Duration> {
        self.0.state.borrow().restorations.clone()
    }

    pub fn writes(&self) -> Ref<'_, Vec<Write>> {
        Ref::map(self.0.state.borrow(), |state| &state.writes)
    }

    pub fn objects(&self) -> Objects {
        self.0.state.borrow().store.objects().clone()
    }
}

/// A request for objects.
struct Read<'a> {
    path: &'a Path,
    query: &'a Query,
    only_metadata: bool,
}

impl State {
    fn now(&self) -> Duration {
        self.start.elapsed()
    }

    fn receive(&mut self, mut request: Received) -> usize {
        request.at = self.now();
        self.requests.push(request);
        self.requests.len() - 1
    }

    fn conclude(&mut self, number: usize, outcome: Outcome) {
        self.requests[number].outcome = outcome;
    }

    /// Returns the fault of a request.
    fn answer(&mut self, class: Class, path: &str) -> Option<Answer> {
        for rule in self
            .rules
            .iter_mut()
            .filter(|rule| class.is_one_of(rule.to))
        {
            let is_applicable = match rule.with {
                Answer::Empty | Answer::Expired => class == Class::Watch,
                Answer::Half => class != Class::Watch,
                _ => true,
            };
            let count = rule.counts.entry(path.to_owned()).or_default();
            *count += 1;
            let mut hasher = DefaultHasher::new();
            (rule.seed, path, *count).hash(&mut hasher);
            if is_applicable && hasher.finish() % 100 < rule.percent {
                return Some(rule.with);
            }
        }
        None
    }

    fn is_served(&self, path: &Path) -> bool {
        let resource = path.resource();
        resource.is_none_or(|resource| !self.unserved.contains(&resource))
    }

    /// The version of the state that reads have.
    fn visible(&self) -> u64 {
        let head = self.store.version();
        self.lags_at.map_or(head, |version| version.min(head))
    }

    fn visible_objects(&self) -> Objects {
        match self.lags_at {
            Some(version) => self.store.at(version),
            None => self.store.objects().clone(),
        }
    }

    fn record(&mut self) {
        let (now, objects) = (self.now(), self.visible_objects());
        self.history.record(now, &objects);
    }
}

/// Returns the latest version that a restored history does not catch up with unnoticed.
fn far_back(store: &Store) -> u64 {
    let least = store.version().saturating_sub(MIN_REWIND);
    store.version_at(least)
}

fn refusal(code: u16, retry_after: Option<u16>) -> Response<ApiBody> {
    let mut value = failure(code);
    if let Some(seconds) = retry_after {
        value["details"] = json!({ "retryAfterSeconds": seconds });
    }
    let mut response = with_status(code, &value);
    if let Some(seconds) = retry_after {
        response.headers_mut().insert("retry-after", seconds.into());
    }
    response
}

fn failure(code: u16) -> Value {
    let status = StatusCode::from_u16(code).unwrap_or_default();
    let reason = status.canonical_reason().unwrap_or_default();
    json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "code": code, "reason": reason.replace(' ', ""), "message": format!("simulated {code}"),
    })
}

fn with_status(code: u16, value: &Value) -> Response<ApiBody> {
    let status = StatusCode::from_u16(code).unwrap_or_default();
    let whole = kube_api::response(status, value);
    let (parts, body) = whole.into_parts();
    let body = body.into_data_stream().map(|data| match data {
        Ok(data) => Ok(Frame::data(data)),
        Err(never) => match never {},
    });
    Response::from_parts(parts, StreamBody::new(body.boxed_local()))
}

/// Returns a response that breaks off.
fn half(value: &Value) -> Response<ApiBody> {
    let mut text = value.to_string();
    text.truncate(text.floor_char_boundary(text.len() / 2));
    let sent = Ok(Frame::data(Bytes::from(text)));
    let broken = Err(io::Error::other("the script breaks the response off"));
    Response::new(StreamBody::new(stream::iter([sent, broken]).boxed_local()))
}

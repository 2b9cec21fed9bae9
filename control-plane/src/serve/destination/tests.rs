//! The messages of `GetProfile` for sets of objects.

mod endpoints;

use std::fmt::Write as _;
use std::task::{Context, Waker};

use futures_util::{FutureExt as _, StreamExt as _};
use mesh_api::proto::destination::{
    DestinationProfile, HttpStatusRange, RequestMatch, ResponseMatch, Route, request_match,
    response_match,
};
use mesh_api::proto::http_types::{HttpMethod, http_method};
use mesh_api::proto::meta::{Metadata, metadata};
use mesh_cluster::source::{Batch, Change};
use mesh_objects::model::Kind;
use mesh_runtime::metrics::Registry;
use tonic::Code;

use super::*;
use crate::index::tests::fixture::{apply, delete, destination_settings, pod};
use crate::serve::grpc::decode;

const HOST: &str = "web.shop.svc.cluster.local";

/// The part of every message about the Service without a ServiceProfile.
const DEFAULT: &str =
    "web.shop.svc.cluster.local budget 0.2 10 10s parent core/Service shop/web:80";

/// The Service `web`, whose port 3306 is in the list of default opaque ports.
const SERVICE: &str = "---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec: {clusterIP: 10.96.0.1, ports: [{name: http, port: 80}, {name: db, port: 3306}]}
";

/// Returns a ServiceProfile of the Service.
fn profile(namespace: &str, spec: &str) -> String {
    named_profile(HOST, namespace, spec)
}

fn named_profile(name: &str, namespace: &str, spec: &str) -> String {
    format!(
        "---\napiVersion: linkerd.io/v1alpha2\nkind: ServiceProfile\n\
         metadata: {{name: {name}, namespace: {namespace}}}\nspec: {spec}\n"
    )
}

/// Returns a profile with one route, whose condition is GET.
fn one_route(namespace: &str, name: &str) -> String {
    let spec = format!("{{routes: [{{name: {name}, condition: {{method: GET}}}}]}}");
    profile(namespace, &spec)
}

struct Cluster {
    index: Arc<Mutex<DestinationIndex>>,
    service: DestinationService,
    registry: Registry,
    _drain: drain::Drain,
}

impl Cluster {
    fn new(objects: &str) -> Self {
        let mut index = DestinationIndex::new(destination_settings());
        index.apply(apply(objects));
        let index = Arc::new(Mutex::new(index));
        let (drain, watch) = drain::channel();
        let registry = Registry::new();
        let service = DestinationService::new(index.clone(), watch, &Calls::new(&registry));
        Self {
            index,
            service,
            registry,
            _drain: drain,
        }
    }

    fn apply(&self, batch: Batch) {
        self.index.lock().apply(batch);
    }

    fn profile(&self, path: &str, namespace: &str) -> Result<Messages, Status> {
        let request = GetDestination {
            scheme: "k8s".to_owned(),
            path: path.to_owned(),
            context_token: format!("{{\"ns\":\"{namespace}\",\"pod\":\"client\"}}"),
        };
        self.service.profile(&Request::new(request)).map(Messages)
    }

    /// Opens a stream of the endpoints of a Service for a client on a node.
    fn endpoints(&self, path: &str, node: &str) -> Messages {
        let request = GetDestination {
            scheme: "k8s".to_owned(),
            path: path.to_owned(),
            context_token: format!("{{\"nodeName\":\"{node}\"}}"),
        };
        let (updates, _level) = self
            .service
            .endpoints(&Request::new(request.into()))
            .unwrap();
        Messages(updates)
    }

    /// Returns the first message.
    fn first(&self, path: &str, namespace: &str) -> String {
        match self.profile(path, namespace) {
            Ok(mut messages) => messages.next(),
            Err(status) => format!("{:?}: {}", status.code(), status.message()),
        }
    }
}

struct Messages(Updates<Bytes>);

impl Messages {
    /// Returns the next message as text, `none` if there is none yet, or `end`.
    fn next(&mut self) -> String {
        match self.0.next().now_or_never() {
            None => "none".to_owned(),
            Some(None) => "end".to_owned(),
            Some(Some(message)) => text(&decode(&message)),
        }
    }

    /// Returns the encoded messages that can be sent now.
    fn ready(&mut self) -> Vec<Bytes> {
        let next = || self.0.next().now_or_never().flatten();
        std::iter::from_fn(next).collect()
    }
}

/// Returns all fields of a message that are set.
fn text(message: &DestinationProfile) -> String {
    let DestinationProfile {
        fully_qualified_name,
        opaque_protocol,
        routes,
        retry_budget,
        dst_overrides,
        endpoint,
        parent_ref,
        profile_ref,
    } = message;
    let mut text = fully_qualified_name.clone();
    if *opaque_protocol {
        text += " opaque";
    }
    for route in routes {
        text += &format!(" route {}", route_text(route));
    }
    if let Some(budget) = retry_budget {
        let ttl = budget.ttl.unwrap();
        assert_eq!(ttl.nanos, 0);
        let (ratio, floor) = (budget.retry_ratio, budget.min_retries_per_second);
        write!(text, " budget {ratio} {floor} {}s", ttl.seconds).unwrap();
    }
    for dst in dst_overrides {
        assert_eq!(dst.backend_ref, None);
        write!(text, " to {}={}", dst.authority, dst.weight).unwrap();
    }
    if let Some(endpoint) = endpoint {
        let port = endpoint.addr.as_ref().unwrap().port;
        write!(text, " endpoint :{port} weight {}", endpoint.weight).unwrap();
    }
    for (name, meta) in [("parent", parent_ref), ("profile", profile_ref)] {
        if let Some(meta) = meta {
            write!(text, " {name} {}", meta_text(meta)).unwrap();
        }
    }
    text.trim_start().to_owned()
}

fn meta_text(meta: &Metadata) -> String {
    let Some(metadata::Kind::Resource(r)) = &meta.kind else {
        panic!("{meta:?}");
    };
    assert_eq!(r.section, "");
    let port = match r.port {
        0 => String::new(),
        port => format!(":{port}"),
    };
    format!("{}/{} {}/{}{port}", r.group, r.kind, r.namespace, r.name)
}

fn route_text(route: &Route) -> String {
    let Route {
        condition,
        response_classes,
        metrics_labels,
        is_retryable,
        timeout,
    } = route;
    let mut text = format!(
        "{metrics_labels:?} {}",
        request_text(condition.as_ref().unwrap())
    );
    for class in response_classes {
        let verdict = if class.is_failure {
            "failure"
        } else {
            "success"
        };
        let condition = response_text(class.condition.as_ref().unwrap());
        write!(text, " {condition}={verdict}").unwrap();
    }
    if *is_retryable {
        text += " retryable";
    }
    if let Some(timeout) = timeout {
        write!(
            text,
            " timeout {}.{:03}",
            timeout.seconds,
            timeout.nanos / 1_000_000
        )
        .unwrap();
    }
    text
}

fn request_text(condition: &RequestMatch) -> String {
    let seq = |seq: &request_match::Seq| {
        let parts: Vec<String> = seq.matches.iter().map(request_text).collect();
        parts.join(" ")
    };
    match condition.r#match.as_ref().unwrap() {
        request_match::Match::All(all) => format!("all({})", seq(all)),
        request_match::Match::Any(any) => format!("any({})", seq(any)),
        request_match::Match::Not(not) => format!("not({})", request_text(not)),
        request_match::Match::Path(path) => path.regex.clone(),
        request_match::Match::Method(HttpMethod { r#type }) => match r#type.as_ref().unwrap() {
            http_method::Type::Registered(number) => format!("#{number}"),
            http_method::Type::Unregistered(name) => name.clone(),
        },
    }
}

fn response_text(condition: &ResponseMatch) -> String {
    let seq = |seq: &response_match::Seq| {
        let parts: Vec<String> = seq.matches.iter().map(response_text).collect();
        parts.join(" ")
    };
    match condition.r#match.as_ref().unwrap() {
        response_match::Match::All(all) => format!("all({})", seq(all)),
        response_match::Match::Any(any) => format!("any({})", seq(any)),
        response_match::Match::Not(not) => format!("not({})", response_text(not)),
        response_match::Match::Status(HttpStatusRange { min, max }) => format!("{min}-{max}"),
    }
}

#[test]
fn profile_of_service_has_what_the_object_says() {
    let labelled = |name: &str| format!("{{\"route\": \"{name}\"}}");
    let route = |fields: &str| format!("{{routes: [{{name: a, {fields}}}]}}");
    let a = labelled("a");
    let budget = "budget 0.2 10 10s";
    // The spec, the message between the name and the references.
    let cases = [
        ("{}".to_owned(), budget.to_owned()),
        (route("condition: {method: GET}"), format!("route {a} #0 {budget}")),
        (route("condition: {method: post}"), format!("route {a} #1 {budget}")),
        (route("condition: {method: PURGE}"), format!("route {a} PURGE {budget}")),
        (route("condition: {pathRegex: '/a/[^/]*'}"), format!("route {a} /a/[^/]* {budget}")),
        (
            route("condition: {method: GET, pathRegex: /a}"),
            format!("route {a} all(#0 /a) {budget}"),
        ),
        (
            route("condition: {all: [{method: GET}, {any: [{pathRegex: /a}, {not: {pathRegex: /b}}]}]}"),
            format!("route {a} all(#0 any(/a not(/b))) {budget}"),
        ),
        (route("condition: {any: []}"), format!("route {a} any() {budget}")),
        (
            "{routes: [{name: z, condition: {method: GET}}, {name: a, condition: {method: PUT}}]}".to_owned(),
            format!("route {} #0 route {a} #2 {budget}", labelled("z")),
        ),
        (
            route("condition: {method: GET}, isRetryable: true, timeout: 1m1.5s"),
            format!("route {a} #0 retryable timeout 61.500 {budget}"),
        ),
        (route("condition: {method: GET}, timeout: 0s"), format!("route {a} #0 {budget}")),
        (route("condition: {method: GET}, timeout: soon"), format!("route {a} #0 {budget}")),
        (
            route(
                "condition: {method: GET}, responseClasses: [\
                 {condition: {status: {min: 500, max: 599}}, isFailure: true}, {condition: {status: {max: 404}}}]",
            ),
            format!("route {a} #0 500-599=failure 404-404=success {budget}"),
        ),
        (
            route(
                "condition: {method: GET}, responseClasses: [{isFailure: true, condition: \
                 {not: {status: {min: 501}}, any: [{status: {min: 500, max: 599}}, {all: []}]}}]",
            ),
            format!("route {a} #0 all(any(500-599 all()) not(501-501))=failure {budget}"),
        ),
        (
            "{retryBudget: {retryRatio: 0.5, minRetriesPerSecond: 3, ttl: 30s}}".to_owned(),
            "budget 0.5 3 30s".to_owned(),
        ),
        (
            // Proxies do not retry with it, as Linkerd's.
            "{retryBudget: {retryRatio: 0.5, ttl: 2m}}".to_owned(),
            "budget 0.5 0 120s".to_owned(),
        ),
        (
            "{dstOverrides: [{authority: web-2.shop.svc.cluster.local, weight: 900m}, \
             {authority: 'web.shop.svc.cluster.local:8080', weight: 1}, {authority: c, weight: '0.1'}]}"
                .to_owned(),
            format!(
                "{budget} to web-2.shop.svc.cluster.local:80=9000 to web.shop.svc.cluster.local:8080=10000 to c:80=1000"
            ),
        ),
        // The annotation of the Service decides.
        ("{opaquePorts: ['80']}".to_owned(), budget.to_owned()),
    ];
    for (spec, expect) in cases {
        let cluster = Cluster::new(&(SERVICE.to_owned() + &profile("shop", &spec)));
        let expect = format!(
            "{HOST} {expect} parent core/Service shop/web:80 profile linkerd.io/ServiceProfile shop/{HOST}"
        );
        for path in [HOST, "web.shop.svc.cluster.local:80", "10.96.0.1:80"] {
            assert_eq!(cluster.first(path, "shop"), expect, "{spec}");
        }
    }
}

#[test]
fn profile_of_the_clients_namespace_comes_first() {
    let own = one_route("client", "own");
    let servers = one_route("shop", "servers");
    let message = |namespace: &str, name: &str| {
        format!(
            "{HOST} route {{\"route\": \"{name}\"}} #0 budget 0.2 10 10s \
             parent core/Service shop/web:80 profile linkerd.io/ServiceProfile {namespace}/{HOST}"
        )
    };
    let (own_message, servers_message) = (message("client", "own"), message("shop", "servers"));
    for (objects, client, expect) in [
        (String::new(), "client", DEFAULT),
        (servers.clone(), "client", &*servers_message),
        (servers.clone(), "shop", &servers_message),
        (servers.clone(), "", &servers_message),
        (own.clone() + &servers, "client", &own_message),
        (own.clone() + &servers, "shop", &servers_message),
        (own.clone() + &servers, "other", &servers_message),
        // The profile of one namespace is not visible to clients of another.
        (own.clone(), "client", &own_message),
        (own.clone(), "other", DEFAULT),
        (own.clone(), "shop", DEFAULT),
        (own.clone(), "", DEFAULT),
        (own.clone(), "not/a/namespace", DEFAULT),
        // A profile of another name, or of another cluster domain, does not belong to the Service.
        (
            named_profile("web.other.svc.cluster.local", "shop", "{}"),
            "shop",
            DEFAULT,
        ),
        (
            named_profile("web.shop.svc.other.local", "shop", "{}"),
            "shop",
            DEFAULT,
        ),
        (named_profile("web", "shop", "{}"), "shop", DEFAULT),
    ] {
        let cluster = Cluster::new(&(SERVICE.to_owned() + &objects));
        for path in [HOST, "10.96.0.1:80"] {
            assert_eq!(cluster.first(path, client), expect, "{client}: {objects}");
        }
    }
}

#[test]
fn profiles_do_not_change_other_destinations() {
    let route = one_route("shop", "a");
    let annotated = SERVICE.replace(
        "namespace: shop}",
        "namespace: shop, annotations: {config.linkerd.io/opaque-ports: '80'}}",
    );
    let external_name = SERVICE.replace("clusterIP: 10.96.0.1,", "type: ExternalName,");
    let web = pod("web-1", "10.1.0.1", false, "");
    let opaque = |port: &str| {
        format!(
            "{HOST} opaque route {{\"route\": \"a\"}} #0 budget 0.2 10 10s \
             parent core/Service shop/web:{port} profile linkerd.io/ServiceProfile shop/{HOST}"
        )
    };
    for (objects, path, expect) in [
        // A port that the Service does not define: an empty message.
        (SERVICE.to_owned(), "10.96.0.1:81", String::new()),
        (SERVICE.to_owned(), &format!("{HOST}:81"), String::new()),
        (SERVICE.to_owned(), "10.96.0.1:3306", opaque("3306")),
        (annotated, "10.96.0.1:80", opaque("80")),
        (
            external_name.clone(),
            HOST,
            "InvalidArgument: service shop/web is an ExternalName service".to_owned(),
        ),
        (external_name, &format!("{HOST}:81"), String::new()),
        (
            String::new(),
            HOST,
            "Unknown: no such service: shop/web".to_owned(),
        ),
        (
            web,
            "10.1.0.1:8080",
            "budget 0.2 10 10s endpoint :8080 weight 10000".to_owned(),
        ),
        (
            String::new(),
            "192.0.2.1:25",
            "opaque budget 0.2 10 10s endpoint :25 weight 10000".to_owned(),
        ),
        (
            SERVICE.to_owned() + &SERVICE.replace("name: web,", "name: twin,"),
            "10.96.0.1:80",
            "FailedPrecondition: services shop/twin and shop/web both have the address 10.96.0.1"
                .to_owned(),
        ),
        (
            SERVICE.to_owned(),
            "web-0.web.shop.svc.cluster.local",
            "NotFound: service shop/web has no endpoint with hostname web-0".to_owned(),
        ),
        (
            SERVICE.to_owned(),
            "web",
            "InvalidArgument: Invalid authority: web".to_owned(),
        ),
    ] {
        let cluster = Cluster::new(&(objects.clone() + &route));
        assert_eq!(cluster.first(path, "shop"), expect, "{path}: {objects}");
    }
}

#[test]
fn open_streams_follow_changes_of_profiles() {
    let cluster = Cluster::new(SERVICE);
    for path in [HOST, "10.96.0.1:80"] {
        let mut client = cluster.profile(path, "client").unwrap();
        let mut other = cluster.profile(path, "other").unwrap();
        assert_eq!(client.next(), DEFAULT);
        assert_eq!(other.next(), DEFAULT);

        cluster.apply(apply(&one_route("shop", "servers")));
        assert!(client.next().contains("\"servers\""));
        assert!(other.next().contains("\"servers\""));

        cluster.apply(apply(&one_route("client", "own")));
        assert!(client.next().contains("\"own\""));
        assert_eq!(other.next(), "none", "another namespace");

        cluster.apply(apply(&one_route("client", "own")));
        cluster.apply(apply(&SERVICE.replace("shop}", "shop, labels: {a: b}}")));
        cluster.apply(apply(&one_route("third", "third")));
        assert_eq!(client.next(), "none", "nothing changed");

        cluster.apply(delete(Kind::ServiceProfile, "client", HOST));
        assert!(client.next().contains("\"servers\""));
        cluster.apply(delete(Kind::ServiceProfile, "shop", HOST));
        cluster.apply(delete(Kind::ServiceProfile, "third", HOST));
        assert_eq!(client.next(), DEFAULT);
        assert_eq!(other.next(), DEFAULT);
        assert_eq!(
            (client.next(), other.next()),
            ("none".into(), "none".into())
        );
    }
    let mut client = cluster.profile(HOST, "client").unwrap();
    client.next();
    cluster.apply(vec![Change::Replace(
        apply(&(SERVICE.to_owned() + &one_route("shop", "replaced")))
            .into_iter()
            .filter_map(|change| match change {
                Change::Apply(object) => Some(object),
                _ => None,
            })
            .collect(),
    )]);
    assert!(client.next().contains("\"replaced\""));
}

#[test]
fn external_names_have_the_profile_of_the_clients_namespace() {
    let spec = "{routes: [{name: a, condition: {method: GET}}], opaquePorts: ['5432'], \
                dstOverrides: [{authority: db.shop.svc.cluster.local, weight: 1}]}";
    let text = named_profile("db.example.com", "client", spec);
    let cluster = Cluster::new(&text);
    let message = |port: u16, opaque: &str| {
        format!(
            "db.example.com{opaque} route {{\"route\": \"a\"}} #0 budget 0.2 10 10s \
             to db.shop.svc.cluster.local:{port}=10000 profile linkerd.io/ServiceProfile client/db.example.com"
        )
    };
    let first = |path: &str, client: &str| cluster.first(path, client);
    assert_eq!(first("db.example.com", "client"), message(80, ""));
    assert_eq!(
        first("DB.example.com:5432", "client"),
        message(5432, " opaque")
    );
    // Its own list replaces the default opaque ports.
    assert_eq!(first("db.example.com:3306", "client"), message(3306, ""));
    assert_eq!(first("db.example.com", "other"), "");
    assert_eq!(first("db.example.com", ""), "");
    assert_eq!(first("api.example.com", "client"), "");
    let request = GetDestination {
        path: "db.example.com:80".to_owned(),
        ..GetDestination::default()
    };
    let status = cluster.service.endpoints(&Request::new(request.into()));
    let status = status.err().unwrap();
    assert_eq!(status.code(), Code::InvalidArgument);
    assert_eq!(status.message(), "Invalid authority: db.example.com:80");

    // A client without a profile is told of a new one: its stream ends, and its next one has it.
    let mut waiting = cluster.profile("api.example.com", "client").unwrap();
    assert_eq!(
        (waiting.next(), waiting.next()),
        (String::new(), "none".into())
    );
    let mut open = cluster.profile("db.example.com", "client").unwrap();
    assert_eq!(open.next(), message(80, ""));
    cluster.apply(apply(&named_profile("api.example.com", "client", "{}")));
    assert_eq!(waiting.next(), "end");
    assert_eq!(
        first("api.example.com", "client"),
        "api.example.com budget 0.2 10 10s profile linkerd.io/ServiceProfile client/api.example.com"
    );
    assert_eq!(open.next(), "none");
    cluster.apply(delete(Kind::ServiceProfile, "client", "db.example.com"));
    assert_eq!(open.next(), "");
}

/// Counts the polls of each stream. Other tasks may run between two polls.
#[test]
fn first_answer_does_not_wait_for_a_client_that_holds_all_streams() {
    const LIMIT: usize = 1000;
    let turns = |held: usize| {
        let cluster = Cluster::new(SERVICE);
        let (_drain, watch) = drain::channel();
        let calls = Calls::new(&cluster.registry).limited(Some(LIMIT));
        let service = DestinationService::new(cluster.index.clone(), watch, &calls);
        let open = |client: &str, pod: usize| {
            let mut request = Request::new(GetDestination {
                path: format!("{HOST}:80"),
                context_token: format!("{{\"ns\":\"shop\",\"pod\":\"{pod}\"}}"),
                ..GetDestination::default()
            });
            let metadata = request.metadata_mut();
            metadata.insert("l5d-client-id", client.parse().unwrap());
            service.profile(&request).unwrap()
        };
        // It reads nothing, so that no stream that is taken ends.
        let greedy: Vec<_> = (0..held).map(|pod| open("greedy", pod)).collect();
        let (mut turns, mut others) = (Vec::new(), Vec::new());
        for pod in 0..LIMIT / 2 {
            let mut other = open("other", pod);
            let mut cx = Context::from_waker(Waker::noop());
            let mut polls = 1;
            while other.poll_next_unpin(&mut cx).is_pending() {
                polls += 1;
                assert!(polls < 100, "no answer beside {held} streams");
            }
            turns.push(polls);
            others.push(other);
        }
        drop((greedy, others));
        turns.into_iter().max().unwrap()
    };
    let (alone, beside) = (turns(0), turns(LIMIT));
    assert!(beside <= 2 * alone, "{beside} turns, {alone} alone");
}

/// Clients can send any name.
#[test]
fn external_names_without_profile_are_not_kept() {
    let cluster = Cluster::new("");
    let open: Vec<Messages> = (0..1_000)
        .map(|n| {
            cluster
                .profile(&format!("host-{n}.example.com"), "client")
                .unwrap()
        })
        .collect();
    assert_eq!(cluster.index.lock().watched(), (0, 0));
    drop(open);
}
